"""Checkpoints of sharded models: each rank's part in a safetensors file of its own, and one index of them in JSON.

Shards have names that no other checkpoint has. The index is written last, in the place of the one before it, which is
kept, so a crash at any time leaves a whole checkpoint. Shards that neither index names are removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from privet.durable import write_durably
from privet.errors import CheckpointError
from privet.gradients.sharding.local import local_part, rows_held

INDEX_NAME = "checkpoint.index.json"
_FORMAT = 1
_MOST_BYTES = 1 << 28  # of an index


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One rank's file.

    Attributes:
        file: Its name.
        digest: Of its contents.
        rows: For each tensor that is shared out, the first of its rows there; others are whole.
        shapes: The shape of each whole tensor.
    """

    file: str
    digest: str
    rows: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]

    def to_json(self) -> bytes:
        """Return the entry that rank 0 writes into the index."""
        return json.dumps(vars(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes | Mapping[str, Any]) -> Shard:
        """Read the message of a rank, or the entry of an index."""
        found = json.loads(data) if isinstance(data, bytes) else data
        if Path(str(found["file"])).name != found["file"]:
            raise CheckpointError("its index names a file elsewhere")
        return cls(
            file=str(found["file"]),
            digest=str(found["digest"]),
            rows={str(name): int(row) for name, row in found["rows"].items()},
            shapes={str(name): [int(size) for size in shape] for name, shape in found["shapes"].items()},
        )


def write_shard(folder: Path, word: str, tensors: Mapping[str, Tensor], *, rank: int, size: int) -> Shard:
    """Write this rank's part of some tensors, durably; tensors that every rank holds whole are rank 0's to write.

    Args:
        folder: Where the run keeps its files; the same on all ranks.
        word: A name that no other checkpoint has; the same on all ranks.
        tensors: Sharded ones, and whole ones.
        rank: This rank.
        size: How many ranks there are.
    """
    parts, rows, shapes = dict[str, Tensor](), dict[str, int](), dict[str, Sequence[int]]()
    for name, tensor in tensors.items():
        is_sharded = local_part(tensor) is not tensor
        if not is_sharded and rank:
            continue
        parts[name] = local_part(tensor.detach()).to("cpu", copy=True).contiguous()
        if is_sharded:
            rows[name], shapes[name] = rows_held(tensor).start, list(tensor.shape)
    file = f"checkpoint-{word}-{rank}-of-{size}.safetensors"
    digest = digest_of(parts)
    write_part(folder / file, safetensors.torch.save(parts, {"digest": digest}), keep_previous=False)
    return Shard(file=file, digest=digest, rows=rows, shapes=shapes)


def write_index(folder: Path, body: str, shards: Sequence[Shard]) -> None:
    """Make a checkpoint of shards that are all durable the newest one; then remove those that nobody names.

    Args:
        folder: Where they lie.
        body: All of the checkpoint that is not a tensor.
        shards: Of all ranks, in their order.
    """
    index = {"format": _FORMAT, "privet": body, "shards": [vars(shard) for shard in shards]}
    content = json.dumps(index, sort_keys=True)
    whole = json.dumps({"content": content, "digest": hashlib.sha256(content.encode()).hexdigest()})
    path = folder / INDEX_NAME
    write_part(path, whole.encode(), keep_previous=True)
    named: set[str] = set()
    for generation in (path, path.with_name(path.name + ".1")):
        with suppress(OSError, CheckpointError, ValueError, KeyError, TypeError):
            named |= {shard.file for shard in _index(generation)[1]}
    for file in folder.glob("checkpoint-*-of-*.safetensors"):
        if file.name not in named:
            file.unlink(missing_ok=True)


def write_part(path: Path, data: bytes, *, keep_previous: bool) -> None:
    """Write a file of a checkpoint durably.

    Raises:
        CheckpointError: the disk refuses; the checkpoint before this one is untouched.
    """
    try:
        write_durably(path, data, keep_previous=keep_previous)
    except OSError as error:
        raise CheckpointError(
            f"Could not write the checkpoint {path}: {error.strerror}. The previous checkpoint is intact; free space "
            "or fix the folder's permissions, then resume."
        ) from error


def read_index(path: Path) -> tuple[str, ShardFiles]:
    """Return the body of a checkpoint and its tensors, which are read when they are asked for.

    Guarantee: every shard is there, as it was written; a rank that is missing one raises.

    Raises:
        CheckpointError: it is not whole.
    """
    body, shards = _index(path)
    for shard in shards:
        whole = path.parent / shard.file
        if whole.is_symlink() or not whole.is_file():  # a link is not followed, and nobody waits at a pipe
            raise CheckpointError(f"{shard.file} is not a regular file")
        with safe_open(whole, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        if digest_of(found) != shard.digest:
            raise CheckpointError(f"{shard.file} is not what was written")
    return body, ShardFiles(path.parent, shards)


def _index(path: Path) -> tuple[str, list[Shard]]:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_BYTES:
        raise CheckpointError("not a regular file of reasonable size")
    whole = json.loads(path.read_bytes())
    content = str(whole["content"])
    if hashlib.sha256(content.encode()).hexdigest() != whole["digest"]:
        raise CheckpointError("its digest is wrong")
    index = json.loads(content)
    if index.get("format") != _FORMAT:
        raise CheckpointError(
            f"written in format {index.get('format')!r}; this version reads format {_FORMAT}. It was made by a newer "
            "privet: update privet"
        )
    return str(index["privet"]), [Shard.from_json(shard) for shard in index["shards"]]


class ShardFiles(Mapping[str, Tensor]):
    """The tensors of a checkpoint, each put together from the files of the ranks when it is asked for."""

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        """Find out which file holds which tensor."""
        self._folder, self._shards = folder, shards
        self._where: dict[str, list[Shard]] = {}
        for shard in shards:
            with safe_open(folder / shard.file, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    self._where.setdefault(name, []).append(shard)

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __getitem__(self, name: str) -> Tensor:
        """Return a whole tensor.

        Raises:
            CheckpointError: rows of it are missing, or there twice.
        """
        shards = self._where[name]
        parts = [self._read(shard, name) for shard in shards]
        if name not in shards[0].rows:
            return parts[0]
        shape = tuple(shards[0].shapes[name])
        whole = torch.empty(shape, dtype=parts[0].dtype)
        expected = 0
        for shard, part in sorted(zip(shards, parts, strict=True), key=lambda pair: pair[0].rows[name]):
            if not len(part):
                continue
            if shard.rows[name] != expected or tuple(part.shape[1:]) != shape[1:]:
                raise CheckpointError(f"The rows of '{name}' in the checkpoint's files do not make a whole.")
            whole[expected : expected + len(part)] = part
            expected += len(part)
        if expected != shape[0]:
            raise CheckpointError(f"{shape[0] - expected} rows of '{name}' are missing in the checkpoint's files.")
        return whole

    def _read(self, shard: Shard, name: str) -> Tensor:
        with safe_open(self._folder / shard.file, framework="pt") as file:
            found: Tensor = file.get_tensor(name)
        return found


def digest_of(tensors: Mapping[str, Tensor], body: str = "") -> str:
    """Return the digest of a checkpoint's text and its tensors, bit by bit."""
    digest = hashlib.sha256(body.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
