"""How accurate a small network on scattering features can be at one epsilon, with the choice on held-out images.

A tenth of the training images is held out. Beginning with the published setting, one setting after the other is
changed, and the change is kept where the held-out accuracy is better. The best setting is then trained on all training
images for every seed, and tested once. Every setting that was tried is a row. The choice reads private data and is not
charged, as in the publications. Streams are seeded, on public data: runs are repeatable, and not private.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from dp_accounting import dp_event
from torch import Tensor, nn
from torch.optim import SGD

from privet.accounting.calibration import calibrate_noise
from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.datasets.scattering import Scattering
from privet.mechanism.clipping import Threshold
from privet.mechanism.masking import NoMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.models import h_cnn, h_cnn_small
from privet.plan import Plan
from privet.training.augmentation import mean_over_views
from privet.training.averaging import ExponentialAverage
from privet.training.performance import Performance
from privet.training.private_statistics.normalisation import PrivateNormalisation
from privet.training.schedules import LearningRate, LinearDecay
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from privet_research.studies.clipping_table import summarise
from privet_research.studies.mask_tasks import losses
from privet_research.studies.scattering_inputs import Groups, Scaling, Synthetic

Row = dict[str, Any]
_DELTA = 1e-5
_CHUNK = 2_000
_HELD_OUT = 0.1
_LARGEST_PHYSICAL_BATCH = 8_592
_PUBLISHED = Groups(num_groups=27)
# Bounds of a paid normalisation over the sizes that scaled channels have: about one.
_ROOM = 2.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to train.

    Attributes:
        scaling: Of the features, at no cost.
        share: Share of the budget that pays for noisy means and variances of the scaled channels; 0 for none.
        learning_rate: Of plain descent.
        final_rate: The share of the learning rate that is left at the end; 1 for a constant rate.
        batch_size: Expected logical batch size.
        epochs: Of the run.
        num_views: One for the images, two for the images and their mirror images.
        norm: Clipping threshold.
    """

    scaling: Scaling = _PUBLISHED
    share: float = 0.0
    learning_rate: float = 4.0
    final_rate: float = 1.0
    batch_size: int = 8_192
    epochs: int = 60
    num_views: int = 1
    norm: float = 1.0

    @property
    def title(self) -> str:
        """Every value, in words."""
        paid = f", {self.share:.0%} for normalisation" if self.share else ""
        falling = "" if self.final_rate == 1 else f" falling to {self.final_rate:g} of it"
        return (
            f"{self.scaling.title}{paid}, batch {self.batch_size}, {self.epochs} epochs, rate "
            f"{self.learning_rate:g}{falling}, views {self.num_views}, threshold {self.norm:g}"
        )

    def plan(self, dataset_size: int) -> Plan:
        """Return the plan without its noise."""
        return Plan(
            sampling=Poisson.for_dataset(
                dataset_size=dataset_size, batch_size=min(self.batch_size, dataset_size - 1), epochs=self.epochs
            ),
            clipping=Threshold(norm=self.norm),
            noise=Gaussian(),
            mask=NoMask(),
            delta=_DELTA,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.RECORD,
        )

    def paid(self, epsilon: float, num_channels: int, dataset_size: int) -> PrivateNormalisation | None:
        """Return the release of means and variances that the share pays for; None without one."""
        if not self.share:
            return None
        whole = calibrate_noise(dp_event.GaussianDpEvent, epsilon=epsilon, delta=_DELTA, adjacency=Adjacency.ADD_REMOVE)
        # squared signal-to-noise ratios of Gaussian releases add up: this is the share's part of the budget
        multiplier = whole / math.sqrt(self.share)
        bounds = (_ROOM,) * num_channels
        return PrivateNormalisation(bounds=bounds, dataset_size=dataset_size, noise_multiplier=multiplier)


Change = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One data set at one epsilon.

    Attributes:
        name: What rows call it.
        dataset: To load.
        normalisation: Of the images.
        build: Makes the network for scaled features.
        epsilon: At delta 1e-5.
        start: The setting to begin with.
        changes: Rounds of changes; the best of a round and of what was before it goes on to the next.
        decays: Of the averages of the weights that are kept beside each run, which cost nothing.
        num_examples: Training images that are used, and test images at most; None for all.
    """

    name: str
    dataset: str
    normalisation: str | None
    build: Callable[[], nn.Module]
    epsilon: float
    start: Setting
    changes: tuple[tuple[Change, ...], ...]
    decays: tuple[float, ...] = (0.9, 0.97, 0.99)
    scattering: Scattering = field(default_factory=Scattering)
    num_examples: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Features:
    """Scattering features of the training and test images, mirrored ones beside them: ``[image, view, ...]``."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    image_shape: tuple[int, ...]

    @property
    def num_channels(self) -> int:
        return self.train.shape[2]


