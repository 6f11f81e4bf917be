"""Comparison of a run with a baseline at equal compute: the price of privacy."""

from __future__ import annotations

from dataclasses import dataclass

from privet.accounting.guarantee import rounded_up
from privet.effects.groups import AttributeReport
from privet.reports.content import RunContent, have_same_data
from privet.reports.differences import Figure, difference, is_supported, shown_difference, shown_numbers
from privet.reports.facets import facets_of

BASELINE_HEADER = ("on test data", "this run", "baseline", "difference", "95 % interval", "n each")
GROUP_PRICE_HEADER = ("group", "accuracy of this run", "of the baseline", "difference", "95 % interval", "n each")


@dataclass(frozen=True, kw_only=True)
class BaselineRow:
    """One measure of both runs, as text."""

    cells: tuple[str, ...]
    sentence: str | None


def unequal_terms(content: RunContent, baseline: RunContent) -> list[str]:
    """Name the differences in data, model, steps and batch that make the two runs unequal; empty if there are none."""
    pairs = [
        ("data set", content.data_name, baseline.data_name),
        ("model", content.model_name, baseline.model_name),
        ("steps", f"{content.plan.num_steps:,}", f"{baseline.plan.num_steps:,}"),
        ("expected batch", _batch(content), _batch(baseline)),
    ]
    return [f"{name}: {mine} here, {other} in the baseline" for name, mine, other in pairs if mine != other]


def _batch(content: RunContent) -> str:
    return f"{content.plan.sampling.expected_batch_size:,.0f}"


def baseline_terms(baseline: RunContent) -> str:
    """Describe the baseline: its guarantee, optimizer and learning rate."""
    spent, recipe = baseline.ledger.spent, baseline.recipe
    privacy = (
        "NOT PRIVATE"
        if spent.not_private_because
        else f"epsilon {rounded_up(spent.epsilon)} at delta {rounded_up(spent.delta)}"
    )
    if recipe is None:
        return f"{baseline.title}: {privacy}"
    optimizer = recipe.training.optimizer
    return f"{baseline.title}: {privacy}, {optimizer.kind} at learning rate {optimizer.learning_rate:g}"


def baseline_rows(content: RunContent, baseline: RunContent) -> list[BaselineRow]:
    """Return every figure of both runs with the difference, and a sentence where the interval excludes zero."""
    if not have_same_data((content, baseline)):
        return []
    rows = []
    for facet in facets_of([baseline, content]):
        two, one = facet.figures
        if one is None or two is None:
            continue
        found = difference(two, one)
        value, interval = shown_difference(found, is_share=facet.is_share)
        word = facet.more if found.value > 0 else facet.less
        sentence = f"This run is {word} than the baseline: {value} ({interval})."
        rows.append(
            BaselineRow(
                cells=_cells(facet.name, one, two, is_share=facet.is_share),
                sentence=sentence if is_supported(found) else None,
            )
        )
    return rows


def group_prices(content: RunContent, baseline: RunContent) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Return for each attribute the difference in accuracy of every group that both runs measured."""
    if content.fairness is None or baseline.fairness is None or not have_same_data((content, baseline)):
        return []
    others = {found.attribute: _accuracies(found) for found in baseline.fairness.attributes}
    tables = []
    for found in content.fairness.attributes:
        theirs = others.get(found.attribute, {})
        mine = _accuracies(found)
        rows = [_cells(name, mine[name], theirs[name], is_share=True) for name in mine if name in theirs]
        tables += [(found.attribute, rows)] if rows else []
    return tables


def _accuracies(report: AttributeReport) -> dict[str, Figure]:
    return {
        group.name: Figure(
            value=group.accuracy.value,
            low=group.accuracy.low,
            high=group.accuracy.high,
            num_examples=group.num_examples,
        )
        for group in report.groups
    }


def _cells(name: str, one: Figure, two: Figure, *, is_share: bool) -> tuple[str, ...]:
    change = shown_difference(difference(two, one), is_share=is_share)
    figures = (one.value, two.value)
    values = [f"{100 * each:.1f} %" for each in figures] if is_share else shown_numbers(figures)
    sizes = dict.fromkeys(f"{each.num_examples:,}" for each in (one, two))
    return name, *values, *change, " and ".join(sizes)
