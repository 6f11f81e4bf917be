"""Loss and accuracy in the course of training, reliability at its end, and other cutoffs: flat and layerwise clipping.

Figures 3 to 6 of Bu et al. ("On the convergence and calibration of deep learning with differential privacy"). The
constants are those of the clipping study. Layerwise arms clip every tensor by a bound of its own, as published: for
global clipping 1 times the flat bound for weights and a fifth of it for biases, for local clipping the flat bound for
both. They have the noise multiplier of the flat ones, so the same guarantee, and larger noise, because their bounds add
up. Random streams are seeded: runs are repeatable, on public data, and not private.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.datasets.arrays import ArrayDataset
from privet.effects.confidence import reliability
from privet.mechanism.clipping import Clipping, KeepOrDrop, Threshold
from privet.mechanism.grouping import Grouping, OneGroup, PerParameter
from privet.runs.building import on_device
from privet.training.performance import Performance
from privet.training.predictions import predict
from privet.training.start import privatize
from privet_research.studies.clipping import ClippingSettings
from privet_research.studies.markdown import markdown

Row = dict[str, Any]
NON_PRIVATE = "non-private"
_NUM_BINS = 15
# Of the bound on weights, for biases under global layerwise clipping.
_BIAS_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class CourseSettings:
    """What is trained.

    Attributes:
        clipping: Constants of the data set.
        is_layerwise: Whether layerwise arms are run, too.
        cutoffs: Further cutoffs of global clipping, of which only the end is reported.
        own_rates: Learning rates of global clipping beside the common one, of which only the end is reported. It makes
            gradients shorter by the cutoff over the bound, so that the common rate may be far too small for it.
        num_train: Training images, the first ones; None for all.
    """

    clipping: ClippingSettings
    is_layerwise: bool
    cutoffs: tuple[float, ...]
    own_rates: tuple[float, ...] = ()
    num_train: int | None = None

    def shortened(self) -> CourseSettings:
        """Return a small version; its figures say nothing about the full one."""
        return replace(
            self,
            clipping=self.clipping.shortened(3),
            cutoffs=self.cutoffs[::3],
            own_rates=self.own_rates[:1],
            num_train=4_000,
        )

    def arms(self, model: nn.Module) -> dict[str, tuple[Clipping, Grouping]]:
        """Return how each private arm clips; the bounds of layerwise ones follow the model's tensors."""
        norm, cutoff = self.clipping.norm, self.clipping.cutoff
        arms: dict[str, tuple[Clipping, Grouping]] = {
            "local, flat": (Threshold(norm=norm), OneGroup()),
            "global, flat": (KeepOrDrop(norm=norm, cutoff=cutoff), OneGroup()),
        }
        if self.is_layerwise:
            names = [name for name, _ in model.named_parameters()]
            local = (norm,) * len(names)
            kept = tuple(norm * (_BIAS_SHARE if name.endswith("bias") else 1.0) for name in names)
            arms["local, layerwise"] = (Threshold(norm=local), PerParameter())
            arms["global, layerwise"] = (KeepOrDrop(norm=kept, cutoff=cutoff), PerParameter())
        return arms


def mnist_course() -> CourseSettings:
    """Return figures 3 and 4: the cutoffs cover the axis of the right part of figure 3."""
    from privet_research.studies.catalogue import mnist_settings

    return CourseSettings(
        clipping=mnist_settings(), is_layerwise=False, cutoffs=(20.0, 50.0, 100.0, 200.0, 300.0, 400.0, 500.0)
    )


def cifar10_course() -> CourseSettings:
    """Return figures 5 and 6."""
    from privet_research.studies.catalogue import cifar10_settings

    return CourseSettings(clipping=cifar10_settings(), is_layerwise=True, cutoffs=(), own_rates=(0.15, 0.5, 1.5, 2.5))


def run_course_study(settings: CourseSettings, *, seeds: Sequence[int], device: torch.device) -> Iterator[Row]:
    """Train every arm with every seed and yield rows: its course epoch by epoch, its end, and its bins.

    The learning rate is that of the private arms. Plain training may diverge at it; its course then ends with a row
    that says so, and has no end and no bins.
    """
    split = settings.clipping.load()
    size = settings.num_train or split.info.train_size
    first = ArrayDataset(features=split.train.features[:size], labels=split.train.labels[:size])
    train, test = on_device(first, device), on_device(split.test, device)
    for seed in seeds:
        arms = settings.arms(settings.clipping.build())
        yield from _rows_of(NON_PRIVATE, _open_course(settings, train, seed, device), train, test, seed)
        for name, (clipping, grouping) in arms.items():
            models = _private_course(settings, clipping, grouping, train, size, seed, device)
            yield from _rows_of(name, models, train, test, seed)
        for cutoff in settings.cutoffs:
            clipping = KeepOrDrop(norm=settings.clipping.norm, cutoff=cutoff)
            *_, (_, model) = _private_course(settings, clipping, OneGroup(), train, size, seed, device)
            facts = {"arm": f"global, cutoff {cutoff:g}", "part": "cutoff", "cutoff": cutoff, "seed": seed}
            yield facts | _end(model, train, test)
        for rate in settings.own_rates:
            changed = replace(settings, clipping=replace(settings.clipping, learning_rate=rate))
            clipping = KeepOrDrop(norm=settings.clipping.norm, cutoff=settings.clipping.cutoff)
            *_, (_, model) = _private_course(changed, clipping, OneGroup(), train, size, seed, device)
            facts = {"arm": f"global, rate {rate:g}", "part": "own rate", "learning_rate": rate, "seed": seed}
            yield facts | _end(model, train, test)