def _features(cell: Cell, device: torch.device) -> _Features:
    split = load(cell.dataset, normalisation=cell.normalisation)
    found = []
    for part in (split.train, split.test):
        images = part.features[: cell.num_examples or len(part)].to(device)
        views = [cell.scattering.features(view, device=device) for view in (images, images.flip(-1))]
        found += [torch.stack(views, 1), part.labels[: len(images)].to(device)]
    train, train_labels, test, test_labels = found
    return _Features(
        train=train,
        train_labels=train_labels,
        test=test,
        test_labels=test_labels,
        image_shape=tuple(split.train.features.shape[1:]),
    )


def run_scattering_records(
    cell: Cell, *, seeds: Sequence[int], device: torch.device, earlier: Sequence[Row] = ()
) -> Iterator[Row]:
    """Search on held-out images, then train the best setting for every seed, and yield rows as they are known.

    Rows of an earlier run are yielded again in their places and not trained again.
    """
    known = {(row["arm"], row["seed"]): row for row in earlier}
    features = _features(cell, device)
    best = yield from _searched(cell, features, device, known)
    for seed in seeds:
        for title, setting in {"best": best[0], "as published": cell.start}.items():
            row = known.get((f"{title}, on all images", seed))
            yield row or {
                "arm": f"{title}, on all images",
                "part": "test",
                "cell": cell.name,
                "setting": setting.title,
                **_measured(
                    cell, setting, features, seed, device, is_search=False, decay=best[1] if title == "best" else 0
                ),
            }


def _searched(
    cell: Cell, features: _Features, device: torch.device, known: Mapping[tuple[str, int], Row]
) -> Generator[Row, None, tuple[Setting, float]]:
    """Yield a row for each setting that is tried, and return the best with its decay."""
    best: tuple[float, Setting, float] | None = None
    tried: set[str] = set()
    for round_ in ((),), *cell.changes:
        before = cell.start if best is None else best[1]
        for change in round_:
            setting = replace(before, **dict(change))
            if setting.title in tried:
                continue
            tried.add(setting.title)
            arm = f"held out: {setting.title}"
            row = known.get((arm, 0)) or {
                "arm": arm,
                "part": "held out",
                "cell": cell.name,
                "setting": setting.title,
                **_measured(cell, setting, features, 0, device, is_search=True, decay=0),
            }
            yield row
            found = {float(decay): value for decay, value in row["by_decay"].items()}
            decay = max(found, key=lambda key: found[key])
            if best is None or found[decay] > best[0]:
                best = found[decay], setting, decay
    assert best is not None, "the first round has the published setting"
    return best[1], best[2]


def _measured(
    cell: Cell,
    setting: Setting,
    features: _Features,
    seed: int,
    device: torch.device,
    *,
    is_search: bool,
    decay: float,
) -> Row:
    """Train once, and return the accuracy on held-out images by decay, or that on test images at one decay."""
    began = time.monotonic()
    size = len(features.train)
    num_train = size - round(_HELD_OUT * size) if is_search else size
    views = slice(0, setting.num_views)
    scale = setting.scaling.over(cell.scattering, features.image_shape)
    train = _scaled(features.train[:num_train, views], scale)
    if is_search:
        test, labels = _scaled(features.train[num_train:, views], scale), features.train_labels[num_train:]
    else:
        test, labels = _scaled(features.test[:, views], scale), features.test_labels
    plan, paid = setting.plan(num_train), setting.paid(cell.epsilon, features.num_channels, num_train)
    if paid is None:
        plan = plan.calibrated(epsilon=cell.epsilon)
        guarantee = plan.guarantee()
    else:
        plan = paid.calibrated(plan, epsilon=cell.epsilon)
        guarantee = paid.guarantee(plan)
        norm = paid.release(train[:, 0], seed=seed)[0]
        train, test = _scaled(train, norm), _scaled(test, norm)
    decays = [0.0, *cell.decays] if is_search else [decay]
    found = _trained(cell, setting, plan, train, features.train_labels[:num_train], test, labels, seed, decays)
    return {
        "seed": seed,
        "epsilon": guarantee.epsilon,
        "delta": _DELTA,
        "steps": plan.num_steps,
        "accuracy": max(found.values()) if is_search else found[decay],
        "decay": max(found, key=lambda key: found[key]) if is_search else decay,
        "by_decay": {f"{key:g}": value for key, value in found.items()},
        "seconds": round(time.monotonic() - began, 1),
        "device": device.type,
    }


@torch.no_grad()
def _scaled(features: Tensor, scale: Callable[[Tensor], Tensor]) -> Tensor:
    """Return scaled features ``[image, view, ...]``, piece by piece, since the whole is large."""
    found = torch.empty_like(features, memory_format=torch.contiguous_format)
    for start in range(0, len(features), _CHUNK):
        piece = features[start : start + _CHUNK]
        found[start : start + _CHUNK] = scale(piece.flatten(0, 1)).view_as(piece)
    return found


