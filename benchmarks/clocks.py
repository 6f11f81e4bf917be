"""Clocks for a step: of the process, of the device, and of whoever waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from benchmarks.pairs import seconds


class Clock(Protocol):
    """A clock for a function."""

    def seconds(self, work: Callable[[], None]) -> float:
        """Return the duration of a call, including all work that it launched."""
        ...


@dataclass(frozen=True, kw_only=True)
class ProcessClock:
    """Processor time of this process: independent of other processes, correct only for one thread."""

    def seconds(self, work: Callable[[], None]) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start


@dataclass(frozen=True, kw_only=True)
class WallClock:
    """Elapsed time, for several threads."""

    def seconds(self, work: Callable[[], None]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class CudaClock:
    """Events on the current stream, synchronised before and after."""

    def seconds(self, work: Callable[[], None]) -> float:
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


@dataclass(frozen=True, kw_only=True)
class ElapsedClock:
    """Elapsed time until the device is idle again, from when it is idle: what a user waits for."""

    device: torch.device

    def seconds(self, work: Callable[[], None]) -> float:
        return seconds(work, self.device)


def clock_for(device: torch.device, *, num_threads: int) -> Clock:
    """Return the right clock for a device."""
    if device.type == "cuda":
        return CudaClock()
    return ProcessClock() if num_threads == 1 else WallClock()
