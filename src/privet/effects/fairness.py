"""Measures of a classifier for every class and declared group, with intervals, and the examples of the highest loss.

Private training costs small groups and groups with weak features more accuracy than others (Bagdasaryan et al., 2019;
Xu and Chen, 2026). This module measures gaps of accuracy, loss and calibration; ``privet.effects.feature_to_noise``
explains them.

Not private: all results are exact functions of the examples. Measure on public or held-out data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.effects.groups import AttributeReport, DecisionDisparity, FairnessReport, GroupFigures
from privet.effects.reliability import Interval
from privet.errors import ArgumentError, DataError, DependencyError
from privet.training.predictions import Predictions

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
CLASS_ATTRIBUTE = "class"


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribute:
    """A declared partition of examples into groups.

    Attributes:
        name: Name of the attribute, such as ``sex``.
        group_names: One name per group.
        codes: The group number of each example, from 0.
    """

    name: str
    group_names: tuple[str, ...]
    codes: Codes

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes)
        if codes.ndim != 1 or not np.issubdtype(codes.dtype, np.integer):
            raise DataError(f"The groups of {self.name!r} must be one whole number per example.")
        if len(codes) and (codes.min() < 0 or codes.max() >= len(self.group_names)):
            raise DataError(f"The groups of {self.name!r} must be numbers from 0 to {len(self.group_names) - 1}.")
        if len(set(self.group_names)) != len(self.group_names):
            raise ArgumentError(f"{self.name!r} names a group twice. Give each group a different name.")


def check_attribute(attribute: Attribute, labels: Codes) -> None:
    """Refuse an attribute that does not allow a comparison of groups.

    Raises:
        DataError: the attribute has another number of examples, all examples are in one group, or a group has examples
            of one class only, so that its gap would be one between classes and not between groups.
    """
    if len(attribute.codes) != len(labels):
        raise DataError(f"{attribute.name!r} must give one group per example, and the two numbers differ.")
    present = np.unique(attribute.codes)
    if len(present) < 2:
        raise DataError(
            f"All examples are in one group of {attribute.name!r}, so there is no gap to measure. Leave it out, or "
            "evaluate on data with two groups or more."
        )
    single = [attribute.group_names[code] for code in present if len(np.unique(labels[attribute.codes == code])) < 2]
    if single:
        raise DataError(
            f"In {attribute.name!r}, the group {single[0]!r} holds examples of one class only: its measures would be "
            "those of the class. Merge it with another group, or evaluate on more data."
        )


def fairness_report(
    predictions: Predictions,
    *,
    class_names: Sequence[str],
    attributes: Sequence[Attribute] = (),
    num_bins: int = 15,
    num_resamples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> FairnessReport:
    """Measure accuracy, loss and calibration of every class and group, and the gaps between them.

    Intervals are bootstrap percentiles over the choice of examples within each group; they do not cover the variation
    between training runs. A gap is the maximum minus the minimum, so it is above zero even for equal groups: it is
    evidence only if its whole interval is well above the gap that groups of these sizes have by chance.

    Edge cases: an empty group is listed without measures; attributes that allow no comparison are refused.

    Args:
        predictions: Predictions on test data.
        class_names: One name per class.
        attributes: Declared attributes.
        num_bins: Number of bins of equal width for the calibration error.
        num_resamples: Number of bootstrap samples.
        confidence: Confidence level of the intervals.
        seed: Seed of the resampling.
    """
    for attribute in attributes:
        check_attribute(attribute, predictions.labels)
    classes = Attribute(name=CLASS_ATTRIBUTE, group_names=tuple(class_names), codes=predictions.labels)
    generator = np.random.default_rng(checks.count("seed", seed, minimum=0))
    level = checks.probability("confidence", confidence)
    table = _table(predictions, checks.count("num_bins", num_bins))
    count = checks.count("num_resamples", num_resamples)
    return FairnessReport(
        num_examples=predictions.num_examples,
        attributes=tuple(_measured(table, one, count, level, generator) for one in (classes, *attributes)),
        confidence=level,
    )


def _table(predictions: Predictions, num_bins: int) -> Array:
    """Return columns whose means are accuracy, loss, and each bin's part of the calibration error.

    A weighted mean of the rows gives all three measures, so a bootstrap resample is one matrix product.
    """
    confidences, right = predictions.confidences, predictions.is_right
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    places = np.minimum(np.searchsorted(edges[1:], confidences, side="left"), num_bins - 1)
    gaps = np.zeros((predictions.num_examples, num_bins))
    gaps[np.arange(predictions.num_examples), places] = confidences - right
    return np.column_stack([right, predictions.losses, gaps])


def _figures(means: Array) -> Array:
    """Return accuracy, loss and calibration error along the last axis, from means of the table's columns."""
    return np.stack([means[..., 0], means[..., 1], np.abs(means[..., 2:]).sum(-1)], axis=-1)


def _measured(
    table: Array, attribute: Attribute, count: int, confidence: float, generator: np.random.Generator
) -> AttributeReport:
    names = attribute.group_names
    present = [code for code in range(len(names)) if (attribute.codes == code).any()]
    values = np.empty((len(present), 3))
    resampled = np.empty((count, len(present), 3))
    for place, code in enumerate(present):
        rows = table[attribute.codes == code]
        values[place] = _figures(rows.mean(0))
        resampled[:, place] = _figures(_resampled_means(rows, count, generator))
    groups = tuple(
        GroupFigures(
            name=names[code],
            num_examples=int((attribute.codes == code).sum()),
            **dict(zip(("accuracy", "loss", "calibration_error"), found, strict=True)),
        )
        for code, found in zip(present, _intervals(values, resampled, confidence), strict=True)
    )
    gaps = _intervals(np.ptp(values, axis=0)[None], np.ptp(resampled, axis=1)[:, None], confidence)[0]
    worst = int(values[:, 0].argmin())
    return AttributeReport(
        attribute=attribute.name,
        groups=groups,
        empty_groups=tuple(name for code, name in enumerate(names) if code not in present),
        accuracy_gap=gaps[0],
        loss_gap=gaps[1],
        calibration_gap=gaps[2],
        worst_group=groups[worst].name,
        worst_share=float((resampled[:, :, 0].argmin(1) == worst).mean()),
    )


