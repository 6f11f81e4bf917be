"""Pictures of two studies behind single figures: deviations of gradients under masks, and digits."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def mask_statistics_picture(rows: Rows) -> bytes:
    """Draw clouds of deviations, histograms of how often coordinates are masked, and accuracies, of the first seed.

    Args:
        rows: Of the study ``mask-statistics``, or some of them.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    clouds = [row for row in first if row["part"] == "deviations"]
    frequencies = [row for row in first if row["part"] == "frequency"]
    ends = [row for row in first if row["part"] == "accuracy"]
    num_panels = len(clouds) + bool(frequencies) + bool(ends)
    columns = min(4, num_panels)
    height = -(-num_panels // columns)
    figure = Figure(figsize=(max(4.0, 2.6 * columns), 2.6 * height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # a figure of its own, without the global state of pyplot
    for place, row in enumerate(clouds):
        axes = figure.add_subplot(height, columns, place + 1)
        across, along = zip(*row["points"], strict=True)
        axes.scatter(across, along, s=3, color="tab:blue")
        axes.set_title(f"{row['title']}: p {row['p_value']:.3f}", fontsize=8)
        axes.tick_params(labelsize=7)
    if frequencies:
        axes = figure.add_subplot(height, columns, len(clouds) + 1)
        for row in frequencies:
            axes.step(range(len(row["histogram"])), row["histogram"], where="mid", label=row["title"])
        axes.set_xlabel("epochs in which a coordinate is masked", fontsize=8)
        axes.set_ylabel("coordinates", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7)
    if ends:
        axes = figure.add_subplot(height, columns, num_panels)
        axes.barh([row["way"] for row in ends], [100 * row["accuracy"] for row in ends], color="tab:blue")
        axes.set_xlabel("test accuracy, %", fontsize=8)
        axes.tick_params(labelsize=7)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": ""})
    return file.getvalue()


def digits_picture(rows: Rows) -> bytes:
    """Draw the digits of the first seed, a line for each row of the study ``digit-pictures``, as PNG."""
    from privet.reports.picture_grid import picture_grid
    from privet_research.studies.digit_pictures import SHAPE
    from privet_research.studies.reconstruction import decoded

    first = [row for row in rows if row["seed"] == rows[0]["seed"] and row["pictures"]]
    count = min(len(row["pictures"]) for row in first)
    return picture_grid({row["arm"]: decoded(row["pictures"][:count], SHAPE) for row in first})
