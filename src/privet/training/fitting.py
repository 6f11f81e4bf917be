"""A whole private run on pairs of inputs and targets, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from privet.accounting.guarantee import Guarantee
from privet.gradients.engines.engine import Engine
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.batching import MapDataset
from privet.training.folder import RunFolder
from privet.training.launch.replay import Launch
from privet.training.performance import Performance, chosen_performance
from privet.training.schedules import LearningRate, Schedule
from privet.training.start import privatize
from privet.training.tracking.progress import Progress

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
Losses = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class _PlainSgd:
    """Makes plain SGD. A class, because processes of a search cannot be sent a lambda."""

    learning_rate: float
    momentum: float

    def __call__(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return SGD(parameters, lr=self.learning_rate, momentum=self.momentum)


def sgd(*, learning_rate: float, momentum: float = 0.0) -> MakeOptimizer:
    """Return a maker of plain SGD."""
    return _PlainSgd(learning_rate=learning_rate, momentum=momentum)


def fit_privately(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: MapDataset,
    plan: Plan,
    losses: Losses,
    *,
    performance: Performance | None = None,
    folder: str | Path | RunFolder | None = None,
    schedule: Schedule | None = None,
    averaging: ExponentialAverage | None = None,
    progress: Progress | None = None,
    seed: int | None = None,
    physical_batch_size: int | None = None,
    engine: Engine | None = None,
    launch: Launch | None = None,
) -> Guarantee:
    """Run a whole plan on data sets of (input, target) pairs and return the guarantee of the run.

    With ``averaging`` the model ends with the averaged weights. ``physical_batch_size``, ``engine`` and ``launch`` are
    deprecated: they belong into ``performance``.
    """
    former = {"physical_batch_size": physical_batch_size, "engine": engine, "launch": launch}
    chosen = chosen_performance("fit_privately", performance, former, stacklevel=3)

    def losses_of(inputs: Tensor, targets: Tensor) -> Tensor:
        return losses(model(inputs), targets)

    model.train()
    rate = None if schedule is None else LearningRate(optimizer, schedule, num_steps=plan.num_steps)
    session = privatize(
        model,
        optimizer,
        dataset,
        plan,
        performance=chosen,
        folder=folder,
        averaging=averaging,
        progress=progress,
        seed=seed,
    )
    with session:
        for step in session.steps():
            if rate is not None:
                rate.set(step.index)
            step.accumulate(losses_of)
            step.update()
    if averaging is not None:
        session.adopt_average()
    return session.guarantee()
