"""The feature-to-noise laboratory: two-layer networks on two-patch data, as in Xu and Chen (2026), Sections 3 to 6.1.

The publication's sizes, shares and noise levels are lost in print; those used here were chosen so that its claims can
be seen, and are named where they are. Everything is simulated on made-up data: nothing here is private or needs to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from privet.datasets.two_patch import CELL_NAMES, TwoPatch
from privet.effects.feature_to_noise import PatchCell, PatchSetting, pretraining_harms
from privet.effects.robustness import LargestChange, ProjectedGradient, robustness_curve
from privet_research.studies.patch_training import PatchTraining, initial_filters, measure_patches, train_patches
from privet_research.studies.two_layer_cnn import TwoLayerCnn

Row = dict[str, Any]
Array = NDArray[np.float64]
NOISE_STDS = (0.0, 0.05, 0.2, 0.5, 1.0)
ANGLES = (0, 30, 45, 60, 90, 135, 180)


@dataclass(frozen=True, kw_only=True)
class LabSettings:
    """Sizes of the laboratory; the defaults stand for the published figure 2.

    Attributes:
        num_examples: Training examples, and as many test examples.
        num_filters: Filters per class.
        training: Constants of the simulated training: 40 epochs of 800 examples by default.
        attack_radius: Of the attack on the groups, in the largest change of a coordinate.
    """

    num_examples: int = 800
    num_filters: int = 20
    training: PatchTraining = field(default_factory=PatchTraining)
    attack_radius: float = 0.05


def run_groups(
    task: TwoPatch, noise_stds: Sequence[float], settings: LabSettings, *, seed: int, device: torch.device
) -> Iterator[Row]:
    """Train one network per noise level and yield a row for each of the four cells: loss, accuracy, under attack."""
    train, test = (task.draw(settings.num_examples, seed=2 * seed + part) for part in (0, 1))
    runs = len(noise_stds)
    filters = initial_filters(
        1, dimension=task.dimension, num_filters=settings.num_filters, seed=seed, device=device
    ).expand(runs, -1, -1)
    trained = train_patches(
        filters,
        _shared(train.inputs, runs, device),
        _shared(train.labels, runs, device),
        settings.training,
        noise_stds=torch.tensor(noise_stds),
        seed=seed,
    )
    outcome = measure_patches(trained, _shared(test.inputs, runs, device), _shared(test.labels, runs, device))
    for place, noise_std in enumerate(noise_stds):
        theory = theory_of(task, noise_std, settings)
        for cell, name in enumerate(CELL_NAMES):
            own = test.cells == cell
            found = PatchCell(feature_size=task.feature_sizes[cell], share=task.shares[cell])
            yield {
                "arm": f"noise {noise_std:g}",
                "seed": seed,
                "cell": name,
                "noise_std": noise_std,
                "feature_size": found.feature_size,
                "share": found.share,
                "feature_to_noise": _finite(theory.feature_to_noise(found)),
                "clip_factor": theory.clip_factor(found),
                "floor": theory.upper_loss(found).privacy,
                "loss": float(outcome.losses[place].cpu()[own].mean()),
                "accuracy": float(outcome.is_right[place].cpu()[own].double().mean()),
                "attacked_accuracy": _attacked(trained[place], test.inputs[own], test.labels[own], settings),
                "weight_length": float(trained[place].norm()),
            }


def _shared(values: Tensor, runs: int, device: torch.device) -> Tensor:
    return values.to(device).expand(runs, *values.shape)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def theory_of(task: TwoPatch, noise_std: float, settings: LabSettings) -> PatchSetting:
    """Return what the theory knows of a training."""
    return PatchSetting(
        dimension=task.dimension,
        num_filters=settings.num_filters,
        patch_noise_std=task.patch_noise_std,
        noise_std=noise_std,
        clip_norm=settings.training.clip_norm,
        learning_rate=settings.training.learning_rate,
        num_steps=settings.training.num_steps,
        num_examples=settings.num_examples,
    )


def _attacked(filters: Tensor, inputs: Tensor, labels: Tensor, settings: LabSettings) -> float:
    model = TwoLayerCnn(inputs.shape[2], num_filters=settings.num_filters).to(filters.device)
    with torch.no_grad():
        model.filters.weight.copy_(filters)
    attack = ProjectedGradient(norm=LargestChange(), bounds=None)
    return robustness_curve(model, inputs, labels, attack, radii=[settings.attack_radius]).points[-1].accuracy.value


def run_phase_map(
    sizes: Sequence[float], noise_stds: Sequence[float], settings: LabSettings, *, seed: int, device: torch.device
) -> Iterator[Row]:
    """Train one network per feature size and noise level, classes alike, and yield accuracies (figure 1)."""
    for size in sizes:
        task = TwoPatch(feature_sizes=(size,) * 4, shares=(0.25,) * 4)
        for row in train_and_measure([task] * len(noise_stds), noise_stds, settings, seed=seed, device=device):
            yield {"feature_size": size, **row}


def train_and_measure(
    tasks: Sequence[TwoPatch], noise_stds: Sequence[float], settings: LabSettings, *, seed: int, device: torch.device
) -> Iterator[Row]:
    """Train one network per task, all of one dimension; yield the accuracy, and accuracy and loss of the first cell."""
    parts = [
        [task.draw(settings.num_examples, seed=2 * (seed * len(tasks) + place) + part) for part in (0, 1)]
        for place, task in enumerate(tasks)
    ]
    (train, labels), (test, truth) = (
        (torch.stack([pair[part].inputs for pair in parts]), torch.stack([pair[part].labels for pair in parts]))
        for part in (0, 1)
    )
    filters = initial_filters(
        len(tasks), dimension=tasks[0].dimension, num_filters=settings.num_filters, seed=seed, device=device
    )
    trained = train_patches(
        filters,
        train.to(device),
        labels.to(device),
        settings.training,
        noise_stds=torch.tensor(noise_stds),
        seed=seed,
    )
    outcome = measure_patches(trained, test.to(device), truth.to(device))
    right, losses = outcome.is_right.cpu().double(), outcome.losses.cpu().double()
    for place, noise_std in enumerate(noise_stds):
        own = parts[place][1].cells == 0
        yield {
            "arm": f"noise {noise_std:g}",
            "seed": seed,
            "noise_std": noise_std,
            "accuracy": float(right[place].mean()),
            "first_accuracy": float(right[place][own].mean()) if bool(own.any()) else None,
            "first_loss": float(losses[place][own].mean()) if bool(own.any()) else None,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomCells:
    """Errors of trained networks over random settings, beside what the theory ranks them by.

    Attributes:
        errors: Test error of the class of share ``p``.
        ratios: ``p`` times the feature-to-noise ratio.
        sizes: The feature's length alone, as the control that knows nothing of noise.
    """

    errors: Array
    ratios: Array
    sizes: Array

    @property
    def correlation(self) -> float:
        """Spearman's rank correlation of ``p FNR`` with the error: -1 would be a perfect prediction."""
        return rank_correlation(self.ratios, self.errors)

    @property
    def control(self) -> float:
        """The same for the feature's length alone."""
        return rank_correlation(self.sizes, self.errors)


