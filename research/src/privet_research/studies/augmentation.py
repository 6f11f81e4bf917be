"""Several views of a record on CIFAR-10 at one guarantee: Xu and Chen (2026, Appendix H) say that they gain 2 points.

DP-CNN at epsilon 3, batches of 1,000 and 40 epochs, as in the tables on masks. Views are shifts by up to four pixels
and reflections. Both arms try the same learning rates, and the first seed chooses by 5,000 training images that do not
train.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.models import dp_cnn
from privet.runs.building import on_device
from privet.training.augmentation import ShiftAndFlip, Views, mean_over_views
from privet.training.performance import Performance
from privet.training.predictions import predict
from privet.training.start import privatize
from privet_research.studies.effects_training import ArmTraining
from privet_research.studies.markdown import markdown

Row = dict[str, Any]
ONE, SEVERAL = "one view", "4 views"
ARMS: Mapping[str, int] = {ONE: 1, SEVERAL: 4}


@dataclass(frozen=True, kw_only=True)
class AugmentationSettings:
    """Sizes of the study.

    Attributes:
        training: Constants but for the learning rate.
        learning_rates: Tried for both arms.
        held_out: Training images by which the rate is chosen.
        num_examples: Training images that are used; None for all.
        dataset: Of images.
        normalisation: Of the images.
        at_once: Views in one pass.
    """

    training: ArmTraining = field(
        default_factory=lambda: ArmTraining(clip_norm=1.0, batch_size=1_000, epochs=40, momentum=0.0)
    )
    learning_rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    held_out: int = 5_000
    num_examples: int | None = None
    dataset: str = "cifar10"
    normalisation: str | None = "standardized"
    at_once: int = 1_250

    def shortened(self) -> AugmentationSettings:
        """Return a small version, whose figures say nothing about the full one."""
        training = replace(self.training, batch_size=100, epochs=1)
        return replace(self, training=training, learning_rates=(1.0,), held_out=100, num_examples=600)


def run_augmentation_study(
    settings: AugmentationSettings, *, seeds: Sequence[int], device: torch.device, earlier: Sequence[Row] = ()
) -> Iterator[Row]:
    """Yield one row for each run: trials at the first seed first, then the chosen rate at every seed."""
    split = load(settings.dataset, normalisation=settings.normalisation)
    train, test = on_device(_part(split.train, slice(0, settings.num_examples)), device), on_device(split.test, device)
    rest, held = _part(train, slice(0, -settings.held_out)), _part(train, slice(-settings.held_out, None))
    known = {(row["arm"], row["rate"], row["seed"], row["is_trial"]): row for row in earlier}
    for arm, num_views in ARMS.items():
        trials = []
        for rate in settings.learning_rates if len(settings.learning_rates) > 1 else ():
            trial = known.get((arm, rate, seeds[0], True)) or _run(
                settings, arm, num_views, rate, seeds[0], rest, held, is_trial=True
            )
            trials.append(trial)
            yield trial
        best = max(trials, key=lambda row: row["accuracy"])["rate"] if trials else settings.learning_rates[0]
        for seed in seeds:
            yield known.get((arm, best, seed, False)) or _run(
                settings, arm, num_views, best, seed, train, test, is_trial=False
            )


def _run(
    settings: AugmentationSettings,
    arm: str,
    num_views: int,
    rate: float,
    seed: int,
    train: ArrayDataset,
    judged: ArrayDataset,
    *,
    is_trial: bool,
) -> Row:
    began = time.monotonic()
    model, epsilon = _trained(settings, num_views, rate, seed, train)
    predictions = predict(model, judged.features, judged.labels)
    return {
        "arm": arm,
        "num_views": num_views,
        "rate": rate,
        "seed": seed,
        "is_trial": is_trial,
        "accuracy": float(predictions.is_right.mean()),
        "loss": float(predictions.losses.mean()),
        "epsilon": epsilon,
        "delta": settings.training.delta,
        "epochs": settings.training.epochs,
        "seconds": round(time.monotonic() - began, 1),
        "device": train.features.device.type,
    }


def _trained(
    settings: AugmentationSettings, num_views: int, rate: float, seed: int, train: ArrayDataset
) -> tuple[nn.Module, float]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = dp_cnn().to(train.features.device)
        transform = ShiftAndFlip(max_shift=4) if num_views > 1 else torch.Tensor.clone
        session = privatize(
            model,
            SGD(model.parameters(), lr=rate, momentum=settings.training.momentum),
            Views(dataset=train, transform=transform, num_views=num_views),
            settings.training.plan(len(train)),
            performance=Performance(physical_batch_size=max(1, settings.at_once // num_views)),
            seed=seed,
        )

        def losses(images: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(model(images), labels, reduction="none")

        with session:
            for step in session.steps():
                step.accumulate(mean_over_views(losses))
                step.update()
        return model, session.guarantee().epsilon


def _part(dataset: ArrayDataset, own: slice) -> ArrayDataset:
    return ArrayDataset(features=dataset.features[own], labels=dataset.labels[own])


def augmentation_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the study as Markdown: a line for each run that is no trial, and the trials below."""
    lines = [["arm", "rate", "seed", "accuracy %", "epsilon"]]
    for trial in (False, True):
        for row in rows:
            if row["is_trial"] is trial:
                name = f"{row['arm']}, trial on held-out training images" if trial else row["arm"]
                accuracy = 100 * row["accuracy"]
                lines.append([name, f"{row['rate']:g}", str(row["seed"]), f"{accuracy:.2f}", f"{row['epsilon']:.3f}"])
    return markdown(lines) + "\n"
