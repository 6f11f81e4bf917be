"""A study of groups by epsilon as one page for readers without statistics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from privet.accounting.guarantee import rounded_up
from privet.errors import DataError, DependencyError
from privet.reports.plots import BLUE, INK, ORANGE, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Span = tuple[float, float, float]
_DECISIONS = (
    ("demographic_parity", "Difference in the share that is predicted to earn more, best group against worst"),
    ("equalized_odds", "Largest difference in true or in false positive rate"),
)


def groups_page(rows: Sequence[Row]) -> str:
    """Return the page as HTML: self-contained, no script, everything that came from a file escaped.

    Args:
        rows: Of the study ``adult-groups``; the arms in the order of the page, that without privacy first.
    """
    try:
        import jinja2
    except ImportError as error:
        raise DependencyError(f"The page needs {error.name}. Install it with: pip install 'privet[report]'.") from None
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = (resources.files("privet_research") / "pages" / "templates" / "groups.html.j2").read_text("utf-8")
    return environment.from_string(template).render(_values(rows))


def _values(rows: Sequence[Row]) -> dict[str, Any]:
    arms = {arm: [row for row in rows if row["arm"] == arm] for arm in dict.fromkeys(row["arm"] for row in rows)}
    if len(arms) < 2:
        raise DataError("The page compares arms, and there is one or none. Run the whole study.")
    attributes = [one["attribute"] for one in rows[0]["fairness"]["attributes"] if one["attribute"] != "class"]
    return {
        "num_runs": len({row["seed"] for row in rows}),
        "num_test": f"{rows[0]['num_test']:,}",
        "delta": f"{rows[0]['delta']:g}",
        "num_rates": max(row.get("num_rates_tried", 1) for row in rows),
        "summary": [_overall(arms), *_by_class(arms), *(_gap_sentence(arms, name) for name in attributes)],
        "odds": [(arm, f"{math.exp(_spent(found)):.1f}") for arm, found in arms.items() if _spent(found)],
        "overall": [_overall_row(arm, found) for arm, found in arms.items()],
        "arms": list(arms),
        "attributes": [_attribute(arms, name) for name in attributes],
        "plot": _gap_plot(arms, attributes),
    }


def _spent(rows: Sequence[Row]) -> float:
    """Return the largest epsilon of an arm; zero without privacy."""
    return max(row["epsilon"] or 0.0 for row in rows)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _span(found: Span) -> str:
    return f"{100 * found[0]:.1f} ({100 * found[1]:.1f} to {100 * found[2]:.1f})"


def _mean(values: Sequence[Mapping[str, float]]) -> Span:
    """Return the mean over runs of a value and of the ends of its interval."""
    low, middle, high = (statistics.fmean(value[key] for value in values) for key in ("low", "value", "high"))
    return middle, low, high


def _reports(rows: Sequence[Row], name: str) -> list[Mapping[str, Any]]:
    return [next(one for one in row["fairness"]["attributes"] if one["attribute"] == name) for row in rows]


def _gap(rows: Sequence[Row], name: str) -> Span:
    return _mean([report["accuracy_gap"] for report in _reports(rows, name)])


def _overall(arms: Mapping[str, Sequence[Row]]) -> str:
    first, *_, last = arms
    before, after = (statistics.fmean(row["accuracy"] for row in arms[arm]) for arm in (first, last))
    return (
        f"Overall, the share of right answers is {_percent(before)} with {first} and {_percent(after)} at {last}: "
        f"the strongest protection shown here costs {100 * (before - after):.1f} points."
    )


def _by_class(arms: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return a sentence on the class with the largest loss of accuracy, which gaps between groups do not show."""
    if not any(
        one["attribute"] == "class" for row in next(iter(arms.values())) for one in row["fairness"]["attributes"]
    ):
        return []
    first, *_, last = arms
    shares = {arm: dict(_shares(_reports(arms[arm], "class"))) for arm in (first, last)}
    name = min(shares[first], key=lambda each: shares[last][each][0] - shares[first][each][0])
    before, after = shares[first][name], shares[last][name]
    sentence = (
        f"Of the people whose true answer is {name}, {_span(before)} % are right with {first} and "
        f"{_span(after)} % at {last}."
    )
    return [sentence + (" No other answer loses more." if after[0] < before[0] else " No answer loses.")]