def random_cells(num_cells: int, *, seed: int, device: torch.device) -> RandomCells:
    """Train a network for each of many random settings of feature, noises, dimension, filters and share."""
    generator = np.random.default_rng(seed)
    shapes = [(dimension, filters) for dimension in (25, 50, 100) for filters in (5, 10, 20)]
    errors: list[float] = []
    ratios: list[float] = []
    sizes: list[float] = []
    for place, (dimension, filters) in enumerate(shapes):
        count = num_cells // len(shapes) + (place < num_cells % len(shapes))
        drawn = random_tasks(count, dimension, generator)
        noise_stds = [float(10**power) for power in generator.uniform(-1.3, 0.7, count)]
        settings = LabSettings(
            num_examples=400, num_filters=filters, training=PatchTraining(batch_size=50, num_steps=100)
        )
        rows = train_and_measure(drawn, noise_stds, settings, seed=seed * len(shapes) + place, device=device)
        for task, noise_std, row in zip(drawn, noise_stds, rows, strict=True):
            cell = PatchCell(feature_size=task.feature_sizes[0], share=task.shares[0])
            errors.append(1 - row["first_accuracy"])
            ratios.append(cell.share * theory_of(task, noise_std, settings).feature_to_noise(cell))
            sizes.append(cell.feature_size)
    return RandomCells(errors=np.array(errors), ratios=np.array(ratios), sizes=np.array(sizes))


