"""The ordinary session as a contender: sampling, loading, ledger, clipping, noise and update, as a user runs them.

The data set lies in device memory. The ledger is in a new folder, and no checkpoint is due within the timed steps.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privet as pv
from benchmarks.contenders import Contender, NoClippedSum, Option, Role, Settings, trained_parameters
from benchmarks.models import Batch, losses_of

_NUM_STEPS = 100_000  # of the plan: more than any measurement takes
_STEPS_BEFORE_COMPARISON = 6  # in which programs are proven and recorded


@dataclass(frozen=True, kw_only=True)
class PrivetSession:
    """``privatize`` and a loop over ``steps()`` with ``step.accumulate`` and ``step.update``.

    Attributes:
        performance: How steps are computed; the physical batch size is that of the measurement.
        rate: Sampling rate of an example. At 1 every batch has the expected size; below 1 the sizes are random, and a
            physical batch has room for four standard deviations more than the expected size.
    """

    name: str
    performance: pv.Performance
    rate: float = 1.0
    role: Role = Role.PRIVET
    option: Option = Option.EAGER
    noise_dtype: str = "float64"

    def setup(self, model: nn.Module, settings: Settings) -> RunningSession:
        """Keep the model; the session begins with the first step, which brings the data."""
        return RunningSession(self, model, settings)


class RunningSession:
    """:class:`PrivetSession` bound to a model."""

    def __init__(self, choice: PrivetSession, model: nn.Module, settings: Settings) -> None:
        self._choice, self._model, self._settings = choice, model, settings
        self._session: pv.Session | None = None
        self._steps: Iterator[Any] = iter(())
        self._num_examples = 0

    def _begin(self, parts: Sequence[Batch]) -> None:
        choice, model = self._choice, self._model
        times = round(1 / choice.rate)
        whole = [
            torch.cat(tensors).repeat(times, *[1] * (tensors[0].dim() - 1)) for tensors in zip(*parts, strict=True)
        ]
        self._num_examples = sum(len(inputs) for inputs, _ in parts)
        room = math.ceil(4 * math.sqrt(self._num_examples * (1 - choice.rate)))
        plan = pv.Plan(
            sampling=pv.Poisson(rate=choice.rate, steps=_NUM_STEPS, expected_batch_size=float(self._num_examples)),
            clipping=pv.Threshold(norm=self._settings.clip_norm),
            noise=pv.Gaussian(noise_multiplier=self._settings.noise_multiplier or 1.0),
            delta=1e-5,
            adjacency=pv.Adjacency.ADD_REMOVE,
            unit=pv.Unit.RECORD,
        )
        # Sums are compared at steps that leave the weights as they are.
        rate = self._settings.learning_rate if self._settings.noise_multiplier else 0.0
        self._session = pv.privatize(
            model,
            torch.optim.SGD(trained_parameters(model), lr=rate),
            TensorDataset(*whole),
            plan,
            performance=replace(choice.performance, physical_batch_size=len(parts[0][0]) + room),
            folder=Path(tempfile.mkdtemp(), "run") if self._settings.noise_multiplier else None,
            checkpoint_every=_NUM_STEPS if self._settings.noise_multiplier else None,
        )
        self._session.__enter__()
        self._steps = self._session.steps()

    def _losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        with self._settings.precision(inputs.device):
            return losses_of(self._model(inputs), labels)

    def _accumulated(self, parts: Sequence[Batch]) -> Any:
        if self._session is None:
            self._begin(parts)
        if sum(len(inputs) for inputs, _ in parts) != self._num_examples:
            raise ValueError(f"The session was begun with {self._num_examples} examples a step; begin another one.")
        step = next(self._steps)
        step.accumulate(self._losses)
        return step

    def step(self, parts: Sequence[Batch]) -> None:
        """Take the next step of the session."""
        self._accumulated(parts).update()

    def clipped_sum(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the sum before noise of a step late enough to be launched as later steps are."""
        if self._choice.rate < 1:
            raise NoClippedSum("every step has other examples")
        for _ in range(_STEPS_BEFORE_COMPARISON):
            self.step([batch])
        last = self._accumulated([batch])
        clipped = last._clipped
        layout, flat = clipped.layout, clipped.flat.clone()
        last.update()
        named = zip(layout.names, layout.slices, layout.shapes, strict=True)
        return {name: flat[where].view(shape) for name, where, shape in named}

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.__exit__(None, None, None)


def session_contenders() -> tuple[Contender, ...]:
    """Return the sessions that are compared: the defaults of privet first."""
    return (
        PrivetSession(name="session", performance=pv.Performance()),
        PrivetSession(name="session_eager", performance=pv.Performance(launch=pv.launch.Eager())),
        PrivetSession(
            name="session_graph", performance=pv.Performance(launch=pv.launch.CudaGraph()), option=Option.GRAPH
        ),
        PrivetSession(name="session_random", performance=pv.Performance(), rate=1 / 8),
    )
