"""The cost of the first steps of a session beyond plain steps: proof, experiments and the rest separately.

The time of ``accumulate`` is measured for every step, and within it the time of the proof on made-up examples, of the
experiments (the second defence behind the rules), and of both proofs on real examples. Passes through the model and
their examples are counted.
"""

from __future__ import annotations

import copy
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.contenders import OURS, Settings
from benchmarks.measure import make
from benchmarks.models import Batch, Size, losses_of
from benchmarks.pairs import now, seconds
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch
from privet.plan import Plan
from privet.training.performance import Performance
from privet.training.preflight import preflight
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

_PLAIN = next(contender for contender in OURS if contender.name == "non_private")
_PARTS = {"proof": "_proven", "limits": "_limits_of", "experiments": "_experiment"}


class _Stopwatch:
    """Sums the time of some functions, and counts the passes through a model within them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self._inside = "step"

    def clear(self) -> None:
        for counter in (self.seconds, self.passes, self.rows):
            counter.clear()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            outer, self._inside = self._inside, name
            begin = now(self.device)
            try:
                return function(*args, **named)
            finally:
                self.seconds[name] += now(self.device) - begin
                self._inside = outer

        return call

    def count(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.passes[self._inside] += 1
        self.rows[self._inside] += len(args[0])


@contextmanager
def _watched(watch: _Stopwatch, model: nn.Module) -> Iterator[None]:
    handle = model.register_forward_pre_hook(watch.count)
    patches = [
        mock.patch.object(preflight, function, watch.timed(name, getattr(preflight, function)))
        for name, function in _PARTS.items()
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
        handle.remove()


def full_batch(num_steps: int, batch_size: int) -> Plan:
    """Return a plan in which every step uses the whole batch."""
    return Plan(
        sampling=FullBatch(steps=num_steps, expected_batch_size=batch_size),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=Adjacency.ZERO_OUT,
        unit=Unit.RECORD,
    )


def first_steps(size: Size, device: torch.device, *, num_steps: int) -> dict[str, Any]:
    """Return the seconds of a plain step and of every first ``accumulate``, with their parts."""
    model, batch = make(size, size.batch_size, device=device, seed=0)
    plain = _plain_step(model, batch, device)
    watch, rows = _Stopwatch(device), []
    data = TensorDataset(*(part.cpu() for part in batch))
    plan = full_batch(num_steps, size.batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        _watched(watch, model),
        privatize(
            model, optimizer, data, plan, performance=Performance(physical_batch_size=size.batch_size)
        ) as session,
    ):
        for step in session.steps():
            watch.clear()
            whole = seconds(lambda step=step: step.accumulate(lambda x, y: losses_of(model(x), y)), device)  # type: ignore[misc]
            step.update()
            rows.append(_row(step.index, whole, watch, plain))
    return {"plain": plain, "batch": size.batch_size, "steps": rows}


def _plain_step(model: nn.Module, batch: Batch, device: torch.device) -> float:
    running = _PLAIN.setup(copy.deepcopy(model), Settings(logical_batch=len(batch[0])))
    return statistics.median([seconds(lambda: running.step([batch]), device) for _ in range(7)][2:])


def _row(index: int, whole: float, watch: _Stopwatch, plain: float) -> dict[str, Any]:
    parts = dict(watch.seconds)
    parts["step"] = whole - sum(parts.values())
    return {
        "step": index,
        "seconds": whole,
        "plain_steps": whole / plain,
        "parts": {
            name: {
                "seconds": value, "plain_steps": value / plain, "passes": watch.passes[name], "rows": watch.rows[name],
            }
            for name, value in parts.items()
        },
    }  # fmt: skip
