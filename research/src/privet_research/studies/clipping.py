"""What clipping does to accuracy, loss and confidence, with two controls: temperature scaling and automatic clipping.

The settings are those of Bu et al., "On the convergence and calibration of deep learning with differential privacy"
(figures 2 to 6 and table 3).

Every arm of one data set has the same sampling, noise multiplier, learning rate and number of steps, so every private
arm has the same guarantee. Random streams are seeded: runs are repeatable, on public data, and not private.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.attacks.membership import logistic_regression, loss_threshold
from privet.attacks.membership_verdict import AttackLimit, membership_report
from privet.datasets.arrays import ArrayDataset, Split
from privet.effects.confidence import reliability
from privet.effects.reliability import Binning
from privet.effects.temperature import fit_temperature
from privet.mechanism.clipping import Automatic, Clipping, KeepOrDrop, Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.runs.building import on_device
from privet.training.fitting import fit_privately
from privet.training.performance import Performance
from privet.training.predictions import Predictions, predict
from privet.vocabulary import Adjacency, Unit
from privet_research.studies.arms import AUTOMATIC, GLOBAL, LOCAL, NON_PRIVATE, SCALED

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ClippingSettings:
    """One data set's constants: those of the paper, and for its quick version fewer steps.

    Attributes:
        name: What the rows call the data set.
        load: Reads the data.
        build: Makes the network.
        batch_size: Expected logical batch size.
        epochs: Expected uses of each record.
        learning_rate: Of plain SGD.
        noise_multiplier: The same in all private arms.
        norm: Bound on one example (the paper's R).
        cutoff: Above which global clipping drops a gradient (the paper's Z).
        claimed_epsilon: What the paper reports, at delta 1e-5; None where there is no claim.
    """

    name: str
    load: Callable[[], Split]
    build: Callable[[], nn.Module]
    batch_size: int
    epochs: int
    learning_rate: float
    noise_multiplier: float
    norm: float
    cutoff: float
    claimed_epsilon: float | None
    delta: float = 1e-5

    def plan(self, clipping: Clipping, dataset_size: int) -> Plan:
        """Return the plan of a private arm."""
        return Plan(
            sampling=Poisson.for_dataset(dataset_size=dataset_size, batch_size=self.batch_size, epochs=self.epochs),
            clipping=clipping,
            noise=Gaussian(noise_multiplier=self.noise_multiplier),
            delta=self.delta,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.RECORD,
        )

    @property
    def rules(self) -> dict[str, Clipping | None]:
        """The arms that are trained, by name; None is training without privacy."""
        return {
            NON_PRIVATE: None,
            LOCAL: Threshold(norm=self.norm),
            GLOBAL: KeepOrDrop(norm=self.norm, cutoff=self.cutoff),
            AUTOMATIC: Automatic(norm=self.norm),
        }

    def shortened(self, epochs: int) -> ClippingSettings:
        """Return the same study with fewer epochs; its figures say nothing about the full one."""
        return replace(self, name=f"{self.name}, quick", epochs=epochs, claimed_epsilon=None)


def run_clipping_study(
    settings: ClippingSettings, *, seeds: Sequence[int], device: torch.device, arms: Sequence[str] | None = None
) -> Iterator[Row]:
    """Train every arm with every seed and yield one row of figures as each is known.

    Args:
        settings: What to train.
        seeds: One run per arm and seed.
        device: Where; the data live there for the whole run.
        arms: Names among ``settings.rules``; all by default.
    """
    split = settings.load()
    train, test = on_device(split.train, device), on_device(split.test, device)
    size = split.info.train_size
    limit = _limit(settings.plan(Threshold(norm=settings.norm), size))
    for seed in seeds:
        for arm, clipping in settings.rules.items():
            if arms is not None and arm not in arms:
                continue
            began = time.monotonic()
            model, epsilon = _trained(settings, clipping, train, size, seed, device)
            on_test = predict(model, test.features, test.labels)
            # As many members as non-members, so that the attack meets both sides equally often.
            on_train = predict(model, train.features[: len(test)], train.labels[: len(test)])
            facts: Row = {"dataset": settings.name, "seed": seed, "epsilon": epsilon, "delta": settings.delta}
            facts |= {"claimed_epsilon": None if clipping is None else settings.claimed_epsilon}
            facts |= {"seconds": round(time.monotonic() - began, 1), "device": device.type, "epochs": settings.epochs}
            yield {"arm": arm, **facts, **_figures(on_test, on_train, None if clipping is None else limit)}
            if arm == LOCAL:
                heated_train = on_train.at_temperature(fit_temperature(on_test))
                yield {"arm": SCALED, **facts, **_figures(cross_fitted(on_test), heated_train, limit)}


def _limit(plan: Plan) -> AttackLimit:
    return AttackLimit(event=plan.event, adjacency=plan.adjacency)


def _trained(
    settings: ClippingSettings,
    clipping: Clipping | None,
    train: ArrayDataset,
    size: int,
    seed: int,
    device: torch.device,
) -> tuple[nn.Module, float | None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = settings.build().to(device)
    optimizer = SGD(model.parameters(), lr=settings.learning_rate)
    if clipping is None:
        _train_openly(model, optimizer, train, settings, seed)
        return model, None
    # A Poisson batch is hardly ever twice its expected size, so a step is nearly always one pass.
    found = fit_privately(
        model,
        optimizer,
        train,
        settings.plan(clipping, size),
        _losses,
        # Poisson batches rarely exceed their mean by a quarter, so that a step is one pass
        performance=Performance(physical_batch_size=settings.batch_size * 5 // 4),
        seed=seed,
    )
    return model, found.epsilon


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _train_openly(model: nn.Module, optimizer: SGD, train: ArrayDataset, settings: ClippingSettings, seed: int) -> None:
    """Train without clipping and noise, over shuffled batches that stay on the device."""
    generator = torch.Generator(device=train.features.device).manual_seed(seed)
    model.train()
    for _ in range(settings.epochs):
        order = torch.randperm(len(train), generator=generator, device=train.features.device)
        for rows in torch.split(order, settings.batch_size):
            optimizer.zero_grad(set_to_none=True)
            _losses(model(train.features[rows]), train.labels[rows]).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def cross_fitted(predictions: Predictions) -> Predictions:
    """Return the predictions at temperatures fitted on the other half each: none is judged on what it was fitted to."""
    halves = (np.arange(predictions.num_examples) % 2 == 0, np.arange(predictions.num_examples) % 2 == 1)
    heated = np.empty_like(predictions.log_probabilities)
    for ours, others in (halves, halves[::-1]):
        temperature = fit_temperature(predictions.take(others))
        heated[ours] = predictions.take(ours).at_temperature(temperature).log_probabilities
    return Predictions(log_probabilities=heated, labels=predictions.labels)


def _figures(on_test: Predictions, on_train: Predictions, limit: AttackLimit | None) -> Row:
    ten, fifteen = (reliability(on_test, num_bins=bins) for bins in (10, 15))
    attack = membership_report(loss_threshold(on_train, on_test), limit)
    regression = membership_report(logistic_regression(on_train, on_test), limit)
    return {
        "accuracy": float(on_test.is_right.mean()),
        "train_accuracy": float(on_train.is_right.mean()),
        "loss": float(on_test.losses.mean()),
        "train_loss": float(on_train.losses.mean()),
        "brier": float(on_test.squared_errors.mean()),
        "ece_10": ten.expected_error,
        "mce_10": ten.largest_error,
        "ece_15": fifteen.expected_error,
        "mce_15": fifteen.largest_error,
        "ece_15_equal_mass": reliability(on_test, num_bins=15, binning=Binning.EQUAL_MASS).expected_error,
        "over_confidence": fifteen.over_confidence,
        "under_confidence": fifteen.under_confidence,
        "attack_auc": attack.area.value,
        "attack_auc_limit": attack.area_limit,
        "regression_auc": regression.area.value,
        "num_test": on_test.num_examples,
    }
