"""Measures of groups and the gaps between them, as plain values without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from privet import checks
from privet.effects.reliability import Interval
from privet.records import Count, Record, Size


@dataclass(frozen=True, kw_only=True)
class GroupFigures:
    """Measures of a classifier for one group.

    Attributes:
        name: Name of the group.
        num_examples: Number of examples.
        accuracy: Fraction of correct predictions.
        loss: Mean negative log-likelihood.
        calibration_error: ECE within the group; biased upwards in small groups.
    """

    name: str
    num_examples: Count
    accuracy: Interval
    loss: Interval
    calibration_error: Interval


@dataclass(frozen=True, kw_only=True)
class AttributeReport:
    """The groups of one attribute and the gaps between them.

    Attributes:
        attribute: ``class``, or the name of a declared column.
        groups: One entry per group with examples.
        empty_groups: Declared groups without examples.
        accuracy_gap: Largest accuracy of a group minus the smallest.
        loss_gap: Largest loss of a group minus the smallest.
        calibration_gap: Largest calibration error of a group minus the smallest.
        worst_group: The group of smallest accuracy; the first one if several are equal.
        worst_share: Fraction of the resamples in which that group has the smallest accuracy.
    """

    attribute: str
    groups: tuple[GroupFigures, ...]
    empty_groups: tuple[str, ...]
    accuracy_gap: Interval
    loss_gap: Interval
    calibration_gap: Interval
    worst_group: str
    worst_share: float


@dataclass(frozen=True, kw_only=True)
class DecisionDisparity:
    """Disparity of decisions between the groups of one attribute, for two classes.

    Attributes:
        attribute: Name of the attribute.
        demographic_parity: Largest difference between groups in the rate of positive predictions.
        equalized_odds: Largest difference between groups in the true or in the false positive rate.
        positive_class: Name of the favourable class.
        demographic_parity_interval: Bootstrap interval of ``demographic_parity``; None without resampling.
        equalized_odds_interval: Bootstrap interval of ``equalized_odds``; None without resampling.
    """

    attribute: str
    positive_class: str
    demographic_parity: float
    demographic_parity_interval: Interval | None = None
    equalized_odds: float
    equalized_odds_interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """Factors by which the theory of the feature-to-noise ratio expects a larger loss in a group than in the best one.

    Attributes:
        attribute: Name of the attribute.
        name: Name of the group.
        share: Its fraction of the examples.
        clip_factor: Its mean clipping factor.
        features: Factor due to weaker features.
        clipping: Factor due to stronger clipping.
        imbalance: Factor due to a smaller share.
    """

    attribute: str
    name: str
    share: Size
    clip_factor: Size
    features: Size
    clipping: Size
    imbalance: Size


@dataclass(frozen=True, kw_only=True)
class FairnessReport(Record):
    """Measures of a classifier for every class and every declared group.

    Attributes:
        num_examples: Number of examples.
        attributes: One entry for the classes, then one per declared attribute.
        decisions: Disparity of decisions for two classes; empty if not requested.
        sources: Expected sources of the gaps, one entry per group; empty if not requested.
        confidence: Confidence level of the intervals.
    """

    WHAT: ClassVar[str] = "a fairness report"

    num_examples: Count
    attributes: tuple[AttributeReport, ...]
    decisions: tuple[DecisionDisparity, ...] = ()
    sources: tuple[SourceRow, ...] = ()
    confidence: Annotated[float, checks.probability] = 0.95
