"""Which way of measuring norms is fastest for a layer on this machine.

The planner times the strategies that fit a layer's shape once, on the first physical batch, and keeps the fastest.
Nothing about the data enters the choice but its shape, and no choice changes a result beyond rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privet.gradients.conv_strategies import ConvKernel, GroupedNormOnly, GroupedStore, PixelGram, Unfolded
from privet.gradients.per_example import Convolution, Explicit, Lookup, Outer, PerExample, TiedTable
from privet.gradients.strategies import (
    Gram,
    GramKernel,
    NormOnly,
    RankOne,
    SameRow,
    Squares,
    Store,
    Strategy,
    TableGram,
    Written,
)

STRATEGIES: Mapping[type, Sequence[Strategy]] = {
    Explicit: (Written(),),
    Outer: (RankOne(), Gram(), Store(), NormOnly(), GramKernel(block=64), GramKernel(block=128)),
    Lookup: (SameRow(),),
    TiedTable: (TableGram(), Store(), NormOnly()),
    Convolution: (
        PixelGram(),
        ConvKernel(store=True),
        ConvKernel(store=False),
        GroupedStore(),
        GroupedNormOnly(),
        Unfolded(by=Store(), keeps_convolution=False),
        Unfolded(by=Gram(), keeps_convolution=True),
    ),
}
"""The ways to measure each form; where several fit, they are timed."""

TRACEABLE: Mapping[type, Sequence[Strategy]] = {
    form: tuple(strategy for strategy in strategies if not isinstance(strategy, GramKernel | ConvKernel))
    for form, strategies in STRATEGIES.items()
}
"""Those made of tensor operations alone."""


@dataclass(kw_only=True)
class Planner:
    """Chooses a strategy per layer shape by timing, once."""

    strategies: Mapping[type, Sequence[Strategy]] = field(default_factory=lambda: STRATEGIES)
    chosen: dict[Hashable, Strategy] = field(default_factory=dict)
    _planned_for: dict[Hashable, int] = field(default_factory=dict)

    def measure(self, part: PerExample) -> tuple[Squares, PerExample]:
        """Measure norms by the chosen strategy; choose one first if the shape is new or the batch much larger."""
        key = (type(part), part.shape_key)
        strategy = self.chosen.get(key)
        if strategy is None or len(part) > 2 * self._planned_for[key]:
            strategy = self.chosen[key] = self._choose(part)
            self._planned_for[key] = len(part)
        elif not strategy.fits(part):  # a larger batch than planned for, over a memory limit
            strategy = self.chosen[key] = self._choose(part)
        return strategy.measure(part)

    def _choose(self, part: PerExample) -> Strategy:
        options = [strategy for strategy in self.strategies[type(part)] if strategy.fits(part)]
        if len(options) == 1 or isinstance(options[0], RankOne):
            return options[0]
        best = math.inf
        winner = options[0]
        for strategy in options:
            seconds = _time(strategy, part, give_up_at=2 * best)
            if seconds < best:
                best, winner = seconds, strategy
        return winner


def _time(strategy: Strategy, part: PerExample, *, give_up_at: float) -> float:
    """Return the least seconds of norm plus weighted sum; a try that is already hopeless is not repeated."""
    first = strategy.measure(part)[1]
    weights = torch.ones(len(part), dtype=_dtype(part), device=_device(part))
    into = torch.zeros_like(first[:1].in_full()[0])
    # several in a row on a device, or the time of launching would hide that of computing
    in_a_row = 4 if into.is_cuda else 1
    taken: list[float] = []
    for _ in range(3):
        _wait(into)
        start = time.perf_counter()
        for _ in range(in_a_row):
            strategy.measure(part)[1].add_weighted_sum(weights, into)
        _wait(into)
        taken.append((time.perf_counter() - start) / in_a_row)
        if taken[-1] > give_up_at:
            break
    return min(taken)  # the rest is what other programs on the machine took


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _factor(part: PerExample) -> Tensor:
    return part.gradients if isinstance(part, Explicit) else part.out_grads  # type: ignore[attr-defined]


def _dtype(part: PerExample) -> torch.dtype:
    return torch.promote_types(_factor(part).dtype, torch.float32)


def _device(part: PerExample) -> torch.device:
    return _factor(part).device
