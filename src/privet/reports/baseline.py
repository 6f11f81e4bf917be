"""A run beside a baseline: what privacy cost, at equal compute."""

from __future__ import annotations

from dataclasses import dataclass

from privet.accounting.guarantee import rounded_up
from privet.reports.content import RunContent
from privet.reports.differences import Figure, difference, is_supported, points

BASELINE_HEADER = ("on test data", "this run", "baseline", "difference", "95 % interval", "n each")


@dataclass(frozen=True, kw_only=True)
class BaselineRow:
    """One measure of both runs, as text."""

    cells: tuple[str, ...]
    sentence: str | None


def unequal_terms(content: RunContent, baseline: RunContent) -> list[str]:
    """Name what keeps the two runs from having had equal compute on equal data; empty where nothing does."""
    pairs = [
        ("data set", content.recipe.info.name, baseline.recipe.info.name),
        ("model", content.recipe.model, baseline.recipe.model),
        ("steps", f"{content.plan.num_steps:,}", f"{baseline.plan.num_steps:,}"),
        ("expected batch", _batch(content), _batch(baseline)),
    ]
    return [f"{name}: {mine} here, {other} in the baseline" for name, mine, other in pairs if mine != other]


def _batch(content: RunContent) -> str:
    return f"{content.plan.sampling.expected_batch_size:,.0f}"


def baseline_terms(baseline: RunContent) -> str:
    """Say what the baseline is: how much privacy it has left."""
    spent = baseline.ledger.spent
    return f"{baseline.recipe.title}: epsilon {rounded_up(spent.epsilon)} at delta {rounded_up(spent.delta)}"


def baseline_rows(content: RunContent, baseline: RunContent) -> list[BaselineRow]:
    """Return every measure that both runs have, with the difference; in words only where the interval supports it."""
    mine = {} if content.metrics is None else {measure.name: measure for measure in content.metrics.measures}
    other = {} if baseline.metrics is None else {measure.name: measure for measure in baseline.metrics.measures}
    if content.recipe.info.name != baseline.recipe.info.name:
        return []
    rows = []
    for name in (name for name in mine if name in other):
        is_share = name == "accuracy"
        one, two = mine[name], other[name]
        found = difference(
            Figure(value=two.value, low=two.low, high=two.high, num_examples=two.num_examples),
            Figure(value=one.value, low=one.low, high=one.high, num_examples=one.num_examples),
        )
        shown = points if is_share else "{:+.4g}".format
        values = [f"{100 * each.value:.1f} %" if is_share else f"{each.value:.4g}" for each in (one, two)]
        interval = f"{shown(found.low)} to {shown(found.high)}"
        sizes = (
            f"{one.num_examples:,}"
            if one.num_examples == two.num_examples
            else f"{one.num_examples:,}, {two.num_examples:,}"
        )
        direction = "higher" if found.value > 0 else "lower"
        sentence = f"The {name} is {direction} than the baseline's: {shown(found.value)} ({interval})."
        rows.append(
            BaselineRow(
                cells=(name, *values, shown(found.value), interval, sizes),
                sentence=sentence if is_supported(found) else None,
            )
        )
    return rows
