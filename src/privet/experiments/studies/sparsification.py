"""Random masks against no mask and against a falling learning rate, each tuned over as many rates.

The settings are those of Zhu and Blaschko, "Improving differentially private SGD via randomly sparsified gradients"
(2023), table 2, with Poisson sampling. Their comparison lacks the control: masks that grow during the run take away
noise and signal alike, as a falling learning rate does. Every arm of a setting has the same epsilon, and its learning
rate is chosen by training accuracy among the same candidates. Random streams are seeded: runs are repeatable, on public
data, and not private.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.experiments.building import on_device
from privet.mechanism.clipping import Threshold
from privet.mechanism.masking import Mask, NoMask, RandomMask
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.sampling import Poisson
from privet.mechanism.schedules import GradualCooling
from privet.mechanism.terms import Adjacency, Unit
from privet.models import dp_cnn, dp_cnn_small
from privet.plan import Plan
from privet.training.estimator import fit_privately
from privet.training.predictions import predict
from privet.training.replay import fastest_for
from privet.training.schedules import LinearDecay, Schedule

Row = dict[str, Any]
BASELINE, MASKED, DECAY = "no mask", "random mask", "falling learning rate"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train.

    Attributes:
        mask: Which coordinates take part.
        schedule: The course of the learning rate; None for a constant one.
        stretch: Epochs over those of the baseline, as the publication trained the masked arm longer.
    """

    mask: Mask
    schedule: Schedule | None
    stretch: float


ARMS = {
    BASELINE: Arm(mask=NoMask(), schedule=None, stretch=1.0),
    MASKED: Arm(mask=RandomMask(schedule=GradualCooling(final=0.9)), schedule=None, stretch=1.2),
    DECAY: Arm(mask=NoMask(), schedule=LinearDecay(final=0.1), stretch=1.2),
}


@dataclass(frozen=True, kw_only=True)
class SparsificationSettings:
    """One network on one data set at one epsilon.

    Attributes:
        name: What the rows call it.
        dataset: To load.
        build: Makes the network.
        batch_size: Expected logical batch size.
        epochs: Of the baseline.
        norm: Clipping threshold.
        learning_rates: Tried for every arm.
        epsilon: At delta 1e-5.
        published: The publication's test accuracies in percent, by arm.
        normalisation: Of the images; None for numbers from 0 to 1.
        num_examples: Training images that are used; None for all.
    """

    name: str
    dataset: str
    build: Callable[[], nn.Module]
    batch_size: int
    epochs: int
    norm: float
    learning_rates: tuple[float, ...]
    epsilon: float
    published: dict[str, float]
    normalisation: str | None = None
    num_examples: int | None = None
    delta: float = 1e-5

    def shortened(self, *, dataset: str, epochs: int, num_examples: int, batch_size: int) -> SparsificationSettings:
        """Return the same study with less of everything; its figures say nothing about the full one."""
        return replace(
            self,
            name=f"{self.name}, quick",
            dataset=dataset,
            epochs=epochs,
            num_examples=num_examples,
            batch_size=batch_size,
            learning_rates=self.learning_rates[:1],
            published={},
        )

    def plan(self, arm: Arm, dataset_size: int) -> Plan:
        """Return the plan of an arm; its noise is not calibrated yet."""
        epochs = round(self.epochs * arm.stretch)
        return Plan(
            sampling=Poisson.for_dataset(dataset_size=dataset_size, batch_size=self.batch_size, epochs=epochs),
            clipping=Threshold(norm=self.norm),
            noise=Gaussian(),
            mask=arm.mask,
            delta=self.delta,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.RECORD,
        )

    def plans(self, dataset_size: int) -> dict[str, Plan]:
        """Return the calibrated plans by arm. A mask costs nothing, so arms of one length share their noise."""
        noise: dict[float, Noise] = {}
        found = {}
        for name, arm in ARMS.items():
            plan = self.plan(arm, dataset_size)
            if arm.stretch not in noise:
                noise[arm.stretch] = plan.calibrated(epsilon=self.epsilon).noise
            found[name] = replace(plan, noise=noise[arm.stretch])
        return found


def fashion_settings(epsilon: float) -> SparsificationSettings:
    """Return DP-CNN/S on Fashion-MNIST; the threshold is the one that the scaling rule gives for no momentum."""
    published = {3.0: {BASELINE: 86.6, MASKED: 87.4}, 1.0: {BASELINE: 83.2, MASKED: 84.5}}
    return SparsificationSettings(
        name=f"Fashion-MNIST, DP-CNN/S, epsilon {epsilon:g}",
        dataset="fashion_mnist",
        build=dp_cnn_small,
        batch_size=2048,
        epochs=40,
        norm=1.0,
        learning_rates=(4.0, 2.0, 1.0),
        epsilon=epsilon,
        published=published.get(epsilon, {}),
    )


def cifar10_settings(epsilon: float) -> SparsificationSettings:
    """Return DP-CNN on CIFAR-10."""
    published = {3.0: {BASELINE: 62.8, MASKED: 64.3}, 1.0: {BASELINE: 52.5, MASKED: 55.1}}
    return SparsificationSettings(
        name=f"CIFAR-10, DP-CNN, epsilon {epsilon:g}",
        dataset="cifar10",
        build=dp_cnn,
        batch_size=1000,
        epochs=40,
        norm=1.0,
        learning_rates=(1.0, 0.5, 0.25),
        epsilon=epsilon,
        published=published.get(epsilon, {}),
        normalisation="standardized",
    )


def run_sparsification_study(
    settings: Sequence[SparsificationSettings], *, seeds: Sequence[int], device: torch.device
) -> Iterator[Row]:
    """Train every arm of every setting with every rate and seed, and yield one row of figures as each is known."""
    for setting in settings:
        split = load(setting.dataset, normalisation=setting.normalisation)
        train, test = (on_device(part, device) for part in (split.train, split.test))
        size = split.info.train_size if setting.num_examples is None else setting.num_examples
        train = ArrayDataset(features=train.features[:size], labels=train.labels[:size])
        plans = setting.plans(size)
        for seed in seeds:
            for name, arm in ARMS.items():
                for rate in setting.learning_rates:
                    began = time.monotonic()
                    model, epsilon = _trained(setting, arm, plans[name], rate, train, seed, device)
                    yield {
                        "setting": setting.name,
                        "arm": name,
                        "rate": rate,
                        "seed": seed,
                        "epsilon": epsilon,
                        "delta": setting.delta,
                        "steps": plans[name].num_steps,
                        "published": setting.published.get(name),
                        "accuracy": _accuracy(model, test),
                        "train_accuracy": _accuracy(model, train),
                        "seconds": round(time.monotonic() - began, 1),
                        "device": device.type,
                    }


def _trained(
    settings: SparsificationSettings,
    arm: Arm,
    plan: Plan,
    rate: float,
    train: ArrayDataset,
    seed: int,
    device: torch.device,
) -> tuple[nn.Module, float]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = settings.build().to(device)
    found = fit_privately(
        model,
        SGD(model.parameters(), lr=rate),
        train,
        plan,
        _losses,
        physical_batch_size=settings.batch_size * 5 // 4,
        launch=fastest_for(device) if isinstance(arm.mask, NoMask) else None,
        schedule=arm.schedule,
        seed=seed,
    )
    return model, found.epsilon


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _accuracy(model: nn.Module, part: ArrayDataset) -> float:
    return float(predict(model, part.features, part.labels).is_right.mean())
