"""Weights are watched: between two private updates nothing may change what a model and its optimizer hold.

Three things are compared: which tensors are held and where they lie; torch's counters of changes in place; and the
bits themselves, which also tell of what is written past the counters (``.data``, numpy, other libraries).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.errors import UnsupportedModel, WeightsChanged
from privet.training.weight_watch.fingerprints import Fingerprints

# The least number of pages, and the share of all, that are looked at in steps at which not all are.
_LEAST_PAGES, _SHARE = 4, 16
# Attributes of optimizers that hold settings, or that are looked at by themselves.
_PUBLIC = ("state", "param_groups", "defaults")


class Holdings:
    """Which tensors a model (and an optimizer) holds, without a walk over the modules at every look."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        """Walk over the modules once."""
        self._model, self._optimizer = model, optimizer
        self._owners: dict[int, str] = {}
        self.walk()

    def walk(self) -> None:
        """List the tensors anew."""
        modules = list(self._model.modules())
        self._held: list[dict[str, Any]] = [held for m in modules for held in (m._parameters, m._buffers, m._modules)]
        self._ids = list(map(id, chain.from_iterable(map(dict.values, self._held))))
        self.parameters = dict(self._model.named_parameters())
        # a parameter that was replaced keeps its name: the optimizer still holds it
        self._owners |= {id(value): name for name, value in self.parameters.items()}
        # one tensor may be held under several names, and one of them may be given another
        self.tensors: dict[str, Tensor] = dict(self._model.named_buffers()) | self.parameters
        self._values = list(self.tensors.values())

    @property
    def is_same(self) -> bool:
        """Whether the modules hold the very objects that were listed."""
        return list(map(id, chain.from_iterable(map(dict.values, self._held)))) == self._ids

    def changes(self) -> list[tuple[int, int]]:
        """Return the counter of changes in place of every tensor of the model, and where it lies; cheap."""
        found = []
        with torch._C.DisableTorchFunction():
            for tensor in self._values:
                try:
                    found.append((tensor._version, tensor.data_ptr()))
                except RuntimeError:  # made in inference mode, or a wrapper without memory of its own
                    found.append((0, 0))
        return found

    def everything(self) -> dict[str, Tensor]:
        """Return all tensors by name, those of the optimizer's state included."""
        if self._optimizer is None:
            return dict(self.tensors)
        return self.tensors | _of_optimizer(self._optimizer, self._owners)