def _end(model: nn.Module, train: ArrayDataset, test: ArrayDataset) -> Row:
    """Return the end of a course; a rate is chosen by the loss on training images."""
    found = predict(model, test.features, test.labels)
    on_train = predict(model, train.features[: len(test)], train.labels[: len(test)])
    bins = reliability(found, num_bins=_NUM_BINS)
    return {
        "accuracy": float(found.is_right.mean()),
        "loss": float(found.losses.mean()),
        "train_loss": float(on_train.losses.mean()),
        "ece": bins.expected_error,
        "mce": bins.largest_error,
    }


def _rows_of(
    arm: str, models: Iterator[tuple[int, nn.Module]], train: ArrayDataset, test: ArrayDataset, seed: int
) -> Iterator[Row]:
    for epoch, model in models:
        if not all(bool(value.isfinite().all()) for value in model.parameters()):
            yield {"arm": arm, "part": "diverged", "epoch": epoch, "seed": seed, "accuracy": None, "loss": None}
            return
        on_test = predict(model, test.features, test.labels)
        # As many training images as test images: enough for a curve.
        on_train = predict(model, train.features[: len(test)], train.labels[: len(test)])
        last = on_test
        yield {
            "arm": arm,
            "part": "course",
            "epoch": epoch,
            "seed": seed,
            "accuracy": float(on_test.is_right.mean()),
            "loss": float(on_test.losses.mean()),
            "train_loss": float(on_train.losses.mean()),
        }
    found = reliability(last, num_bins=_NUM_BINS)
    yield {
        "arm": arm,
        "part": "end",
        "seed": seed,
        "accuracy": float(last.is_right.mean()),
        "loss": float(last.losses.mean()),
        "ece": found.expected_error,
        "mce": found.largest_error,
        "over_confidence": found.over_confidence,
    }
    for place, one in enumerate(found.bins):
        if one.num_examples:
            yield {
                "arm": arm,
                "part": "bins",
                "seed": seed,
                "bin": (place + 0.5) / _NUM_BINS,
                "confidence": one.confidence,
                "accuracy": one.accuracy,
                "num_examples": one.num_examples,
            }


def _fresh(settings: CourseSettings, seed: int, device: torch.device) -> tuple[nn.Module, SGD]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = settings.clipping.build().to(device)
    return model, SGD(model.parameters(), lr=settings.clipping.learning_rate)


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _open_course(
    settings: CourseSettings, train: ArrayDataset, seed: int, device: torch.device
) -> Iterator[tuple[int, nn.Module]]:
    model, optimizer = _fresh(settings, seed, device)
    generator = torch.Generator(device=device).manual_seed(seed)
    for epoch in range(1, settings.clipping.epochs + 1):
        model.train()
        order = torch.randperm(len(train), generator=generator, device=device)
        for rows in torch.split(order, settings.clipping.batch_size):
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(_losses(model(train.features[rows]), train.labels[rows]).mean())
            optimizer.step()
        yield epoch, model


def _private_course(
    settings: CourseSettings,
    clipping: Clipping,
    grouping: Grouping,
    train: ArrayDataset,
    size: int,
    seed: int,
    device: torch.device,
) -> Iterator[tuple[int, nn.Module]]:
    """Yield the model after every epoch."""
    model, optimizer = _fresh(settings, seed, device)
    plan = replace(settings.clipping.plan(clipping, size), grouping=grouping)
    every = -(-plan.num_steps // settings.clipping.epochs)

    def losses_of(features: Tensor, labels: Tensor) -> Tensor:
        return _losses(model(features), labels)

    session = privatize(
        model,
        optimizer,
        train,
        plan,
        # Poisson batches rarely exceed their mean by a quarter, so that a step is one pass
        performance=Performance(physical_batch_size=settings.clipping.batch_size * 5 // 4),
        seed=seed,
    )
    with session:
        for step in session.steps():
            step.accumulate(losses_of)
            step.update()
            done = step.index + 1
            if done % every == 0 or done == plan.num_steps:
                yield -(-done // every), model


def course_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the ends of all arms, and accuracy by cutoff, as Markdown."""
    from privet_research.studies.clipping_table import summarise

    columns = (("accuracy %", "accuracy", 100, 1), ("loss", "loss", 1, 3))
    parts = []
    for part, more in (
        ("end", (("ECE-15 %", "ece", 100, 1), ("MCE-15 %", "mce", 100, 1))),
        ("cutoff", ()),
        ("own rate", ()),
    ):
        own = [row for row in rows if row["part"] == part]
        if not own:
            continue
        shown = (*columns, *more)
        lines = [["arm", *(column[0] for column in shown)]]
        for arm in dict.fromkeys(row["arm"] for row in own):
            values = [[row[key] for row in own if row["arm"] == arm] for _, key, _, _ in shown]
            cells = [
                summarise(v).shown(factor, digits) for v, (_, _, factor, digits) in zip(values, shown, strict=True)
            ]
            lines.append([arm, *cells])
        parts.append(markdown(lines))
    count = sum(row["part"] in ("course", "bins") for row in rows)
    parts.append(f"Courses and bins: {count} rows.")
    lost = [f"{row['arm']}, seed {row['seed']}, epoch {row['epoch']}" for row in rows if row["part"] == "diverged"]
    if lost:
        parts.append(f"Diverged, and not part of the table: {'; '.join(lost)}.")
    return "\n\n".join(parts) + "\n"
