"""What masks do along a run: figures 1d, 6 to 9 and 12 of Zhu and Blaschko (2023), and two choices of their method.

Along a run without and one with masks: the length of the mean clipped gradient on what a mask keeps, and deviations of
gradients from their mean along two random directions, each for two pairs of directions. How often a coordinate is
masked by random masks, by masks that rank noisy gradients, and by masks that rank them in a run without noise. And the
accuracy at the end of each of these runs, of one with the final rate from the start, and of one with a new mask for
every step: the publication masks gradually, and once per epoch. Seeded, so nothing here is private.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privet.datasets.arrays import ArrayDataset
from privet.effects.sparsification import (
    frequency_distance,
    gradient_norm_ratio,
    per_example_gradients,
    projected_deviations,
    symmetry,
    times_masked,
)
from privet.mechanism.ablations import NoNoise
from privet.mechanism.clipping import Threshold
from privet.mechanism.mask_rates import Constant, GradualCooling
from privet.mechanism.masking import Mask, NoMask, RandomMask
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.release_masks import RankedMask
from privet.models.named_models import count_parameters
from privet_research.studies.markdown import markdown
from privet_research.studies.mask_tasks import MaskTask, accuracy, losses
from privet_research.studies.regression_table import half_width

Row = dict[str, Any]
NO_MASK, MASKED = "no mask", "random mask"
RANKED, RANKED_WITHOUT_NOISE = "ranked", "ranked without noise"
PROJECTIONS = ("first", "second")
RATES = (0.2, 0.4, 0.6, 0.8, 0.9)
NORMS = (0.1, 1.0)
# Those of the publication's pictures, for a run of 100 epochs.
LOOKS = (0, 3, 6, 9, 20, 40, 60, 79)
_NUM_EXAMPLES, _NUM_POINTS = 256, 200
_RATE = 0.9
_NOISE = Gaussian(noise_multiplier=2.0)


@dataclass(frozen=True, kw_only=True)
class _Way:
    """One run: its mask, its noise, and what is looked at."""

    mask: Mask
    noise: Noise = _NOISE
    looks: bool = False
    counts: bool = False


_COOLED = GradualCooling(final=_RATE)
WAYS: Mapping[str, _Way] = {
    NO_MASK: _Way(mask=NoMask(), looks=True),
    MASKED: _Way(mask=RandomMask(schedule=_COOLED), looks=True, counts=True),
    RANKED: _Way(mask=RankedMask(schedule=_COOLED), counts=True),
    RANKED_WITHOUT_NOISE: _Way(mask=RankedMask(schedule=_COOLED), noise=NoNoise(), counts=True),
    "final rate from the start": _Way(mask=RandomMask(schedule=Constant(value=_RATE))),
    "a mask per step": _Way(mask=RandomMask(schedule=_COOLED, refresh_every=1)),
}


def run_mask_statistics(
    task: MaskTask, *, seeds: Sequence[int], device: torch.device, earlier: Sequence[Row] = ()
) -> Iterator[Row]:
    """Train in every way and yield what is seen along each run as it is known.

    Rows of an earlier run are yielded again, and the runs that they belong to are not made again if they ended.
    """
    train, test = task.load(device)
    for seed in seeds:
        for name, way in WAYS.items():
            found = [row for row in earlier if (row["way"], row["seed"]) == (name, seed)]
            ended = any(row["part"] == "accuracy" for row in found)
            yield from found if ended else _run(task, name, way, train, test, seed, device)


def _run(
    task: MaskTask, name: str, way: _Way, train: ArrayDataset, test: ArrayDataset, seed: int, device: torch.device
) -> Iterator[Row]:
    began = time.monotonic()
    model = task.model(seed, device)
    facts = {"task": task.name, "way": name, "mask": name, "seed": seed}
    plan = task.plan(clipping=Threshold(norm=1.0), noise=way.noise, mask=way.mask)
    every = plan.sampling.steps_per_epoch
    wanted = {task.epochs * look // 100 for look in LOOKS} if way.looks else set()
    keeps = []
    if wanted:
        yield from _look(model, train, 0, facts)
    for step in task.steps(model, train, plan, seed=seed, learning_rate=task.statistics_rate):
        if way.counts and step.index % every == 0:
            keeps.append(None if step.kept is None else step.kept.coordinates.clone())
        epoch, rest = divmod(step.index + 1, every)
        if not rest and epoch in wanted:
            yield from _look(model, train, epoch, facts)
    if way.counts:
        yield _frequency(keeps, model, seed, facts)
    yield {
        "arm": f"accuracy, {name}",
        **facts,
        "part": "accuracy",
        "epochs": task.epochs,
        "accuracy": accuracy(model, test),
        "train_accuracy": accuracy(model, train),
        "value": accuracy(model, test),
        "seconds": round(time.monotonic() - began, 1),
        "device": device.type,
    }


def _look(model: nn.Module, train: ArrayDataset, epoch: int, facts: Row) -> Iterator[Row]:
    gradients = per_example_gradients(model, losses, train.features[:_NUM_EXAMPLES], train.labels[:_NUM_EXAMPLES])
    seed = facts["seed"]
    for place, projection in enumerate(PROJECTIONS):
        points = projected_deviations(gradients, seed=2 * seed + place)[:_NUM_POINTS]
        found = symmetry(points, seed=seed)
        yield {
            "arm": f"{facts['mask']}, {projection} projection, epoch {epoch}",
            **facts,
            "part": "deviations",
            "projection": projection,
            "epoch": epoch,
            "title": f"{facts['mask']}, epoch {epoch}",
            "value": found.energy_distance,
            "effect": found.effect,
            "p_value": found.p_value,
            "refuted": float(found.p_value < 0.05),
            "points": [[float(f"{value:.4g}") for value in point] for point in points.tolist()],
        }
    if facts["mask"] == NO_MASK:
        yield from _gradient_norms(gradients, epoch, facts)


def _gradient_norms(gradients: Tensor, epoch: int, facts: Row) -> Iterator[Row]:
    order = torch.randperm(gradients.shape[1], generator=torch.Generator().manual_seed(facts["seed"]))
    for norm in NORMS:
        for rate in RATES:
            keep = (order >= math.floor(rate * len(order))).to(gradients.device)
            title = f"gradient, C {norm:g}, epoch {epoch}"
            yield {
                "arm": f"gradient norm, {title}, rate {rate:g}",
                **facts,
                "part": "gradient norm",
                "title": title,
                "epoch": epoch,
                "norm": norm,
                "rate": rate,
                "value": gradient_norm_ratio(gradients, keep, clip_norm=norm),
                "theory": 1 / math.sqrt(1 - rate),
            }


def _frequency(keeps: Sequence[Tensor | None], model: nn.Module, seed: int, facts: Row) -> Row:
    """Count how often coordinates were masked, and compare with as many independent random masks of the same rates."""
    size = count_parameters(model)
    found = times_masked(keeps, size)
    generator = torch.Generator().manual_seed(seed)
    kept = [size if keep is None else int(keep.sum()) for keep in keeps]
    fresh = [torch.randperm(size, generator=generator) < count for count in kept]
    distance = frequency_distance(found, times_masked(fresh, size))
    histogram = np.bincount(found, minlength=len(keeps) + 1).tolist()
    return {
        "arm": f"frequency, {facts['mask']}",
        **facts,
        "part": "frequency",
        "title": f"{facts['mask']} masks",
        "value": distance,
        "histogram": histogram,
    }


def mask_statistics_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return lengths, symmetry by mask and epoch, distances of frequencies, and accuracies, as Markdown."""
    parts = [_lengths(rows), _symmetry(rows), _symmetry_of_runs(rows), _frequencies(rows), _accuracies(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return markdown(lines)


def _lengths(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [row for row in rows if row["part"] == "gradient norm"]
    lines = [["length with mask over without", *(f"rate {rate:g}" for rate in RATES)]]
    for title in dict.fromkeys(row["title"] for row in found):
        own = [row for row in found if row["title"] == title]
        lines.append([title, *(_mean([row["value"] for row in own if row["rate"] == rate], 3) for rate in RATES)])
    lines.append(["1 / sqrt(1 - rate)", *(f"{(1 - rate) ** -0.5:.3f}" for rate in RATES)])
    return _markdown(lines) if found else ""


def _symmetry(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [row for row in rows if row["part"] == "deviations"]
    lines = [["mask", "projection", "epoch", "effect", "p-values", "refuted at 5 %"]]
    for key in dict.fromkeys((row["mask"], row["projection"], row["epoch"]) for row in found):
        own = [row for row in found if (row["mask"], row["projection"], row["epoch"]) == key]
        shown = ", ".join(f"{row['p_value']:.3f}" for row in own)
        refuted = f"{sum(row['refuted'] for row in own):.0f} of {len(own)}"
        lines.append([key[0], key[1], str(key[2]), _mean([row["effect"] for row in own], 4), shown, refuted])
    return _markdown(lines) if found else ""


def _symmetry_of_runs(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean effect over the epochs of a run, with the interval over seeds that its page shows."""
    found = [row for row in rows if row["part"] == "deviations"]
    lines = [["mask", "projection", "mean effect along the run, %"]]
    for mask, projection in dict.fromkeys((row["mask"], row["projection"]) for row in found):
        of_seed: dict[int, list[float]] = {}
        for row in found:
            if (row["mask"], row["projection"]) == (mask, projection):
                of_seed.setdefault(row["seed"], []).append(100 * row["effect"])
        means = [statistics.fmean(effects) for effects in of_seed.values()]
        width = half_width(means)
        lines.append([mask, projection, _mean(means, 2) + ("" if width is None else f" ± {width:.2f}")])
    return _markdown(lines) if found else ""


def _frequencies(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [row for row in rows if row["part"] == "frequency"]
    lines = [["masks", "largest gap to independent random masks"]]
    lines += [
        [mask, _mean([row["value"] for row in found if row["mask"] == mask], 3)]
        for mask in dict.fromkeys(row["mask"] for row in found)
    ]
    return _markdown(lines) if found else ""


def _accuracies(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [row for row in rows if row["part"] == "accuracy"]
    lines = [["run", "test accuracy, %", "training accuracy, %", "seeds"]]
    for way in dict.fromkeys(row["way"] for row in found):
        own = [row for row in found if row["way"] == way]
        shown = [_mean([100 * row[key] for row in own], 2) for key in ("accuracy", "train_accuracy")]
        lines.append([way, *shown, str(len(own))])
    return _markdown(lines) if found else ""


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{sum(values) / len(values):.{digits}f}" if values else ""
