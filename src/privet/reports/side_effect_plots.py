"""Plots of side effects: accuracy of every group, and accuracy by the radius of an attack."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from privet.effects.groups import AttributeReport
from privet.effects.radii import RobustnessReport
from privet.reports.plots import BLUE, INK, ORANGE, PALE, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LONGEST_NAME = 20


def _drawn_names(report: AttributeReport, known: Collection[str]) -> list[str]:
    """Return the groups' names if the data set declares them: no other text from a file is drawn."""
    names = [group.name for group in report.groups]
    shown = [name if name in known else f"group {place + 1}" for place, name in enumerate(names)]
    return [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}." for name in shown]


def group_plot(report: AttributeReport, *, number: int, known_names: Collection[str]) -> Plot:
    """Plot the accuracy of each group with its interval; the worst group is hatched.

    Args:
        report: The groups of one attribute.
        number: Number of the attribute, for the name of the plot.
        known_names: Names of groups and attributes that the data set declares.
    """
    names = _drawn_names(report, known_names)
    attribute = report.attribute if report.attribute in known_names else f"column {number}"
    places = list(range(len(names)))

    def draw(axes: Axes) -> None:
        for place, group in zip(places, report.groups, strict=True):
            is_worst = group.name == report.worst_group
            colour = ORANGE if is_worst else BLUE
            value, low, high = group.accuracy.value, group.accuracy.low, group.accuracy.high
            shades: dict[str, Any] = {"facecolor": PALE[colour] if is_worst else colour, "edgecolor": colour}
            axes.barh([place], [value], height=0.7, hatch="//" if is_worst else None, **shades)
            axes.plot([low, high], [place, place], color=INK, linewidth=1.6, solid_capstyle="butt")
            axes.plot([low, high], [place, place], "|", color=INK, markersize=7)
        axes.set(xlabel="accuracy", xlim=(0, 1), ylim=(len(names) - 0.4, -0.6))
        axes.set_yticks(places, names)
        axes.grid(axis="y", visible=False)
        axes.set_axisbelow(True)

    return Plot(
        name=f"groups-{number}",
        title=f"Accuracy by {attribute}",
        note="Black lines are 95 % intervals over the choice of test examples; the hatched bar is the worst group.",
        draw=draw,
        columns=("group", "num_examples", "accuracy", "low", "high"),
        rows=tuple(
            (float(place + 1), float(group.num_examples), group.accuracy.value, group.accuracy.low, group.accuracy.high)
            for place, group in zip(places, report.groups, strict=True)
        ),
    )


def radius_plot(report: RobustnessReport) -> Plot:
    """Plot accuracy against the radius of the attack, with score intervals."""
    radii = [point.radius for point in report.points]

    def draw(axes: Axes) -> None:
        values, lows, highs = (
            [getattr(point.accuracy, name) for point in report.points] for name in ("value", "low", "high")
        )
        axes.fill_between(radii, lows, highs, color=BLUE, alpha=0.2, linewidth=0)
        axes.plot(radii, values, "o-", color=BLUE, markersize=4, clip_on=False)
        axes.set(xlabel="radius of the change", ylabel="accuracy", xlim=(0, max(radii)), ylim=(0, 1))

    return Plot(
        name="robustness",
        title="Accuracy under attack",
        note="The attack may change each input by up to the radius. A better attack may mislead the model more often.",
        draw=draw,
        columns=("radius", "accuracy", "low", "high"),
        rows=tuple((p.radius, p.accuracy.value, p.accuracy.low, p.accuracy.high) for p in report.points),
    )