def _trained(
    cell: Cell,
    setting: Setting,
    plan: Plan,
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    labels: Tensor,
    seed: int,
    decays: Sequence[float],
) -> dict[float, float]:
    """Train, and return the accuracy of the last weights (decay 0) and of averages by decay."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = cell.build().to(train.device)
    optimizer = SGD(model.parameters(), lr=setting.learning_rate)
    rate = LearningRate(optimizer, LinearDecay(final=setting.final_rate), num_steps=plan.num_steps)
    averages = {decay: ExponentialAverage(decay=decay).start(model) for decay in decays if decay}
    loss_of = mean_over_views(lambda inputs, targets: losses(model(inputs), targets))
    size = min(setting.batch_size + 4 * math.isqrt(setting.batch_size), _LARGEST_PHYSICAL_BATCH)
    dataset = ArrayDataset(features=train, labels=train_labels)
    performance = Performance(physical_batch_size=min(size, len(train)))
    with privatize(model, optimizer, dataset, plan, performance=performance, seed=seed) as session:
        for step in session.steps():
            if setting.final_rate != 1:
                rate.set(step.index)
            step.accumulate(loss_of)
            step.update()
            for average in averages.values():
                average.update(step.index)
    found = {}
    for decay in decays:
        with averages[decay].applied() if decay else nullcontext():
            found[decay] = _accuracy(model, test, labels)
    return found


@torch.no_grad()
def _accuracy(model: nn.Module, views: Tensor, labels: Tensor) -> float:
    """Return the share of right answers; the views of an image vote by the mean of their log-probabilities."""
    right = 0
    for inputs, targets in zip(torch.split(views, _CHUNK), torch.split(labels, _CHUNK), strict=True):
        votes = model(inputs.flatten(0, 1)).log_softmax(1).view(*inputs.shape[:2], -1).mean(1)
        right += int((votes.argmax(1) == targets).sum())
    return right / len(labels)


def records_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what was tried and what came of it as Markdown."""
    parts = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        own = [row for row in rows if row["cell"] == cell]
        lines = [
            "| tried on held-out images | accuracy, % | decay of the average | seconds |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row['setting']} | {100 * row['accuracy']:.2f} | {row['decay']:g} | {row['seconds']:.0f} |"
            for row in own
            if row["part"] == "held out"
        ]
        tests = [row for row in own if row["part"] == "test"]
        if tests:
            lines += [
                "",
                "| trained on all training images | test accuracy, % | epsilon | seeds |",
                "| --- | --- | --- | --- |",
            ]
        for arm in dict.fromkeys(row["arm"] for row in tests):
            found = [row for row in tests if row["arm"] == arm]
            shown = summarise([row["accuracy"] for row in found]).shown(100, 2)
            spent = max(row["epsilon"] for row in found)
            lines.append(f"| {arm}: {found[0]['setting']} | {shown} | {spent:.3f} | {len(found)} |")
        parts.append(f"## {cell}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n\nMeans with standard errors over seeds.\n"


_SCALINGS: tuple[Change, ...] = (
    (("share", 0.03),),
    (("scaling", Synthetic(offset=0.1)),),
    (("scaling", Synthetic(offset=0.1)), ("share", 0.03)),
    (("scaling", Synthetic(offset=1.0)),),
    (("scaling", Groups(num_groups=9)),),
    (("scaling", Groups(num_groups=81)),),
)


def cifar10_cell(epsilon: float) -> Cell:
    """Return H-CNN on CIFAR-10."""
    rate = 4.0 if epsilon > 2 else 2.0
    return Cell(
        name=f"CIFAR-10, H-CNN, epsilon {epsilon:g}",
        dataset="cifar10",
        normalisation="imagenet",
        build=partial(h_cnn, num_groups=None),
        epsilon=epsilon,
        start=Setting(learning_rate=rate),
        changes=(
            _SCALINGS,
            ((("num_views", 2),),),
        ),
    )


def fashion_cell(epsilon: float) -> Cell:
    """Return H-CNN/S on Fashion-MNIST."""
    rate = 4.0 if epsilon > 2 else 2.0
    return Cell(
        name=f"Fashion-MNIST, H-CNN/S, epsilon {epsilon:g}",
        dataset="fashion_mnist",
        normalisation=None,
        build=partial(h_cnn_small, num_groups=None),
        epsilon=epsilon,
        start=Setting(learning_rate=rate, batch_size=2_048, epochs=40),
        changes=(
            _SCALINGS,
            ((("num_views", 2),),),
        ),
    )


def quick_cell(cell: Cell) -> Cell:
    """Return a cell for two processor cores; its figures say nothing about the full one."""
    return replace(
        cell,
        name=f"{cell.name}, quick",
        dataset="fashion_mnist_small",
        normalisation=None,
        build=partial(h_cnn_small, num_groups=None),
        start=replace(cell.start, batch_size=64, epochs=2, scaling=Groups(num_groups=9)),
        changes=((_SCALINGS[0], _SCALINGS[2]), ((("num_views", 2),),)),
        num_examples=300,
    )