def random_tasks(count: int, dimension: int, generator: np.random.Generator) -> list[TwoPatch]:
    """Return tasks with one feature per class, of one random length, and random shares and patch noise."""
    tasks = []
    for _ in range(count):
        size, share = float(generator.uniform(0.5, 8)), float(0.1 + 0.4 * expit(generator.normal()))
        tasks.append(
            TwoPatch(
                feature_sizes=(size, size, 0.0, 0.0),
                shares=(share, 1 - share, 0.0, 0.0),
                dimension=dimension,
                patch_noise_std=float(generator.uniform(0.1, 1.0)),
            )
        )
    return tasks


def rank_correlation(first: Array, second: Array) -> float:
    """Spearman's rank correlation; equal values share their mean rank. Zero where one side is constant."""
    ranks = [_ranks(values) for values in (first, second)]
    centred = [values - values.mean() for values in ranks]
    scale = math.sqrt(float((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float(centred[0] @ centred[1]) / scale if scale else 0.0


def _ranks(values: Array) -> Array:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places], dtype=np.float64)


def run_rotation(
    angles: Sequence[float], settings: LabSettings, *, seed: int, device: torch.device, noise_std: float = 0.2
) -> Iterator[Row]:
    """Pre-train without noise, then fine-tune with noise on features turned by each angle; from scratch comes first.

    The arm from scratch sees the same examples and the same noise. Training is short, as fine-tuning is.
    """
    task = TwoPatch.one_feature_per_class(size=4.0)
    public = task.draw(settings.num_examples, seed=3 * seed)
    fresh = initial_filters(1, dimension=task.dimension, num_filters=settings.num_filters, seed=seed, device=device)
    long = PatchTraining(num_steps=200)
    start = train_patches(
        fresh,
        _shared(public.inputs, 1, device),
        _shared(public.labels, 1, device),
        long,
        noise_stds=torch.zeros(1),
        seed=seed,
    )
    arms: list[tuple[str, float | None, Tensor]] = [("from scratch", None, fresh)]
    arms += [(f"{angle:g} degrees", angle, start) for angle in angles]
    for name, angle, filters in arms:
        turned = task.rotated(math.radians(angle or 0.0))
        train, test = (turned.draw(settings.num_examples, seed=3 * seed + part) for part in (1, 2))
        trained = train_patches(
            filters,
            _shared(train.inputs, 1, device),
            _shared(train.labels, 1, device),
            settings.training,
            noise_stds=torch.tensor([noise_std]),
            seed=seed,
        )
        outcome = measure_patches(trained, _shared(test.inputs, 1, device), _shared(test.labels, 1, device))
        yield {
            "arm": name,
            "seed": seed,
            "angle": angle,
            "noise_std": noise_std,
            "loss": float(outcome.losses.mean()),
            "accuracy": float(outcome.is_right.double().mean()),
            "predicted_worse_start": None if angle is None else pretraining_harms(math.radians(angle)),
        }


def run_laboratory(*, seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    """Run every part of the laboratory and yield its rows, each marked with its part."""
    sizes = (1.0, 2.0, 4.0, 8.0) if quick else (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    levels = (0.1, 0.3, 1.0, 10.0) if quick else (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
    short = LabSettings(training=PatchTraining(num_steps=100))
    for seed in seeds:
        for row in run_groups(TwoPatch(), NOISE_STDS, LabSettings(), seed=seed, device=device):
            yield {"part": "groups", **row}
        for row in run_rotation(ANGLES, short, seed=seed, device=device):
            yield {"part": "rotation", **row}
        found = random_cells(90 if quick else 400, seed=seed, device=device)
        yield {
            "part": "correlation",
            "arm": "random settings",
            "seed": seed,
            "num_cells": len(found.errors),
            "correlation": found.correlation,
            "control": found.control,
            "accuracy": float(1 - found.errors.mean()),
        }
        # Where noise wins, one network's accuracy is a matter of luck: the map is a mean over seeds.
        for row in run_phase_map(sizes, levels, LabSettings(), seed=seed, device=device):
            yield {"part": "phases", **row}
