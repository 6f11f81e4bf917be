"""Contenders that misbehave in a known way, and a short way to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.clocks import ProcessClock
from benchmarks.contenders import Contender, Option, Privet, Role, Running, Settings
from benchmarks.machine import Precision
from benchmarks.measure import Plan, measure
from benchmarks.models import WORKLOADS, Batch, Scale
from benchmarks.records import Row
from privet.gradients.engines.bookkeeping import BookKeeping

BOOKKEEPING = Privet(name="privet_bookkeeping", engine=BookKeeping())


@dataclass(frozen=True, kw_only=True)
class Flawed:
    """Clips like privet, then spoils the sum, or raises at a chosen step."""

    name: str = "flawed"
    role: Role = Role.RIVAL
    option: Option = Option.EAGER
    noise_dtype: str = "float32"
    leaves_out: tuple[str, ...] = ()
    scale: float = 1.0
    raises_at_step: int | None = None
    raises_at_setup: bool = False
    takes_one_batch: bool = False

    def setup(self, model: nn.Module, settings: Settings) -> Running:
        if self.raises_at_setup:
            raise ModuleNotFoundError("No module named 'flawed'")
        return RunningFlawed(self, BOOKKEEPING.setup(model, settings))


class RunningFlawed:
    def __init__(self, flaws: Flawed, inner: Running) -> None:
        self._flaws, self._inner, self._steps = flaws, inner, 0

    def step(self, parts: Sequence[Batch]) -> None:
        self._steps += 1
        if self._steps == self._flaws.raises_at_step:
            raise RuntimeError("out of | luck")
        if self._flaws.takes_one_batch and len(parts) > 1:
            raise RuntimeError("one batch at a time")
        self._inner.step(parts)

    def clipped_sum(self, batch: Batch) -> Mapping[str, Tensor]:
        found = self._inner.clipped_sum(batch)
        return {name: value * self._flaws.scale for name, value in found.items() if name not in self._flaws.leaves_out}

    def close(self) -> None:
        self._inner.close()


def measured(
    model: str, contenders: Sequence[Contender], *, rounds: int = 1, budget: float = 600.0, accumulate: int = 1
) -> dict[str, Row]:
    workload = WORKLOADS[model]
    size = workload.sizes[Scale.TINY]
    rows = measure(
        workload,
        size,
        contenders,
        device=torch.device("cpu"),
        settings=Settings(logical_batch=size.batch_size),
        precision=Precision.FP32,
        clock=ProcessClock(),
        plan=Plan(rounds=rounds, warm_up=1, min_sample_seconds=0.0, budget_seconds=budget, accumulate=accumulate),
    )
    return {row.contender: row for row in rows}
