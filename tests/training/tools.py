"""A small private run, and the parts of it that tests exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

from privet.mechanism.clipping import Threshold
from privet.mechanism.epoch_sampling import Shuffle
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.plan import Plan
from privet.training.session import Session, Step
from privet.vocabulary import Adjacency, Unit

CPU = torch.device("cpu")


def plan_of(
    sampling: Sampling, *, norm: float = 1.0, noise_multiplier: float = 1.0, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> Plan:
    return Plan(
        sampling=sampling,
        clipping=Threshold(norm=norm),
        noise=Gaussian(noise_multiplier=noise_multiplier),
        delta=1e-5,
        adjacency=adjacency,
        unit=Unit.RECORD,
    )


def poisson(steps: int = 4, rate: float = 0.5) -> Plan:
    return plan_of(Poisson(rate=rate, steps=steps, expected_batch_size=4.0))


def full_batch(steps: int = 3, **changes: float) -> Plan:
    return plan_of(FullBatch(steps=steps, expected_batch_size=8.0), **changes)


def shuffle(epochs: int = 3, batches: int = 4) -> Plan:
    return plan_of(Shuffle(batches=batches, epochs=epochs, expected_batch_size=2.0), adjacency=Adjacency.ZERO_OUT)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def plain_sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.5)


def examples(num: int = 8, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(num, 3, generator=generator), torch.randint(0, 2, (num,), generator=generator))


def losses_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda inputs, labels: functional.cross_entropy(model(inputs), labels, reduction="none")


def walk(step: Step, model: nn.Module) -> None:
    """Pass over the step's examples as a user's loop does."""
    for inputs, labels in step.microbatches():
        step.backward(losses_of(model)(inputs, labels))


def run(session: Session, model: nn.Module, *, at_most: int | None = None) -> int:
    """Take steps until the plan is used up, or ``at_most``; return how many were taken."""
    taken = 0
    if at_most == 0:
        return taken
    for step in session.steps():
        walk(step, model)
        step.update()
        taken += 1
        if taken == at_most:
            break
    return taken


def take_steps(session: Session, body: Callable[[Step], None]) -> None:
    """Run a user's loop whose body may break the rules."""
    with session:
        for step in session.steps():
            body(step)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()])


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([value.grad.detach().reshape(-1) for value in model.parameters() if value.grad is not None])


class Watched:
    """A data set that remembers which items were asked for, and may look around at each of them."""

    def __init__(self, inner: TensorDataset, look: Callable[[], None] = lambda: None) -> None:
        self.inner, self.look = inner, look
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        self.look()
        self.asked.append(index)
        return self.inner[index]


class Counting:
    """Counts the steps an optimizer really takes."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.steps = 0
        optimizer.register_step_post_hook(self._count)

    def _count(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
