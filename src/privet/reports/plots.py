"""The plots of a report as inline SVG, each with its numbers.

Text stays text, colours of text and lines follow the page (light or dark), and the same run gives the same bytes.
Labels are fixed words: no text from a file is drawn.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from privet.accounting.curves import SMALLEST_PLD_DELTA
from privet.accounting.guarantee import privacy_profile
from privet.mechanism.events import DpEvent
from privet.runs.measures import CurvePoint
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Okabe and Ito's palette, which people with any colour vision can distinguish; readable on white and on near-black.
BLUE, ORANGE, GREEN = "#3a8fd0", "#d9822b", "#1fa187"
# Paler versions for hatched areas: hatching and transparency cannot be combined.
PALE = {BLUE: "#bcd9ee", ORANGE: "#f2d3b0", GREEN: "#b0ddd4"}
# Placeholders that are replaced by the page's own colours after drawing.
INK, _GRID = "#010203", "#040506"
_WIDTH, _HEIGHT = 4.5, 2.9
_QUICKER_BOUND = (
    " Before the last round the line shows upper bounds that are quick to compute; the epsilon of a measurement at the "
    "same step may be smaller, and both hold."
)

_STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure and its numbers.

    Attributes:
        name: File name of its numbers, without suffix.
        title: Title of the plot.
        note: Advice for the reader.
        draw: Draws the picture.
        columns: Names of the columns of numbers.
        rows: The numbers.
    """

    name: str
    title: str
    note: str
    draw: Callable[[Axes], None]
    columns: tuple[str, ...]
    rows: tuple[tuple[float | None, ...], ...]

    @cached_property
    def svg(self) -> str:
        """The picture, as an SVG element with the colours of the page."""
        return draw_svg(self.name, self.draw)

    @property
    def cells(self) -> list[list[str]]:
        """The numbers as short text."""
        return [["" if value is None else f"{value:.6g}" for value in row] for row in self.rows]

    @property
    def labelled_svg(self) -> str:
        """The picture with title and note as its label for screen readers."""
        label = escape(f"{self.title}. {self.note}", quote=True)
        return self.svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)

    @property
    def csv_link(self) -> str:
        """The numbers as a data URL."""
        lines = [",".join(self.columns), *(",".join(row) for row in self.cells)]
        return "data:text/csv;base64," + base64.b64encode(("\r\n".join(lines) + "\r\n").encode()).decode()


def column_plot(
    name: str, title: str, note: str, draw: Callable[[Axes], None], numbers: Mapping[str, Sequence[float | None]]
) -> Plot:
    """Return a plot whose numbers are named columns of one length."""
    rows = tuple(zip(*numbers.values(), strict=True))
    return Plot(name=name, title=title, note=note, draw=draw, columns=tuple(numbers), rows=rows)


def profile_plot(event: DpEvent, adjacency: Adjacency, *, epsilon: float, delta: float) -> Plot:
    """Plot every (epsilon, delta) pair that holds, with the reported one marked."""
    top = max(epsilon * 2, 0.5)
    profile = privacy_profile(event, adjacency=adjacency, epsilons=np.linspace(0.0, top, 161))
    # Below this delta the accountant rounds up; the flat line would look like a property of the mechanism.
    seen = profile.deltas > SMALLEST_PLD_DELTA
    epsilons, deltas = profile.epsilons[seen], profile.deltas[seen]

    def draw(axes: Axes) -> None:
        axes.semilogy(epsilons, deltas, color=BLUE)
        axes.semilogy([epsilon], [delta], "o", color=ORANGE, markersize=8)
        axes.annotate("reported", (epsilon, delta), xytext=(8, 6), textcoords="offset points")
        axes.set(xlabel="epsilon", ylabel="delta", xlim=(0, top), ylim=(delta * 1e-4, 1.5))
        plain_powers(axes.yaxis)

    note = "Every point on the line is a guarantee that holds; the dot is the one reported."
    numbers = {"epsilon": epsilons.tolist(), "delta": deltas.tolist()}
    return column_plot("privacy-profile", "Privacy profile", note, draw, numbers)