def _places(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    """Return all that tells where and how the numbers of each tensor lie, and how often torch counted a change."""
    # one pass, because every step takes three
    found: dict[str, tuple[Any, ...]] = {}
    with torch._C.DisableTorchFunction():
        for name, tensor in tensors.items():
            try:
                version, address = tensor._version, tensor.data_ptr()
            except RuntimeError:  # made in inference mode, or a wrapper without memory of its own
                version = address = 0
            facts = (id(tensor), version, address, tensor.dtype, tensor.device, tensor.is_neg(), tensor.is_conj())
            is_strided = tensor.layout is torch.strided
            found[name] = (*facts, tensor.shape, tensor.stride()) if is_strided else facts
    return found


def _of_optimizer(optimizer: Optimizer, owners: Mapping[int, str]) -> dict[str, Tensor]:
    """Return what an optimizer keeps from step to step; learning rates are public and may be tensors too."""
    left: list[tuple[str, Any, int]] = []
    for owner, kept in optimizer.state.items():
        name = owners.get(id(owner), f"no parameter of the model {len(left)}")
        left.append((f"the optimizer's state of {name}", kept, 3))
    for key, value in vars(optimizer).items():
        if key not in _PUBLIC:
            left.append((f"the optimizer: {key}", value, 3))
    found: dict[str, Tensor] = {}
    for name, value, depth in left:  # grows while it is walked through
        if isinstance(value, Tensor):
            found[name] = value
        elif depth and isinstance(value, dict):
            for place, (key, item) in enumerate(value.items()):
                left.append((f"{name}: {key if isinstance(key, str) else f'item {place}'}", item, depth - 1))
        elif depth and isinstance(value, list | tuple):
            for place, item in enumerate(value):
                left.append((f"{name} {place}", item, depth - 1))
        elif depth and isinstance(value, Optimizer):
            for place, kept in enumerate(value.state.values()):
                left.append((f"{name}: state {place}", kept, depth - 1))
            left.append((name, {key: item for key, item in vars(value).items() if key not in _PUBLIC}, depth))
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pending:
    """A comparison that a device has not reported yet."""

    prints: Fingerprints
    pages: Sequence[int]
    device: torch.device
    differs: Tensor
    event: torch.cuda.Event | None

    def is_ready(self) -> bool:
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def names(self) -> set[str]:
        if self.event is not None:
            self.event.synchronize()
        return self.prints.names(self.pages, self.device, self.differs)


def _forward_words(names: Sequence[str]) -> str:
    return (
        f"The forward pass changed the buffers or parameters {_listed(names)}, which carries private data past the "
        "noise. Put the layers that own them into eval() mode, or replace them. (If it was no forward pass: between "
        "two updates nothing else may change the weights, no second optimizer and no assignment.)"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in sorted(names)[:8])
    return f"[{shown}]" if len(names) <= 8 else f"[{shown} and {len(names) - 8} more]"


class WeightWatch:
    """Compares what a model and its optimizer hold with what the last private update left.

    Guarantee:
        Between two private updates, every change that torch counts, and every tensor that was replaced or moved, is
        found at the next look. A look is taken before each update, at ``guarantee()``, at checkpoints and at the exit;
        physical batches are followed by the counters alone.
        Changes that torch does not count are found by fingerprints (``weight_watch.fingerprints``) taken
        after an update and compared at the looks that follow. Models of up to a million numbers (on a device, sixteen
        million), optimizer state included, are taken as a whole after every update; larger ones as a whole after
        updates 0, 1, 2, 4, 8 and so on, the last one and those before a checkpoint, and otherwise a sixteenth of
        their pages, chosen at random. On CUDA devices the answer is read when it is there, at the latest at the next
        look at a whole model, at ``guarantee()`` and at the exit.
        What can pass unnoticed, therefore: a write past torch's counters that touches only pages of a large model
        that were not chosen; one that is undone before the next look; and state that is kept neither in the model's
        parameters and buffers nor in the optimizer's state.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, found: Callable[[], None]) -> None:
        """Accept the present state; ``found`` is called once, before the first error of a change is raised."""
        self.holdings, self._found = Holdings(model, optimizer), found
        self._random = random.SystemRandom()
        self._pending: deque[_Pending] = deque()
        self._prints, self._held = Fingerprints.of({}), dict[str, Tensor]()
        self._where: list[tuple[Any, ...]] = [()]
        self._was_seen_in_step = False
        self.is_broken = False
        self.accept(looks_everywhere=True)

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The model's parameters by name, as they were last accepted."""
        return self.holdings.parameters

    def held(self) -> Iterable[Tensor]:
        """Return what is watched: the tensors of the model and of the optimizer."""
        return self._held.values()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a guarantee assumes because it cannot be looked at."""
        if not self._prints.unseen:
            return ()
        names = _listed(self._prints.unseen)
        return (f"nothing wrote past torch's counters into {names}, whose bits cannot be read",)

    def accept(self, *, looks_everywhere: bool) -> None:
        """Take the present state as the one to compare with."""
        if not self.holdings.is_same:
            self.holdings.walk()
        tensors = self.holdings.everything()
        self._places, self._counts = _places(tensors), self.holdings.changes()
        where = [fact[:1] + fact[2:] for fact in self._places.values()]
        if where != self._where:
            self._where, self._prints = where, Fingerprints.of(tensors)
            self._held = tensors  # so that no other tensor can take the identity of one of them
        self._accepted = self._prints.take(self._choice(looks_everywhere))
        self._was_seen_in_step = False

    def _choice(self, looks_everywhere: bool) -> Sequence[int] | None:
        num_pages = len(self._prints.pages)
        size = max(_LEAST_PAGES, num_pages // _SHARE)
        return None if looks_everywhere or size >= num_pages else sorted(self._random.sample(range(num_pages), size))

    def check_forward(self) -> None:
        """Refuse what a forward pass changed; the counters alone are compared.

        Raises:
            UnsupportedModel: naming the tensors.
        """
        if not self.holdings.is_same or self.holdings.changes() != self._counts:
            self.note()
            raise UnsupportedModel(_forward_words(sorted(self._moved())))

    def begin_step(self, *, looks_inside: bool) -> None:
        """Refuse every change since the last update that torch counts, and with ``looks_inside`` every other one.

        Raises:
            WeightsChanged: naming the tensors and the likely cause.
        """
        self._check_places()
        if looks_inside:
            self.look(waits=True)
            self._was_seen_in_step = True

    def look(self, *, waits: bool) -> None:
        """Refuse every change since the state was accepted; ``waits`` for devices that have not reported yet.

        Raises:
            WeightsChanged: naming the tensors and the likely cause. No guarantee is given after it.
            UnsupportedModel: likewise, where the weights are known to have been right when the step began.
        """
        self._check_places()
        now = self._prints.take(self._accepted.pages)
        for device, differs in self._prints.differing(self._accepted, now):
            self._pending.append(_read(self._prints, now.pages, device, differs))
        written: set[str] = set()
        while self._pending and (waits or self._pending[0].is_ready()):
            written |= self._pending.popleft().names()
        if written and self._was_seen_in_step:
            self.note()
            raise UnsupportedModel(_forward_words(sorted(written)))
        if written:
            self._refuse(dict.fromkeys(written, "its bits"))

    def _check_places(self) -> None:
        if self.is_broken:
            raise WeightsChanged(
                "The weights of this session were changed by something that was no private step, so it cannot go on, "
                "and no guarantee is given. Start anew, with a fresh model and in a new folder."
            )
        moved = self._moved()
        if moved:
            self._refuse(moved)

    def _moved(self) -> dict[str, str]:
        """Name what was replaced, moved or counted as changed, and how."""
        if not self.holdings.is_same:
            self.holdings.walk()
        now = _places(self.holdings.everything())
        if now == self._places:
            return {}
        return {
            name: _how(self._places.get(name), now.get(name))
            for name in now.keys() | self._places
            if now.get(name) != self._places.get(name)
        }

    def note(self) -> None:
        """Take note that there was a change that no private step made: from here on nothing is promised."""
        if not self.is_broken:
            self.is_broken = True
            self._found()

    def _refuse(self, changes: Mapping[str, str]) -> None:
        self.note()
        raise WeightsChanged(
            f"Since the last private update something else changed {_listed(list(changes))}. {_cause(changes, self)} "
            "What was trained or written that way is not private, and no guarantee is given for this run. Start anew "
            "with a fresh model; wrap changes that use no private data in session.public_change('what it does')."
        )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let the weights change for the length of the block; whatever changed before it is found first."""
        self.look(waits=True)
        try:
            yield
        finally:
            self.accept(looks_everywhere=True)


def _read(prints: Fingerprints, pages: Sequence[int], device: torch.device, differs: Tensor) -> _Pending:
    if device.type != "cuda":
        return _Pending(prints=prints, pages=pages, device=device, differs=differs, event=None)
    # copied beside the work of the device and read once it is there
    there = torch.empty(differs.shape, dtype=torch.bool, pin_memory=True)
    there.copy_(differs, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return _Pending(prints=prints, pages=pages, device=device, differs=there, event=event)


def _how(before: tuple[Any, ...] | None, now: tuple[Any, ...] | None) -> str:
    if before is None or now is None or before[0] != now[0]:
        return "the object"
    return "its place" if before[2:] != now[2:] else "its version"


def _cause(changes: Mapping[str, str], watch: WeightWatch) -> str:
    """Say what usually leaves such traces."""
    kinds, trained = set(changes.values()), {name for name, p in watch.parameters.items() if p.requires_grad}
    if "the object" in kinds:
        return (
            "Tensors were added, removed or replaced: likely by assigning a parameter, parametrizing or merging a "
            "layer, or loading the optimizer's state."
        )
    if "its place" in kinds:
        return "Tensors lie elsewhere or otherwise: likely p.data = ..., set_(), model.to() or model.half()."
    if "its bits" in kinds:
        return (
            "It was written past torch's counters: likely through .data, a numpy array that shares its memory, or a "
            "library of its own."
        )
    if trained <= changes.keys():
        return (
            "Every trained parameter changed: likely the step of another optimizer (trainers such as those of "
            "transformers and Lightning make one of their own), load_state_dict(), or averages that were swapped in."
        )
    if not changes.keys() & watch.parameters.keys():
        return "Only buffers or optimizer state changed: likely a forward pass outside the step, or load_state_dict()."
    return "Likely an assignment in place, another optimizer's step, or load_state_dict()."
