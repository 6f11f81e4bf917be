"""What random masks do to the terms of a private step: figures 1, 6 to 9 and 12 of Zhu and Blaschko (2023), on digits.

How much shorter masked noise is, and how much longer the mean clipped gradient is on what a mask keeps (figure 1); the
deviations of gradients from their mean along two random directions, with a test of the symmetry that the publication's
proof assumes and its figures 6 to 9 suggest; and how often coordinates are masked in a run, by random masks and by
ranked ones (figure 12). Exact functions of public data: nothing here is private or needs to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privet.datasets.arrays import ArrayDataset
from privet.effects.sparsification import (
    frequency_distance,
    gradient_norm_ratio,
    noise_norm_ratio,
    per_example_gradients,
    projected_deviations,
    symmetry,
    times_masked,
)
from privet.mechanism.clipping import Threshold
from privet.mechanism.mask_rates import GradualCooling
from privet.mechanism.masking import Mask, NoMask, RandomMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.release_masks import RankedMask
from privet.models import dp_cnn
from privet.models.named_models import count_parameters
from privet_research.studies.sparsification_signs import digits, digits_model, digits_plan, losses, steps_of

Row = dict[str, Any]
RATES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
NORMS = (0.1, 1.0)
_NUM_EXAMPLES = 256
_NUM_POINTS = 200


def run_terms_study(*, seeds: Sequence[int], device: torch.device, epochs: int = 20) -> Iterator[Row]:
    """Measure every term for every seed, and yield one row of figures as each is known."""
    train, _ = digits(device)
    size = count_parameters(dp_cnn())
    for seed in seeds:
        for rate in RATES:
            ratio = noise_norm_ratio(size, rate=rate, seed=seed)
            yield _row("noise norm", seed, ratio, rate=rate, title="noise", theory=math.sqrt(1 - rate))
        for stage, model in _models(train, seed, epochs, device):
            gradients = per_example_gradients(
                model, losses, train.features[:_NUM_EXAMPLES], train.labels[:_NUM_EXAMPLES]
            )
            yield _deviations(gradients, stage, seed)
            if stage in (0, epochs):
                yield from _gradient_norms(gradients, stage, seed)
        yield from _frequencies(train, seed, epochs, device)


def _row(part: str, seed: int, value: float, **facts: Any) -> Row:
    return {"arm": f"{part}, {facts['title']}", "part": part, "seed": seed, "value": value, **facts}


def _models(train: ArrayDataset, seed: int, epochs: int, device: torch.device) -> Iterator[tuple[int, nn.Module]]:
    """Train privately without a mask; yield the epoch and the model at the start, halfway and at the end."""
    model = digits_model(seed, device)
    yield 0, model
    plan = _plan(NoMask(), epochs)
    stops = {epoch * plan.sampling.steps_per_epoch: epoch for epoch in (epochs // 4, epochs // 2)}
    for step in steps_of(model, train, plan, 1.0, seed):
        if step.index + 1 in stops:
            yield stops[step.index + 1], model
    yield epochs, model


def _plan(mask: Mask, epochs: int) -> Any:
    return digits_plan(clipping=Threshold(norm=1.0), noise=Gaussian(noise_multiplier=2.0), mask=mask, epochs=epochs)


def _deviations(gradients: Tensor, epoch: int, seed: int) -> Row:
    points = projected_deviations(gradients, seed=seed)[:_NUM_POINTS]
    found = symmetry(points, seed=seed)
    return _row(
        "deviations",
        seed,
        found.energy_distance,
        title=f"epoch {epoch}",
        p_value=found.p_value,
        points=[[float(f"{value:.4g}") for value in point] for point in points.tolist()],
    )


def _gradient_norms(gradients: Tensor, epoch: int, seed: int) -> Iterator[Row]:
    order = torch.randperm(gradients.shape[1], generator=torch.Generator().manual_seed(seed)).to(gradients.device)
    for norm in NORMS:
        for rate in RATES:
            keep = order >= math.floor(rate * len(order))
            ratio = gradient_norm_ratio(gradients, keep, clip_norm=norm)
            title = f"gradient, C {norm:g}, epoch {epoch}"
            yield _row("gradient norm", seed, ratio, rate=rate, title=title, theory=1 / math.sqrt(1 - rate))


def _frequencies(train: ArrayDataset, seed: int, epochs: int, device: torch.device) -> Iterator[Row]:
    schedule = GradualCooling(final=0.9)
    counts = {}
    for name, mask in (("random", RandomMask(schedule=schedule)), ("ranked", RankedMask(schedule=schedule))):
        model, plan = digits_model(seed, device), _plan(mask, epochs)
        every = plan.sampling.steps_per_epoch
        keeps = [
            None if step.kept is None else step.kept.coordinates
            for step in steps_of(model, train, plan, 1.0, seed)
            if step.index % every == 0
        ]
        counts[name] = times_masked(keeps, count_parameters(model))
    for name, found in counts.items():
        distance = frequency_distance(found, counts["random"])
        histogram = np.bincount(found, minlength=epochs + 1).tolist()
        yield _row("frequency", seed, distance, title=f"{name} masks", histogram=histogram)


def terms_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the study as Markdown: ratios beside theory, symmetry tests, and the distance of frequencies."""
    parts = [_ratios(rows), _symmetries(rows), _distances(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ratios(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["length with mask over without", *(f"rate {rate:g}" for rate in RATES)]
    lines = [head, ["---"] * len(head)]
    found = [row for row in rows if row["part"] in ("noise norm", "gradient norm")]
    for title in dict.fromkeys(row["title"] for row in found):
        own = [row for row in found if row["title"] == title]
        lines.append([title, *(_mean([row["value"] for row in own if row["rate"] == rate]) for rate in RATES)])
    for title, power in (("sqrt(1 - rate)", 0.5), ("1 / sqrt(1 - rate)", -0.5)):
        lines.append([title, *(f"{(1 - rate) ** power:.3f}" for rate in RATES)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f}" if values else ""


def _symmetries(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [row for row in rows if row["part"] == "deviations"]
    if not found:
        return ""
    shown = ", ".join(f"{row['title']} (seed {row['seed']}) {row['p_value']:.3f}" for row in found)
    refuted = sum(row["p_value"] < 0.05 for row in found)
    return (
        f"Symmetry of the gradients' deviations along two random directions, p-values: {shown}. It is refuted at 5 % "
        f"in {refuted} of {len(found)} tests."
    )


def _distances(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [row["value"] for row in rows if row["part"] == "frequency" and row["title"] == "ranked masks"]
    if not found:
        return ""
    return (
        "How often a coordinate is masked in a run differs between ranked and random masks by at most "
        f"{max(found):.3f} in distribution (largest gap of the distribution functions)."
    )