def spending_plot(
    table: Sequence[tuple[int, float]],
    *,
    rounds_charged: int,
    epsilon_spent: float,
    with_evaluations: bool = False,
    is_quicker_than_measurements: bool = False,
) -> Plot:
    """Plot epsilon against rounds, with the ledger's charged rounds marked.

    Args:
        table: Rows of (rounds, upper bound on the epsilon spent).
        rounds_charged: Rounds charged in the ledger.
        epsilon_spent: Epsilon spent by these rounds, and by private evaluations if there were any.
        with_evaluations: Whether there were; the dot then lies above the line.
        is_quicker_than_measurements: The page also shows measurements with the accountant's own epsilon, which may
            be smaller than the quick bounds of the table: the note explains the difference.
    """
    rounds, epsilons = [row[0] for row in table], [row[1] for row in table]

    def draw(axes: Axes) -> None:
        axes.plot(rounds, epsilons, color=BLUE)
        axes.plot([rounds_charged], [epsilon_spent], "o", color=ORANGE, markersize=8)
        ends_late = rounds_charged > rounds[-1] / 2
        axes.annotate(
            "charged, with evaluations" if with_evaluations else "charged",
            (rounds_charged, epsilon_spent),
            xytext=(0 if ends_late else 10, -26 if ends_late else -10),
            textcoords="offset points",
            ha="right" if ends_late else "left",
        )
        axes.set(xlabel="charged rounds", ylabel="epsilon spent, at most", ylim=(0, None), xlim=(0, None))

    return Plot(
        name="epsilon-by-round",
        title="Budget over the run",
        note="Epsilon of the plan after each round; the dot marks the charged rounds of the ledger"
        + (" together with its private evaluations." if with_evaluations else ".")
        + (_QUICKER_BOUND if is_quicker_than_measurements else ""),
        draw=draw,
        columns=("round", "epsilon"),
        rows=tuple((float(a), b) for a, b in table),
    )


def curve_plot(curve: Sequence[CurvePoint], *, is_share: bool) -> Plot:
    """Plot the measure against steps, with its interval."""
    steps = [point.step for point in curve]
    values = [point.measure.value for point in curve]
    lows, highs = [point.measure.low for point in curve], [point.measure.high for point in curve]
    label = "test accuracy" if is_share else "test error"

    def draw(axes: Axes) -> None:
        axes.fill_between(steps, lows, highs, color=GREEN, alpha=0.2, linewidth=0, label="95 % interval")
        axes.plot(steps, values, color=GREEN, label=label)
        axes.set(xlabel="step", ylabel=label)
        axes.legend(loc="lower right" if is_share else "upper right")

    return Plot(
        name="measure-by-step",
        title="Accuracy over the run" if is_share else "Test error over the run",
        note="Measured on public test data during the run.",
        draw=draw,
        columns=("step", "epsilon", "value", "low", "high", "n"),
        rows=tuple(
            (float(p.step), None if math.isinf(p.epsilon) else p.epsilon, m.value, m.low, m.high, float(m.num_examples))
            for p, m in zip(curve, (point.measure for point in curve), strict=True)
        ),
    )


def budget_plot(curve: Sequence[CurvePoint], *, is_share: bool) -> Plot:
    """Plot the measure against the epsilon spent at its step, with its interval."""
    spent = [point.epsilon for point in curve]
    measures = [point.measure for point in curve]
    label = "test accuracy" if is_share else "test error"

    def draw(axes: Axes) -> None:
        lows, highs = [measure.low for measure in measures], [measure.high for measure in measures]
        axes.fill_between(spent, lows, highs, color=BLUE, alpha=0.2, linewidth=0, label="95 % interval")
        axes.plot(spent, [measure.value for measure in measures], color=BLUE, label=label)
        axes.set(xlabel="epsilon spent, at most", ylabel=label, xlim=(0, None))
        axes.legend(loc="lower right" if is_share else "upper right")

    return Plot(
        name="measure-by-epsilon",
        title=f"{'Accuracy' if is_share else 'Test error'} against epsilon spent",
        note="The same measures against the epsilon spent at their step: one run over time, not one run per epsilon.",
        draw=draw,
        columns=("epsilon", "value", "low", "high", "n"),
        rows=tuple(
            (p.epsilon, m.value, m.low, m.high, float(m.num_examples)) for p, m in zip(curve, measures, strict=True)
        ),
    )


def plain_powers(axis: Axis) -> None:
    """Write powers of ten as 1e-05: matplotlib's raised exponents are formulas, which are switched off here."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def draw_svg(name: str, draw: Callable[[Axes], None]) -> str:
    """Draw on new axes and return an SVG element with the colours of the page."""
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"([^>]*?)width="[^"]*"', r"<svg \1\2", text, count=1)
    # Ids inside an SVG element are ids of the whole page: each picture gets its own prefix.
    text = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    return text.replace(INK, "currentColor").replace(_GRID, "var(--grid)")
