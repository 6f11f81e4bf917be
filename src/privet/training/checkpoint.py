"""Checkpoints: model, optimizer state, step and ledger head in one safetensors file.

What is deliberately not there: random state (a resumed run must draw fresh noise), sampled indices, sums before noise,
and the ledger itself (a checkpoint can be rewound; a ledger never is).

A checkpoint is written beside the old one, made durable, then swapped in; the previous generation is kept. Loading
takes the newest one whose digest is right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from privet.accounting.ledger import LedgerHead
from privet.errors import CheckpointError
from privet.gradients.sharding.local import placed_like
from privet.mechanism.clipping import State
from privet.training.shard_files import INDEX_NAME, digest_of, read_index, write_part

_FORMAT = 1
_MAX_BYTES = 1 << 40
_AVERAGE = "average."


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A loaded checkpoint, verified against its digest."""

    step: int
    steps_taken: int
    head: LedgerHead
    plan_hash: str
    tensors: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    clipping: State = field(default_factory=dict)
    noise: State = field(default_factory=dict)

    @property
    def average(self) -> Mapping[str, Tensor]:
        """The averaged weights, if the run kept any."""
        return {name[len(_AVERAGE) :]: self.tensors[name] for name in self.tensors if name.startswith(_AVERAGE)}

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Load weights and optimizer state.

        Raises:
            CheckpointError: if the checkpoint was made with another model or optimizer.
        """
        try:
            self._restore(model, optimizer)
        except (RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:400]
            raise CheckpointError(
                f"The checkpoint does not fit this model and optimizer: {reason} Build the model and the optimizer as "
                "they were when the run began, or start in a new folder."
            ) from error

    def _restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        now, weights = model.state_dict(), dict[str, Tensor]()
        for name in self.tensors:  # one at a time: of a sharded model a rank keeps its part
            if name.startswith("model."):
                known = now.get(name[len("model.") :])
                weights[name[len("model.") :]] = placed_like(known, self.tensors[name])
        # torch would convert in silence, and the run would go on in another precision than it began in
        other = sorted(name for name in now.keys() & weights if now[name].dtype != weights[name].dtype)
        if other:
            raise ValueError(f"{other[0]} is {now[other[0]].dtype} here and {weights[other[0]].dtype} there.")
        model.load_state_dict(weights)
        state: dict[int, dict[str, Any]] = {int(key): dict(values) for key, values in self.optimizer["state"].items()}
        owners = [owner for group in optimizer.param_groups for owner in group["params"]]
        for name in self.tensors:
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                owner = owners[int(index)] if int(index) < len(owners) else None
                state.setdefault(int(index), {})[key] = placed_like(owner, self.tensors[name])
        groups = [{**group, **_tuples(group)} for group in self.optimizer["param_groups"]]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _tuples(group: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("params", "param_names")  # the entries that are lists to torch as well
    return {key: tuple(value) for key, value in group.items() if isinstance(value, list) and key not in kept}


def as_bytes(body: str, tensors: Mapping[str, Tensor]) -> bytes:
    """Return a checkpoint as the bytes of its file, from its contents."""
    copied = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    return safetensors.torch.save(copied, {"privet": body, "digest": digest_of(copied, body)})


def contents(
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    steps_taken: int,
    head: LedgerHead,
    plan_hash: str,
    clipping: State,
    average: Mapping[str, Tensor],
    noise: State | None = None,
) -> tuple[str, dict[str, Tensor]]:
    """Return the contents of a checkpoint: a text and tensors, which lie where they are.

    Args:
        model: Whose state is saved.
        optimizer: Whose state is saved.
        step: Which step of the plan comes next.
        steps_taken: How many steps are in the model; fewer than ``step`` if some were lost with an earlier process.
        head: The newest row of the ledger.
        plan_hash: Of the plan it was made under.
        clipping: Released values from which the clipping goes on.
        average: Averaged weights by parameter name; empty if the run keeps none.
        noise: Released values from which noise goes on that learns; none by default.

    Raises:
        CheckpointError: if the disk refuses, or if the optimizer keeps state that is neither tensor nor number.
    """
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"{_AVERAGE}{name}": value for name, value in average.items()}
    saved = optimizer.state_dict()
    state: dict[str, dict[str, Any]] = {}
    for index, values in saved["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                state.setdefault(str(index), {})[key] = value
    foreign = sorted(name for name, value in tensors.items() if not isinstance(value, Tensor))
    if foreign:
        raise CheckpointError(f"The model's state {foreign} is not a tensor and cannot be saved. Keep it in a buffer.")
    try:
        described = json.dumps({"state": state, "param_groups": saved["param_groups"]}, default=_number)
    except TypeError as error:
        raise CheckpointError(f"The state of {type(optimizer).__name__} cannot be written as JSON: {error}.") from error
    facts = {
        "format": _FORMAT,
        "step": step,
        "steps_taken": steps_taken,
        "head": {"seq": head.seq, "sha256": head.sha256},
        "plan": plan_hash,
        "optimizer": described,
        "clipping": {name: list(values) for name, values in clipping.items()},
    }
    if noise:
        facts["noise"] = {name: list(values) for name, values in noise.items()}
    return json.dumps(facts, sort_keys=True), tensors


def _number(value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    raise TypeError(f"{type(value).__name__} is neither a tensor nor a number")


def write_checkpoint(path: Path, data: bytes) -> None:
    """Write the bytes of a checkpoint durably beside the old one, and swap it in; on failure that one is untouched."""
    write_part(path, data, keep_previous=True)


def load_checkpoint(path: Path) -> Checkpoint | None:
    """Load the newest intact generation at ``path``; None if there never was one.

    Raises:
        CheckpointError: if files exist but none is intact. Starting afresh would hide the damage.
    """
    index = path.with_name(INDEX_NAME)
    kinds = [(newest, newest.with_name(newest.name + ".1")) for newest in (path, index)]
    # Of one kind the file without a suffix counts, also where somebody put an earlier one there.
    kinds.sort(key=lambda generations: max(map(_row_of, generations)), reverse=True)
    present = [candidate for generations in kinds for candidate in generations if candidate.exists()]
    faults: list[str] = []
    for candidate in present:
        try:
            return _read_shards(candidate) if candidate.name.startswith(INDEX_NAME) else _read(candidate)
        except (SafetensorError, CheckpointError, OSError, KeyError, TypeError, ValueError) as error:
            faults.append(f"{candidate.name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    if faults:
        raise CheckpointError(
            f"No checkpoint in {path.parent} is intact ({'; '.join(faults)}). Restore one from a backup; the ledger "
            "still holds what was spent, so deleting the checkpoints loses training but no privacy."
        )
    return None


def _row_of(path: Path) -> int:
    """Return the row of the ledger that a checkpoint names, unchecked; that of one which cannot be read is the first.

    A run may have gone on sharded or whole, so the newest checkpoint is one file, or an index of several.
    """
    if not _is_regular(path):
        return -1
    try:
        if path.name.startswith(INDEX_NAME):
            body = json.loads(json.loads(path.read_bytes())["content"])["privet"]
        else:
            with safe_open(path, framework="pt") as file:
                body = (file.metadata() or {}).get("privet", "")
        return int(json.loads(body)["head"]["seq"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return -1


def _is_regular(path: Path) -> bool:
    """Whether a path can be read without following a link or waiting at a pipe."""
    return not path.is_symlink() and path.is_file() and path.stat().st_size <= _MAX_BYTES


def _read_shards(path: Path) -> Checkpoint:
    if not _is_regular(path):
        raise CheckpointError("not a regular file of reasonable size")
    body, tensors = read_index(path)
    return _made(body, tensors)


def _read(path: Path) -> Checkpoint:
    if not _is_regular(path):
        raise CheckpointError("not a regular file of reasonable size")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return _checked(metadata, tensors)


def read_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint that another rank of the run holds, from its bytes.

    Raises:
        CheckpointError: the bytes are not whole.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        return _checked(metadata, safetensors.torch.load(data))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"The state of rank 0 did not arrive as it was sent: {error}.") from error


def _checked(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Checkpoint:
    body = metadata.get("privet", "")
    if metadata.get("digest") != digest_of(tensors, body):
        raise CheckpointError("its digest is wrong")
    return _made(body, tensors)


def _made(body: str, tensors: Mapping[str, Tensor]) -> Checkpoint:
    facts = json.loads(body)
    if facts.get("format") != _FORMAT:
        raise CheckpointError(
            f"written in format {facts.get('format')!r}; this version reads format {_FORMAT}. It was made by a newer "
            "privet: update privet"
        )
    return Checkpoint(
        step=int(facts["step"]),
        steps_taken=int(facts.get("steps_taken", facts["step"])),
        head=LedgerHead(seq=facts["head"]["seq"], sha256=facts["head"]["sha256"]),
        plan_hash=str(facts["plan"]),
        tensors=tensors,
        optimizer=json.loads(facts["optimizer"]),
        clipping={str(name): tuple(values) for name, values in facts.get("clipping", {}).items()},
        noise={str(name): tuple(values) for name, values in facts.get("noise", {}).items()},
    )
