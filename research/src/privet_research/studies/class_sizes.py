"""Rarer classes: what becomes of a class under privacy when it has fewer examples (Xu and Chen, 2026, E.1).

The network learns 3,000 digits of each class but fewer fives. The publication's epsilon is lost in print, so several
are run; so are its epochs, threshold and learning rate (RECONSTRUCTED). At each epsilon the learning rate is chosen
once per seed, on the rarest fives, by training images that no arm learns from; there every class counts the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.models.convolutional import lenet5
from privet.runs.building import on_device
from privet_research.studies.attacked_arm import attacked_row
from privet_research.studies.effects_training import ArmTraining, best_rate

Row = dict[str, Any]
PUBLISHED: Mapping[int, tuple[float, float]] = MappingProxyType(
    {100: (71, 60), 500: (93, 83), 1000: (96, 96), 3000: (97, 97)}
)
_WATCHED = 5


@dataclass(frozen=True, kw_only=True)
class ClassSizeSettings:
    """Constants of the study.

    Attributes:
        epsilons: Targets, one table each.
        sizes: How many fives there are.
        published: Accuracy and accuracy under attack of the paper, in percent, by size.
        others: Examples of every other class.
        num_held_out: Further examples of every class, by which the learning rate is chosen.
        learning_rates: Rates to try at each epsilon.
        training: The other constants of every arm.
    """

    epsilons: tuple[float, ...] = (3.0, 8.0, 30.0)
    sizes: tuple[int, ...] = tuple(PUBLISHED)
    published: Mapping[int, tuple[float, float]] = field(default_factory=lambda: PUBLISHED)
    others: int = 3000
    num_held_out: int = 500
    learning_rates: tuple[float, ...] = (0.5, 1.0)
    training: ArmTraining = field(
        default_factory=lambda: ArmTraining(batch_size=1024, epochs=60, clip_norm=1.0, final_rate=0.02)
    )

    def shortened(self) -> ClassSizeSettings:
        """Return a small version; its figures say nothing about the full one, so it names no published ones."""
        return replace(
            self,
            epsilons=(3.0, 30.0),
            sizes=(100, 600),
            published={},
            others=600,
            learning_rates=(0.5,),
            training=replace(self.training, batch_size=256, epochs=4),
        )


def run_class_size_study(settings: ClassSizeSettings, *, seeds: Sequence[int], device: torch.device) -> Iterator[Row]:
    """Train one network per epsilon, number of fives and seed, and yield what becomes of the fives."""
    split = load("mnist")
    watched = split.test.labels == _WATCHED
    fives = on_device(ArrayDataset(features=split.test.features[watched], labels=split.test.labels[watched]), device)
    held = on_device(_by_class(split.train, settings.others, [settings.num_held_out] * 10), device)
    for seed in seeds:
        for epsilon in settings.epsilons:
            own = replace(settings.training, epsilon=epsilon)
            rarest = on_device(_with_fives(split.train, min(settings.sizes), settings.others), device)
            own = best_rate(lenet5, rarest, held, own, settings.learning_rates, seed=seed, device=device)
            for size in settings.sizes:
                train = on_device(_with_fives(split.train, size, settings.others), device)
                paper = settings.published.get(size, (None, None))
                yield {
                    "arm": f"{size} fives, epsilon {epsilon:g}",
                    "dataset": "mnist",
                    "class_size": size,
                    "target_epsilon": epsilon,
                    "paper_accuracy": paper[0],
                    "paper_attacked_accuracy": paper[1],
                    **attacked_row(
                        lenet5,
                        train,
                        fives,
                        own,
                        num_rates_tried=len(settings.learning_rates),
                        num_attacked=len(fives),
                        seed=seed,
                        device=device,
                    ),
                }


def _with_fives(train: ArrayDataset, size: int, others: int) -> ArrayDataset:
    """Return the first examples of each class: ``size`` of the watched one, ``others`` of each other."""
    return _by_class(train, 0, [size if label == _WATCHED else others for label in range(10)])


def _by_class(train: ArrayDataset, first: int, counts: Sequence[int]) -> ArrayDataset:
    """Return so many examples of each class, from the given place among its own on."""
    places = [(train.labels == label).nonzero().squeeze(1) for label in range(10)]
    chosen = [own[first : first + count] for own, count in zip(places, counts, strict=True)]
    features, labels = train.take(torch.cat(chosen))
    return ArrayDataset(features=features, labels=labels)
