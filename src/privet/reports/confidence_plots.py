"""Plots of calibration, and of membership attacks with their limit on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privet.accounting.guarantee import trade_off
from privet.attacks.membership_verdict import MembershipReport
from privet.effects.reliability import CalibrationReport
from privet.mechanism.events import DpEvent
from privet.reports.plots import BLUE, GREEN, INK, ORANGE, PALE, Plot, column_plot, plain_powers
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST_RATE = 1e-4
_KNOWN_ATTACKS = ("loss threshold", "logistic regression", "likelihood ratio")
_ROC_COLOURS = (ORANGE, GREEN, "#b05fa8", "#7f7f7f")


def _drawn_name(report: MembershipReport, index: int) -> str:
    """Return the number and the fixed name of a known kind of attack: no text from a file is drawn."""
    known = [name for name in _KNOWN_ATTACKS if report.attack.startswith(name)]
    suffix = ", control" if ", control" in report.attack else ""
    return f"{index + 1}: {known[0]}{suffix}" if known else f"attack {index + 1}"


def reliability_plot(report: CalibrationReport) -> Plot:
    """Plot accuracy against confidence by bin; over- and under-confidence are hatched."""
    bins = [entry for entry in report.reliability.bins if entry.num_examples]

    def draw(axes: Axes) -> None:
        places = [entry.low for entry in bins]
        widths = [entry.high - entry.low for entry in bins]
        shared: dict[str, Any] = {"width": widths, "align": "edge", "linewidth": 0}
        axes.bar(places, [entry.accuracy for entry in bins], color=BLUE, alpha=0.75, label="accuracy", **shared)
        for sign, colour, hatch, name in ((1, ORANGE, "//", "over-confident"), (-1, GREEN, "..", "under-confident")):
            gaps = [max(sign * entry.over_confidence, 0.0) for entry in bins]
            floors = [entry.accuracy if sign > 0 else entry.confidence for entry in bins]
            shades: dict[str, Any] = {"facecolor": PALE[colour], "edgecolor": colour, "hatch": hatch}
            axes.bar(places, gaps, bottom=floors, label=name, **shared, **shades)
        axes.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1.2, label="calibrated")
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
        axes.legend(loc="upper left", fontsize=8)

    note = "Of predictions with confidence 0.8, eight in ten should be correct: bars should end on the line."
    columns = ("low", "high", "num_examples", "confidence", "accuracy")
    numbers = {name: [getattr(entry, name) for entry in report.reliability.bins] for name in columns}
    return column_plot("reliability", "Reliability of the model's confidence", note, draw, numbers)


def roc_plot(reports: Sequence[MembershipReport], event: DpEvent, adjacency: Adjacency) -> Plot:
    """Plot members found against false accusations on logarithmic axes, with the limit of every attack."""
    rates = np.logspace(np.log10(_LEAST_RATE), 0, 81)
    limits = 1 - trade_off(event, adjacency=adjacency, false_positive_rates=rates)

    def draw(axes: Axes) -> None:
        axes.loglog(rates, limits, color=BLUE, label="limit of every attack")
        axes.fill_between(rates, limits, 1.3, color=BLUE, alpha=0.12, linewidth=0)
        for index, report in enumerate(reports):
            false, true = np.array(report.roc).T
            seen = true > 0
            colour = _ROC_COLOURS[index % len(_ROC_COLOURS)]
            axes.loglog(false[seen], true[seen], color=colour, linewidth=1.4, label=_drawn_name(report, index))
        axes.loglog(rates, rates, color=INK, linestyle=":", linewidth=1.2, label="guessing")
        axes.set(xlabel="false accusations", ylabel="members found", xlim=(_LEAST_RATE, 1), ylim=(_LEAST_RATE, 1.3))
        plain_powers(axes.xaxis)
        plain_powers(axes.yaxis)
        axes.legend(loc="lower right", fontsize=8)

    rows: list[tuple[float | None, ...]] = [(0.0, float(x), float(y)) for x, y in zip(rates, limits, strict=True)]
    for index, report in enumerate(reports):
        rows += [(float(index + 1), *point) for point in report.roc]
    return Plot(
        name="membership-roc",
        title="Membership attacks, on logarithmic axes",
        note="An attack in the shaded region would prove a fault; the table above compares intervals with the limit.",
        draw=draw,
        columns=("attack", "false_positive_rate", "true_positive_rate"),
        rows=tuple(rows),
    )