def _resampled_means(rows: Array, count: int, generator: np.random.Generator) -> Array:
    size = len(rows)
    found = np.empty((count, rows.shape[1]))
    for number in range(count):
        weights = np.bincount(generator.integers(size, size=size), minlength=size)
        found[number] = weights @ rows / size
    return found


def _intervals(values: Array, resampled: Array, confidence: float) -> list[list[Interval]]:
    tail = (1 - confidence) / 2
    lows, highs = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return [
        [
            Interval(value=float(value), low=float(low), high=float(high))
            for value, low, high in zip(*parts, strict=True)
        ]
        for parts in zip(values, lows, highs, strict=True)
    ]


def decision_disparity(
    predictions: Predictions,
    attribute: Attribute,
    *,
    class_names: Sequence[str],
    positive_class: int = 1,
    num_resamples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> DecisionDisparity:
    """Return demographic parity and equalized odds differences of a two-class model, by fairlearn.

    Intervals are bootstrap percentiles over the choice of examples within each group, for the rates of true and false
    positives within each class of a group. Like all gaps they are above zero even by chance.

    Raises:
        ArgumentError: there are not two classes.
        DataError: the attribute allows no comparison of groups.
        DependencyError: fairlearn is not installed.
    """
    if predictions.log_probabilities.shape[1] != 2 or len(class_names) != 2 or positive_class not in (0, 1):
        raise ArgumentError(
            "Differences of decisions are defined for two classes, one of them positive_class (0 or 1)."
        )
    check_attribute(attribute, predictions.labels)
    metrics = _fairlearn_metrics()
    truth = (predictions.labels == positive_class).astype(int)
    decided = (predictions.log_probabilities.argmax(1) == positive_class).astype(int)
    generator = np.random.default_rng(checks.count("seed", seed, minimum=0))
    count, level = checks.count("num_resamples", num_resamples), checks.probability("confidence", confidence)
    parts = [np.ones_like(truth) == 1, truth == 1, truth == 0]
    every, *by_class = (_rate_gaps(decided[part], attribute.codes[part], count, generator) for part in parts)
    parity, odds = (
        _intervals(np.array([[found[0]]]), found[1:, None, None], level)[0][0]
        for found in (every, np.max(by_class, axis=0))
    )
    return DecisionDisparity(
        attribute=attribute.name,
        demographic_parity=float(
            metrics.demographic_parity_difference(truth, decided, sensitive_features=attribute.codes)
        ),
        equalized_odds=float(metrics.equalized_odds_difference(truth, decided, sensitive_features=attribute.codes)),
        positive_class=class_names[positive_class],
        demographic_parity_interval=parity,
        equalized_odds_interval=odds,
    )


def _rate_gaps(
    decided: NDArray[np.int_], codes: NDArray[np.int64], count: int, generator: np.random.Generator
) -> Array:
    """Return the largest difference between groups in the positive rate, for the data and for every resample."""
    shares = np.array([decided[codes == code].mean() for code in np.unique(codes)])
    sizes = np.unique(codes, return_counts=True)[1]
    # resampling ones and zeros with replacement is a binomial draw
    resampled = generator.binomial(sizes, shares, size=(count, len(sizes))) / sizes
    return np.concatenate([[np.ptp(shares)], np.ptp(resampled, axis=1)])


def _fairlearn_metrics() -> Any:
    try:
        import fairlearn.metrics
    except ImportError as error:
        raise DependencyError(
            f"Differences of decisions between groups need fairlearn; {error.name} is missing. Install it with: "
            "pip install 'privet[effects]'."
        ) from None
    return fairlearn.metrics


@dataclass(frozen=True, kw_only=True)
class LongTail:
    """Positions of the examples with the largest and the smallest losses; equal losses are ordered by position.

    Attributes:
        hardest: Positions of the largest losses, largest first.
        easiest: Positions of the smallest losses, smallest first.
        num_right_among_hardest: Number of the hardest examples that are classified correctly.
    """

    hardest: tuple[int, ...]
    easiest: tuple[int, ...]
    num_right_among_hardest: int


def long_tail(predictions: Predictions, *, num_shown: int = 10, label: int | None = None) -> LongTail:
    """Return the examples of largest and of smallest loss, of one class or of all classes.

    Noise affects examples with rare features most, even within a class.

    Edge cases: if fewer than ``num_shown`` examples exist, all are returned.
    """
    count = checks.count("num_shown", num_shown)
    chosen = np.arange(predictions.num_examples) if label is None else np.flatnonzero(predictions.labels == label)
    order = chosen[np.argsort(predictions.losses[chosen], kind="stable")]
    hardest = chosen[np.argsort(-predictions.losses[chosen], kind="stable")][:count]
    return LongTail(
        hardest=tuple(int(place) for place in hardest),
        easiest=tuple(int(place) for place in order[:count]),
        num_right_among_hardest=int(predictions.is_right[hardest].sum()),
    )
