"""The page of a sweep: accuracy against epsilon, the limit of attacks beside it, and what others chose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privet import __version__
from privet.accounting.guarantee import rounded_up
from privet.reports.page import load_template
from privet.reports.plots import BLUE, ORANGE, Plot, column_plot
from privet.reports.statement import percent
from privet.runs.run_files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from privet.runs.sweep import Sweep, SweepPoint

PAGE_NAME = "sweep.html"
HEADER = ("epsilon", "figure", "95 % interval", "members found, at most")
OTHERS_HEADER = ("who", "what for", "epsilon", "what is protected", "source")
# As their publishers state them. Units and releases differ, so that the figures can be compared only with care.
OTHERS = (
    ("Apple", "emoji suggestions", "4", "one day of a user, on the device", "apple.com/privacy, overview"),
    ("Apple", "health types in use", "2", "one day of a user, on the device", "apple.com/privacy, overview"),
    ("Google", "COVID-19 mobility reports", "2.64", "one day of a user", "Aktay et al. 2020, arXiv 2004.04145"),
    ("US Census Bureau", "redistricting data 2020", "19.61", "a person and a housing unit", "census.gov, 2021"),
    ("studies of private training", "image classifiers", "1 to 8", "one image", "De et al. 2022, arXiv 2204.13650"),
)


def sweep_rows(points: Sequence[SweepPoint]) -> list[list[str]]:
    """Return (epsilon, figure, interval, share of members found) for every point."""
    return [
        [
            rounded_up(point.epsilon),
            _text(point, point.value),
            f"{_text(point, point.low)} to {_text(point, point.high)}",
            percent(point.found),
        ]
        for point in points
    ]


def write_sweep(found: Sweep, folder: str | Path) -> Path:
    """Write the page of a sweep into its folder, and return its path."""
    path = Path(folder) / PAGE_NAME
    values = {
        "version": __version__,
        "title": found.title,
        "measured_on": found.measured_on,
        "total": None if found.total is None else rounded_up(found.total),
        "measure": found.points[0].measure,
        "header": HEADER,
        "rows": sweep_rows(found.points),
        "plots": [_figure_plot(found.points), _risk_plot(found.points)],
        "others_header": OTHERS_HEADER,
        "others": OTHERS,
    }
    write_whole(path, load_template("sweep.html.j2").render(values))
    return path


def _text(point: SweepPoint, value: float) -> str:
    return f"{100 * value:.1f} %" if point.measure == "accuracy" else f"{value:.3g}"


def _figure_plot(points: Sequence[SweepPoint]) -> Plot:
    epsilons, values = [point.epsilon for point in points], [point.value for point in points]
    lows, highs = [point.low for point in points], [point.high for point in points]

    def draw(axes: Axes) -> None:
        bars = np.array([np.subtract(values, lows), np.subtract(highs, values)])
        axes.errorbar(epsilons, values, yerr=bars, color=BLUE, marker="o", capsize=3)
        _epsilon_axis(axes, epsilons)
        axes.set(ylabel=points[0].measure)

    title = f"{points[0].measure.capitalize()} by epsilon"
    note = "Bars: 95 % intervals of one run each, not the variation between runs."
    numbers = {"epsilon": epsilons, "value": values, "low": lows, "high": highs}
    return column_plot("figure-by-epsilon", title, note, draw, numbers)


def _risk_plot(points: Sequence[SweepPoint]) -> Plot:
    epsilons, found = [point.epsilon for point in points], [point.found for point in points]

    def draw(axes: Axes) -> None:
        axes.plot(epsilons, [100 * share for share in found], color=ORANGE, marker="o", label="limit")
        axes.axhline(1.0, color="#7f7f7f", linestyle=":", label="guessing")
        _epsilon_axis(axes, epsilons)
        axes.set(ylabel="members found, at most, %", ylim=(0, None))
        axes.legend(fontsize=8)

    note = "At 1 % false accusations, for every attacker and every method."
    numbers = {"epsilon": epsilons, "members_found_at_most": found}
    return column_plot("risk-by-epsilon", "What the best attacker finds", note, draw, numbers)


def _epsilon_axis(axes: Axes, epsilons: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:.3g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_xlabel("epsilon")
