"""The share of the weight watch in the time of private steps.

Every call of the watch is timed separately within ordinary steps. The device is synchronised around each call, which
overstates the share. Part of ``python -m benchmarks.recognition``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import TensorDataset

from benchmarks.measure import make
from benchmarks.models import Size, losses_of
from benchmarks.pairs import now
from benchmarks.session_start import full_batch
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.training.weight_watch.guard import LoopGuard

_WATCHED = ("pass_begins", "forward_ends", "before_noise", "look", "accept")


class _Stopwatch:
    """Sums the time of the outermost calls of some methods."""

    def __init__(self, device: torch.device) -> None:
        self.seconds, self._depth, self._device = 0.0, 0, device

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._depth += 1
            begin = now(self._device)
            try:
                return method(*args, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += now(self._device) - begin

        return call


def share_of_watch(size: Size, device: torch.device, *, num_steps: int) -> dict[str, Any]:
    """Return the median share in usual steps and in steps with a full check, and the times of every step."""
    model, batch = make(size, size.batch_size, device=device, seed=0)
    data = TensorDataset(*(part.cpu() for part in batch))
    plan = full_batch(num_steps, size.batch_size)
    watch, rows = _Stopwatch(device), []
    originals = {method: getattr(LoopGuard, method) for method in _WATCHED}
    for method, original in originals.items():
        setattr(LoopGuard, method, watch.timed(original))
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with privatize(
            model, optimizer, data, plan, performance=Performance(physical_batch_size=size.batch_size)
        ) as session:
            begin, before = now(device), watch.seconds
            for step in session.steps():
                for inputs, labels in step.microbatches():
                    step.backward(losses_of(model(inputs), labels))
                step.update()
                rows.append((now(device) - begin, watch.seconds - before))
                begin, before = now(device), watch.seconds
    finally:
        for method, original in originals.items():
            setattr(LoopGuard, method, original)
    # The first steps prove the program; steps around powers of two check all weights.
    usual = [row for number, row in enumerate(rows) if number > 2 and not _is_whole(number)]
    whole = [row for number, row in enumerate(rows) if number > 2 and _is_whole(number)]
    return {"usual": _share(usual), "whole": _share(whole), "steps": rows}


def _is_whole(number: int) -> bool:
    return not number & (number + 1) or not number & (number - 1)


def _share(rows: Sequence[tuple[float, float]]) -> float:
    return statistics.median(watched / whole for whole, watched in rows)
