"""Rows of a private evaluation, for the terminal, the report and the model card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet.effects.noisy_counts.figures import Figure, rounded

if TYPE_CHECKING:
    from privet.runs.evaluated import PrivateEvaluation

GROUP_HEADER = ("column", "group", "value", "95 % interval", "about n")
CLASS_HEADER = ("class", "recall", "95 % interval", "precision", "95 % interval")
RELIABILITY_HEADER = ("probability said", "about n", "came true", "95 % interval", "fits")
HEADLINE_HEADER = ("measure", "model", "95 % interval", "always the same answer")
_LEAST_R2 = -10.0  # below it, by how much says nothing
_SHARES = ("accuracy", "recall", "precision", "came true")


def shown(figure: Figure, value: float) -> str:
    """Return a value of a figure as text: shares in percent, other numbers with three digits, a hopeless R2 as that."""
    if figure.name == "R2" and value < _LEAST_R2:
        return f"< {_LEAST_R2:g}"
    return f"{100 * value:.1f} %" if figure.name in _SHARES else f"{value:.3g}"


def interval(figure: Figure) -> str:
    """Return the interval of a figure as text."""
    return f"{shown(figure, figure.low)} to {shown(figure, figure.high)}"


def headline_rows(found: PrivateEvaluation) -> list[list[str]]:
    """Return the figures of the whole model beside those of one that always says the same."""
    constant = {figure.name: figure for figure in found.figures.constant}
    rows = []
    for figure in found.figures.headline:
        other = constant.get(figure.name)
        beside = "0.5" if figure.name.startswith("area") else "0" if figure.name == "R2" else ""
        beside = beside if other is None else shown(other, other.value)
        rows.append([figure.name, shown(figure, figure.value), interval(figure), beside])
    return rows


def confusion_rows(found: PrivateEvaluation) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the confusion matrix, as rounded noisy counts."""
    names = found.released.terms.class_names
    header = ["true class", *(f"decided {name}" for name in names)]
    rows = [
        [name, *(f"{rounded(value):,}" for value in row)]
        for name, row in zip(names, found.figures.confusion, strict=True)
    ]
    return header, rows


def class_rows(found: PrivateEvaluation) -> list[list[str]]:
    """Return recall and precision of every class."""
    return [
        [name, shown(recall, recall.value), interval(recall), shown(precision, precision.value), interval(precision)]
        for name, recall, precision in found.figures.classes
    ]


def group_rows(found: PrivateEvaluation) -> list[list[str]]:
    """Return the figures of every group."""
    return [
        [each.column, each.group, shown(each.figure, each.figure.value), interval(each.figure), _about(each.num_units)]
        for each in found.figures.groups
    ]


def reliability_rows(found: PrivateEvaluation) -> list[list[str]]:
    """Return the bins of probabilities with what came true; a bin fits if its interval meets its range."""
    rows = []
    for each in found.figures.reliability:
        true = each.came_true
        is_known = true.high - true.low < 1
        fits = "" if not is_known else "yes" if true.low <= each.high and true.high >= each.low else "no"
        value, ends = (shown(true, true.value), interval(true)) if is_known else ("not known", "too few")
        rows.append([f"{100 * each.low:g} to {100 * each.high:g} %", _about(each.num_units), value, ends, fits])
    return rows


def note(found: PrivateEvaluation) -> str:
    """Say what the figures are."""
    terms, unit = found.released.terms, found.unit
    per_person = ""
    if terms.records_per_person is not None:
        per_person = f" Every person counts once, with the mean of at most {terms.records_per_person} of their records."
    clip = f" A log loss above {terms.loss_clip:g} counts as that." if terms.class_names else ""
    heated = _heated(found)
    return (
        f"Released with noise from about {_about(found.released.count.value)} {unit}s at epsilon {found.epsilon:g}, "
        "which is part of the total. The intervals hold the noise and the choice of records, not the variation "
        f"between runs.{per_person}{clip}{heated}"
    )


def _heated(found: PrivateEvaluation) -> str:
    now = found.released.temperature * found.figures.temperature
    return (
        ""
        if now == 1
        else f" From now on predictions divide the outputs of the model by {now:.3g} (temperature scaling), which "
        "follows from these counts: probabilities fit better, and decisions stay."
    )


def _about(value: float) -> str:
    return f"{rounded(value):,}"