def _shares(reports: Sequence[Mapping[str, Any]]) -> list[tuple[str, Span]]:
    """Return the share of right answers of each group, with its interval."""
    names = [group["name"] for group in reports[0]["groups"]]
    found = {
        name: [one["accuracy"] for report in reports for one in report["groups"] if one["name"] == name]
        for name in names
    }
    return [(name, _mean(values)) for name, values in found.items()]


def _gap_sentence(arms: Mapping[str, Sequence[Row]], name: str) -> str:
    """Return a sentence on the change of the gap of one column, and its significance."""
    first, *_, last = arms
    before, after = _gap(arms[first], name), _gap(arms[last], name)
    worst = statistics.mode(report["worst_group"] for report in _reports(arms[last], name))
    overlaps = before[1] <= after[2] and after[1] <= before[2]
    sure = (
        "These ranges overlap, so this does not show that privacy changed the gap."
        if overlaps
        else f"These ranges do not overlap: privacy {'widened' if after[0] > before[0] else 'narrowed'} the gap."
    )
    return (
        f"By {name}, the gap between the group served best and the group served worst is {_span(before)} points with "
        f"{first} and {_span(after)} points at {last}. {sure} At {last} the group served worst is {worst}."
    )


def _overall_row(arm: str, rows: Sequence[Row]) -> tuple[str, str, str, str]:
    values = [row["accuracy"] for row in rows]
    spent = _spent(rows)
    return (
        arm,
        rounded_up(spent) if spent else "none promised",
        _percent(statistics.fmean(values)),
        f"{_percent(min(values))} to {_percent(max(values))}",
    )


def _attribute(arms: Mapping[str, Sequence[Row]], name: str) -> dict[str, Any]:
    found = {arm: _reports(rows, name) for arm, rows in arms.items()}
    counts = {group["name"]: group["num_examples"] for group in next(iter(found.values()))[0]["groups"]}
    shares = [dict(_shares(reports)) for reports in found.values()]
    lines = [(name, f"{count:,}", *(_span(own[name]) for own in shares)) for name, count in counts.items()]
    gaps = ("gap, best against worst", "", *(_span(_gap(rows, name)) for rows in arms.values()))
    return {"name": name, "lines": [*lines, gaps], "decisions": _decisions(arms, name)}


def _decisions(arms: Mapping[str, Sequence[Row]], name: str) -> list[tuple[str, ...]]:
    lines = []
    for key, words in _DECISIONS:
        values = [
            [one[key] for row in rows for one in row["fairness"]["decisions"] if one["attribute"] == name]
            for rows in arms.values()
        ]
        if all(values):
            lines.append((words, *(f"{100 * statistics.fmean(own):.1f}" for own in values)))
    return lines


def _gap_plot(arms: Mapping[str, Sequence[Row]], attributes: Sequence[str]) -> Plot:
    spans = {name: [_gap(rows, name) for rows in arms.values()] for name in attributes}

    def draw(axes: Axes) -> None:
        for place, (colour, marker) in zip(range(len(attributes)), ((BLUE, "o"), (ORANGE, "s")), strict=False):
            found = spans[attributes[place]]
            spots = [number + 0.12 * place for number in range(len(found))]
            for spot, (_, low, high) in zip(spots, found, strict=True):
                axes.plot([spot, spot], [100 * low, 100 * high], color=INK, linewidth=1.2)
            label = f"column {place + 1}" if attributes[place] not in ("sex", "race") else f"by {attributes[place]}"
            axes.plot(spots, [100 * value for value, _, _ in found], marker, color=colour, label=label)
        spent = [_spent(rows) for rows in arms.values()]
        axes.set_xticks(range(len(arms)), [f"epsilon {value:.2g}" if value else "no privacy" for value in spent])
        axes.set(ylabel="gap in accuracy, points", ylim=(0, None))
        axes.legend()

    return Plot(
        name="gaps",
        title="Gap between the group served best and the group served worst",
        note="Lines are 95 % intervals over the choice of test people.",
        draw=draw,
        columns=("attribute", "epsilon", "gap", "low", "high"),
        rows=tuple(
            (float(place), _spent(rows) or None, *spans[name][number])
            for place, name in enumerate(attributes)
            for number, rows in enumerate(arms.values())
        ),
    )
