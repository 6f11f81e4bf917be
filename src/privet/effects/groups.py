"""Figures of groups and the gaps between them: plain values that need no torch to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from privet import checks
from privet.effects.reliability import Interval

_MEASURES = ("accuracy", "loss", "calibration_error")
_DECISION_INTERVALS = ("demographic_parity_interval", "equalized_odds_interval")
_GAPS = ("accuracy_gap", "loss_gap", "calibration_gap")


@dataclass(frozen=True, kw_only=True)
class GroupFigures:
    """Measures of a classifier for one group.

    Attributes:
        name: The group.
        num_examples: How many examples the figures rest on.
        accuracy: Share of right predictions.
        loss: Mean negative log-likelihood.
        calibration_error: ECE within the group; biased upwards where the group is small.
    """

    name: str
    num_examples: int
    accuracy: Interval
    loss: Interval
    calibration_error: Interval

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            name=str(data["name"]),
            num_examples=checks.count("num_examples", data["num_examples"]),
            **{name: Interval.from_dict(data[name]) for name in _MEASURES},
        )


@dataclass(frozen=True, kw_only=True)
class AttributeReport:
    """The groups of one attribute and the gaps between them.

    Attributes:
        attribute: What sorts the examples: ``class``, or a declared column.
        groups: One row per group that has examples.
        empty_groups: Declared groups without an example; nothing can be said about them.
        accuracy_gap: Largest accuracy of a group minus the smallest.
        loss_gap: The same of the loss.
        calibration_gap: The same of the calibration error.
        worst_group: The group of least accuracy; the first of equals.
        worst_share: Share of the resamples in which that group has the least accuracy: near 1 the choice is sure.
    """

    attribute: str
    groups: tuple[GroupFigures, ...]
    empty_groups: tuple[str, ...]
    accuracy_gap: Interval
    loss_gap: Interval
    calibration_gap: Interval
    worst_group: str
    worst_share: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            attribute=str(data["attribute"]),
            groups=tuple(GroupFigures.from_dict(row) for row in data["groups"]),
            empty_groups=tuple(str(name) for name in data["empty_groups"]),
            worst_group=str(data["worst_group"]),
            worst_share=checks.number("worst_share", data["worst_share"]),
            **{name: Interval.from_dict(data[name]) for name in _GAPS},
        )


@dataclass(frozen=True, kw_only=True)
class DecisionDisparity:
    """Disparity of decisions between the groups of one attribute, for two classes.

    Attributes:
        attribute: What sorts the examples.
        demographic_parity: Largest difference between groups in the share that is given the positive class.
        equalized_odds: Largest difference between groups in the true or in the false positive rate.
        positive_class: Name of the class that counts as the favourable decision.
        demographic_parity_interval: Bootstrap interval of the first difference; None where none was made.
        equalized_odds_interval: The same of the second.
    """

    attribute: str
    demographic_parity: float
    equalized_odds: float
    positive_class: str
    demographic_parity_interval: Interval | None = None
    equalized_odds_interval: Interval | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            attribute=str(data["attribute"]),
            demographic_parity=checks.number("demographic_parity", data["demographic_parity"]),
            equalized_odds=checks.number("equalized_odds", data["equalized_odds"]),
            positive_class=str(data["positive_class"]),
            **{name: _interval_in(data.get(name)) for name in _DECISION_INTERVALS},
        )


def _interval_in(data: Any) -> Interval | None:
    return None if data is None else Interval.from_dict(data)


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """Why the theory of the feature-to-noise ratio expects more loss in a group than in the best one.

    Attributes:
        attribute: What sorts the examples.
        name: The group.
        share: Its share of the examples.
        clip_factor: What clipping leaves of its gradients on average.
        features: Factor on the expected loss from weaker features.
        clipping: Factor from stronger clipping.
        imbalance: Factor from being rarer.
    """

    attribute: str
    name: str
    share: float
    clip_factor: float
    features: float
    clipping: float
    imbalance: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        numbers = ("share", "clip_factor", "features", "clipping", "imbalance")
        return cls(
            attribute=str(data["attribute"]),
            name=str(data["name"]),
            **{name: checks.non_negative(name, data[name]) for name in numbers},
        )


@dataclass(frozen=True, kw_only=True)
class FairnessReport:
    """Measures of a classifier for every class and every declared group.

    Attributes:
        num_examples: How many examples it rests on.
        attributes: One entry for the classes, then one per declared attribute.
        decisions: For two classes, how differently groups are decided about; empty where that was not asked for.
        sources: Where gaps are expected from, group by group; empty where that was not asked for.
        confidence: Level of the intervals.
    """

    num_examples: int
    attributes: tuple[AttributeReport, ...]
    decisions: tuple[DecisionDisparity, ...] = ()
    sources: tuple[SourceRow, ...] = ()
    confidence: float = 0.95

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        with checks.reading("a fairness report"):
            return cls(
                num_examples=checks.count("num_examples", data["num_examples"]),
                attributes=tuple(AttributeReport.from_dict(row) for row in data["attributes"]),
                decisions=tuple(DecisionDisparity.from_dict(row) for row in data["decisions"]),
                sources=tuple(SourceRow.from_dict(row) for row in data["sources"]),
                confidence=checks.probability("confidence", data["confidence"]),
            )
