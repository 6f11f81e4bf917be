"""Symmetry of gradients and choice of coordinates under masks: figures 6 to 9 and 12 of Zhu and Blaschko (2023).

Deviations of gradients from their mean along two random directions, while training without and with masks, each along
two pairs of directions; and how often a coordinate is masked by random masks, by masks that rank noisy gradients, and
by masks that rank them in a run without noise. On the digits of scikit-learn; seeded, so nothing here is private.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from privet.datasets.arrays import ArrayDataset
from privet.effects.sparsification import (
    frequency_distance,
    per_example_gradients,
    projected_deviations,
    symmetry,
    times_masked,
)
from privet.mechanism.ablations import NoNoise
from privet.mechanism.clipping import Threshold
from privet.mechanism.mask_rates import GradualCooling
from privet.mechanism.masking import Mask, NoMask, RandomMask
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.release_masks import RankedMask
from privet.models.named_models import count_parameters
from privet.plan import Plan
from privet_research.studies.sparsification_signs import digits, digits_model, digits_plan, losses, steps_of

Row = dict[str, Any]
NO_MASK, MASKED = "no mask", "random mask"
PROJECTIONS = ("first", "second")
_NUM_EXAMPLES, _NUM_POINTS = 256, 200
_RATE = 0.9
_NOISE_MULTIPLIER = 2.0


def _plan(mask: Mask, epochs: int, noise: Noise | None = None) -> Plan:
    chosen = noise or Gaussian(noise_multiplier=_NOISE_MULTIPLIER)
    return digits_plan(clipping=Threshold(norm=1.0), noise=chosen, mask=mask, epochs=epochs)


def run_mask_statistics(*, seeds: Sequence[int], device: torch.device, epochs: int = 20) -> Iterator[Row]:
    """Measure symmetry along training without and with masks, then frequencies, and yield rows as they are known."""
    train, _ = digits(device)
    masks: dict[str, Mask] = {NO_MASK: NoMask(), MASKED: RandomMask(schedule=GradualCooling(final=_RATE))}
    for seed in seeds:
        for name, mask in masks.items():
            yield from _deviations(name, _plan(mask, epochs), train, seed, epochs, device)
        yield from _frequencies(train, seed, epochs, device)


def _deviations(
    name: str, plan: Plan, train: ArrayDataset, seed: int, epochs: int, device: torch.device
) -> Iterator[Row]:
    model = digits_model(seed, device)
    looks = {max(1, share * epochs // 4) for share in (1, 2, 3, 4)}
    every = plan.sampling.steps_per_epoch
    for step in steps_of(model, train, plan, 1.0, seed):
        epoch, rest = divmod(step.index + 1, every)
        if step.index + 1 == plan.num_steps:
            epoch, rest = epochs, 0  # the last epoch may be a few steps short
        if rest or epoch not in looks:
            continue
        gradients = per_example_gradients(model, losses, train.features[:_NUM_EXAMPLES], train.labels[:_NUM_EXAMPLES])
        for place, projection in enumerate(PROJECTIONS):
            points = projected_deviations(gradients, seed=2 * seed + place)[:_NUM_POINTS]
            found = symmetry(points, seed=seed)
            yield {
                "arm": f"{name}, {projection} projection, epoch {epoch}",
                "part": "deviations",
                "mask": name,
                "projection": projection,
                "epoch": epoch,
                "title": f"{name}, epoch {epoch}",
                "seed": seed,
                "value": found.energy_distance,
                "p_value": found.p_value,
                "refuted": float(found.p_value < 0.05),
                "points": [[float(f"{value:.4g}") for value in point] for point in points.tolist()],
            }


def _frequencies(train: ArrayDataset, seed: int, epochs: int, device: torch.device) -> Iterator[Row]:
    schedule = GradualCooling(final=_RATE)
    plans = {
        "random": _plan(RandomMask(schedule=schedule), epochs),
        "ranked": _plan(RankedMask(schedule=schedule), epochs),
        "ranked without noise": _plan(RankedMask(schedule=schedule), epochs, NoNoise()),
    }
    counts = {}
    for name, plan in plans.items():
        model = digits_model(seed, device)
        every = plan.sampling.steps_per_epoch
        keeps = [
            None if step.kept is None else step.kept.coordinates
            for step in steps_of(model, train, plan, 1.0, seed)
            if step.index % every == 0
        ]
        counts[name] = times_masked(keeps, count_parameters(model))
    for name, found in counts.items():
        histogram = np.bincount(found, minlength=epochs + 1).tolist()
        facts = {"part": "frequency", "mask": name, "title": f"{name} masks", "seed": seed}
        distance = frequency_distance(found, counts["random"])
        yield {"arm": f"frequency, {name}", **facts, "value": distance, "histogram": histogram}


def mask_statistics_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return p-values by mask and epoch, and distances of frequencies, as Markdown."""
    parts = []
    deviations = [row for row in rows if row["part"] == "deviations"]
    if deviations:
        head = ["mask", "projection", "epoch", "p-values", "refuted at 5 %"]
        lines = [head, ["---"] * len(head)]
        for key in dict.fromkeys((row["mask"], row["projection"], row["epoch"]) for row in deviations):
            own = [row for row in deviations if (row["mask"], row["projection"], row["epoch"]) == key]
            shown = ", ".join(f"{row['p_value']:.3f}" for row in own)
            lines.append([key[0], key[1], str(key[2]), shown, f"{sum(r['refuted'] for r in own):.0f} of {len(own)}"])
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    distances = [row for row in rows if row["part"] == "frequency"]
    if distances:
        lines = [["masks", "largest gap to random masks"], ["---"] * 2]
        for mask in dict.fromkeys(row["mask"] for row in distances):
            values = [row["value"] for row in distances if row["mask"] == mask]
            lines.append([mask, f"{sum(values) / len(values):.3f}"])
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return "\n\n".join(parts) + "\n"
