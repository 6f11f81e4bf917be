"""The calibration gain of global clipping over several draws of a made-up task: is it the rule's, or one draw's?

Every seed draws its own data, initial weights, batches and noise, so the interval covers all four.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from privet_research.studies.arms import GLOBAL, LOCAL
from privet_research.studies.clipping import ClippingSettings, run_clipping_study
from privet_research.studies.clipping_table import clipping_table
from privet_research.studies.clusters import clustered_classes
from privet_research.studies.regression_table import half_width

Row = Mapping[str, Any]


def run_drawn_clusters(
    settings: ClippingSettings, *, seeds: Sequence[int], device: torch.device
) -> Iterator[dict[str, Any]]:
    """Train local and global clipping on one draw of the data per seed and yield a row for each."""
    for seed in seeds:
        drawn = replace(settings, name=f"{settings.name}, drawn anew", load=partial(clustered_classes, seed=seed))
        yield from run_clipping_study(drawn, seeds=[seed], device=device, arms=(LOCAL, GLOBAL))


def calibration_gains(rows: Sequence[Row]) -> list[float]:
    """Return for every seed by how much global clipping has the lower expected calibration error."""
    errors = {(row["arm"], row["seed"]): float(row["ece_15"]) for row in rows}
    seeds = sorted({seed for _, seed in errors})
    return [
        errors[LOCAL, seed] - errors[GLOBAL, seed]
        for seed in seeds
        if (LOCAL, seed) in errors and (GLOBAL, seed) in errors
    ]


def drawn_clusters_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: the usual table, and the gain with its interval over draws."""
    gains = calibration_gains(rows)
    width = half_width(gains)
    if width is None:
        return clipping_table(rows)
    shown = ", ".join(f"{100 * gain:.1f}" for gain in gains)
    return (
        f"{clipping_table(rows)}\nOver {len(gains)} draws of data, weights, batches and noise, global clipping lowers "
        f"the expected calibration error (15 bins) by {100 * statistics.fmean(gains):.1f} ± {100 * width:.1f} points "
        f"(mean and 95 % interval, Student's t; single draws: {shown}).\n"
    )
