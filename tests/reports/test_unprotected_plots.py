from __future__ import annotations

import re

import numpy as np
import pytest

from privet.reports.content import UnprotectedRow
from privet.reports.plots import BLUE, ORANGE, Plot
from privet.reports.unprotected_plots import unprotected_plots

ALIKE = tuple(np.linspace(19.0, 20.0, 11))
FAR_APART = tuple(np.geomspace(1e-7, 10.0, 11))


def row(step: int, quantiles: tuple[float, ...] | None) -> UnprotectedRow:
    return UnprotectedRow(step=step, mean_loss=1.0, clipped_share=0.5, norm_quantiles=quantiles, noise_to_signal=2.0)


def spread_plot(first: tuple[float, ...], last: tuple[float, ...]) -> Plot:
    return next(plot for plot in unprotected_plots([row(0, first), row(1, last)]) if plot.name == "norm-spread")


def drawn_height(svg: str, colour: str) -> float:
    """Return how much of the picture's height the line of this colour spans."""
    (line,) = re.findall(rf'<path d="([^"]*)" clip-path[^>]*style="fill: none; stroke: {colour};', svg)
    heights = [float(place.split()[1]) for place in re.findall(r"[ML] ([\d.]+ [\d.]+)", line)]
    return max(heights) - min(heights)


@pytest.mark.parametrize(
    ("first", "last"),
    [(ALIKE, FAR_APART), (FAR_APART, ALIKE), ((0.0,) * 11, FAR_APART), ((2.0,) * 11, ALIKE)],
    ids=["alike then far apart", "far apart then alike", "all zero", "all equal"],
)
def test_the_lengths_of_neither_step_vanish_beside_those_of_the_other(
    first: tuple[float, ...], last: tuple[float, ...]
) -> None:
    plot = spread_plot(first, last)
    assert drawn_height(plot.svg, ORANGE) == pytest.approx(drawn_height(plot.svg, BLUE), rel=0.01)
    assert plot.rows == ((0.0, *first), (1.0, *last))


def test_a_run_that_kept_no_lengths_has_no_plot_of_them() -> None:
    names = [plot.name for plot in unprotected_plots([row(0, None), row(1, None)])]
    assert names == ["training-loss", "clipped-share", "noise-to-signal"]
