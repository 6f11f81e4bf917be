"""Private training of one arm, as the studies of side effects share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.accounting.guarantee import Guarantee
from privet.datasets.arrays import ArrayDataset
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.training.fitting import fit_privately
from privet.training.performance import Performance
from privet.training.predictions import predict
from privet.training.schedules import LinearDecay
from privet.vocabulary import Adjacency, Unit


@dataclass(frozen=True, kw_only=True)
class ArmTraining:
    """Constants of one arm.

    Attributes:
        epsilon: Target; None trains without privacy, with the same batches, rate and number of steps.
        delta: Probability with which the bound may fail.
        clip_norm: Bound on one example's gradient.
        batch_size: Expected logical batch size.
        epochs: Expected uses of each record.
        learning_rate: Of SGD; that of the arm without privacy is multiplied by ``clip_norm``, as clipping does.
        momentum: Of SGD.
        final_rate: Share of the learning rate that is left at the end; it falls linearly to it.
    """

    epsilon: float | None = 3.0
    delta: float = 1e-5
    clip_norm: float = 0.1
    batch_size: int = 256
    epochs: int = 20
    learning_rate: float = 2.0
    momentum: float = 0.9
    final_rate: float = 1.0

    def plan(self, dataset_size: int) -> Plan:
        """Return the calibrated plan of the private arm."""
        assert self.epsilon is not None
        return Plan(
            sampling=Poisson.for_dataset(dataset_size=dataset_size, batch_size=self.batch_size, epochs=self.epochs),
            clipping=Threshold(norm=self.clip_norm),
            noise=Gaussian(),
            delta=self.delta,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.RECORD,
        ).calibrated(epsilon=self.epsilon)


def train_arm(
    build: Callable[[], nn.Module],
    train: ArrayDataset,
    training: ArmTraining,
    *,
    dataset_size: int,
    seed: int,
    device: torch.device,
) -> tuple[nn.Module, Guarantee | None]:
    """Train one network and return it with its guarantee; None without privacy.

    The seed makes the run repeatable and not private: studies are about public data.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build().to(device)
    if training.epsilon is None:
        _train_plainly(model, train, training, seed)
        return model, None
    plan = training.plan(dataset_size)
    found = fit_privately(
        model,
        SGD(model.parameters(), lr=training.learning_rate, momentum=training.momentum),
        train,
        plan,
        _losses,
        # Poisson batches rarely exceed their mean by this much, so that a step is one pass
        performance=Performance(physical_batch_size=math.ceil(1.25 * training.batch_size)),
        schedule=LinearDecay(final=training.final_rate),
        seed=seed,
    )
    return model, found


def with_best_rate(
    build: Callable[[], nn.Module],
    train: ArrayDataset,
    training: ArmTraining,
    rates: Sequence[float],
    *,
    seed: int,
    device: torch.device,
    held_out: int = 5_000,
) -> ArmTraining:
    """Return :func:`best_rate` with the last training examples held out, at most a fifth of them."""
    kept = len(train) - min(held_out, len(train) // 5)
    part, held = (
        ArrayDataset(features=train.features[own], labels=train.labels[own])
        for own in (slice(0, kept), slice(kept, None))
    )
    return best_rate(build, part, held, training, rates, seed=seed, device=device)


def best_rate(
    build: Callable[[], nn.Module],
    train: ArrayDataset,
    held: ArrayDataset,
    training: ArmTraining,
    rates: Sequence[float],
    *,
    seed: int,
    device: torch.device,
) -> ArmTraining:
    """Return the constants with the learning rate that is most accurate on examples that do not train.

    Each rate is tried in one run. The choice looks at the data and is not charged: it is for studies on public data,
    which try rates as the publications they repeat did. A single rate is returned without a trial.
    """
    if len(rates) == 1:
        return replace(training, learning_rate=rates[0])
    accuracies = []
    for rate in rates:
        trial = replace(training, learning_rate=rate)
        model, _ = train_arm(build, train, trial, dataset_size=len(train), seed=seed, device=device)
        accuracies.append(float(predict(model, held.features, held.labels).is_right.mean()))
    return replace(training, learning_rate=rates[accuracies.index(max(accuracies))])


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _train_plainly(model: nn.Module, train: ArrayDataset, training: ArmTraining, seed: int) -> None:
    rate = training.learning_rate * training.clip_norm
    optimizer = SGD(model.parameters(), lr=rate, momentum=training.momentum)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(training.epochs):
        for chosen in torch.split(torch.randperm(len(train), generator=generator), training.batch_size):
            features, labels = train.take(chosen)
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(model(features), labels))
            optimizer.step()
