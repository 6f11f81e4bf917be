"""Data sets for worker processes, which import this file by its name."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate


def tensors(num: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num, 3, generator=generator), torch.randint(0, 2, (num,), generator=generator)


class Files:
    """Items that a worker can read; in memory they are not."""

    def __init__(self, num: int = 8) -> None:
        self._parts = list(zip(*tensors(num), strict=True))

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Any:
        return self._parts[index]


class Failing(Files):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise OSError("unreadable")
        return super().__getitem__(index)


class Dying(Files):
    """Kills the process that reads it, as long as a file is there."""

    def __init__(self, fuse: Path) -> None:
        super().__init__()
        self.fuse = fuse

    def __getitem__(self, index: int) -> Any:
        if index == 5 and self.fuse.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Unwelcome(Files):
    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("this data set cannot be opened twice")


class Random(Files):
    """Draws anew at every reading."""

    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return inputs + torch.randn(3), label


class Looking(Files):
    """Notes for every reading how many rounds the ledger on disk has charged by then."""

    def __init__(self, ledger: Path, notes: Path, num: int = 8) -> None:
        super().__init__(num)
        self.ledger, self.notes = ledger, notes

    def __getitem__(self, index: int) -> Any:
        rows = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        charged = sum(row["body"]["count"] for row in rows if row["kind"] == "reserve")
        with open(self.notes, "a") as file:
            file.write(f"{os.getpid()} {index} {charged}\n")
        return super().__getitem__(index)


SECRET_CLASSES = (
    *("Streams", "KeystreamNoise", "DeviceNoise", "Ledger", "LedgerFile", "Session", "PreparedRun"),
    *("Generator", "PCG64DXSM", "SeedSequence"),
)


def secrets_in_memory() -> list[str]:
    """Return the classes of secrets of which this process holds an instance."""
    held = set()
    for each in gc.get_objects():
        held |= {type(each).__name__, *(type(part).__name__ for part in gc.get_referents(each))}
    return sorted(held & set(SECRET_CLASSES))


def writable_memory() -> Iterator[bytes]:
    """Yield all memory of this process that is its own and can be written."""
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps.read().splitlines():
            where, rights, *rest = line.split()
            if not rights.startswith("rw") or (len(rest) > 3 and rest[3].startswith(("[v", "/dev"))):
                continue
            start, stop = (int(part, 16) for part in where.split("-"))
            memory.seek(start)
            while start < stop and (piece := memory.read(min(stop - start, 1 << 26))):
                yield piece
                start += len(piece)


class Searching(Files):
    """Writes down what the process that reads it holds."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            with open(self.folder / "memory", "wb") as file:
                file.writelines(writable_memory())
            (self.folder / "pid").write_text(str(os.getpid()))
            (self.folder / "descriptors").write_text("\n".join(map(os.path.realpath, descriptors())))
            (self.folder / "secrets").write_text(" ".join(secrets_in_memory()))
        return super().__getitem__(index)


def descriptors() -> list[str]:
    return [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]


@dataclass
class Pair:
    inputs: Tensor
    rest: UserDict[str, Tensor]


def as_pair(items: list[Any]) -> Pair:
    inputs, labels = default_collate(items)
    return Pair(inputs, UserDict(labels=labels))


def as_nothing_known(items: list[Any]) -> object:
    return {"hidden": {tuple(items)}}
