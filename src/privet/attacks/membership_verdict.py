"""Evaluation of membership scores: ROC curve, AUC, true positives at low false-positive rates, and the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privet import checks
from privet.accounting.guarantee import trade_off
from privet.attacks.intervals import Proportion, clopper_pearson, upper_limit
from privet.mechanism.events import DpEvent
from privet.records import Count, Record
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from privet.attacks.membership import MembershipScores

Array = NDArray[np.float64]
CONFIDENCE = 0.95
LEVELS = (0.001, 0.01)
_LIMIT_POINTS = 2001
_MOST_ROC_POINTS = 300
# Suffix for attacks on a network before training: the control, which cannot detect members.
NEVER_TRAINED = ", control: never trained"


@dataclass(frozen=True, kw_only=True)
class AttackLimit:
    """The limit of every membership attack, by the guarantee of the mechanism that trained the model."""

    event: DpEvent
    adjacency: Adjacency

    def true_positive_rates(self, false_positive_rates: Sequence[float] | Array) -> Array:
        """Return the largest true-positive rate at each false-positive rate."""
        rates = 1 - trade_off(self.event, adjacency=self.adjacency, false_positive_rates=false_positive_rates)
        return np.asarray(np.minimum(rates, 1.0))

    @cached_property
    def area(self) -> float:
        """The largest area under a ROC curve, rounded up.

        Guarantee: an upper bound. The limit increases with the false-positive rate, so a sum over right ends of
        intervals is never below the integral.
        """
        return float(self.true_positive_rates(np.linspace(0.0, 1.0, _LIMIT_POINTS))[1:].mean())


@dataclass(frozen=True, kw_only=True)
class Area:
    """The area under the ROC curve: the probability that a member scores above a non-member; 0.5 is chance.

    The interval is that of DeLong et al. (1988), a normal approximation; the area is no proportion of trials.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """The attack at one threshold.

    Attributes:
        level: The target false-positive rate.
        false_positives: False-positive rate. The threshold is the score of a non-member, so the Clopper-Pearson
            interval is exact.
        true_positives: True-positive rate; its interval is exact, because the threshold does not depend on members.
        limit: The largest true-positive rate that the guarantee allows at ``level``; 1 without a guarantee.
        sure_limit: The same at the upper end of the false-positive interval, for a comparison that includes chance.
    """

    level: float
    false_positives: Proportion
    true_positives: Proportion
    limit: float
    sure_limit: float

    @property
    def exceeds_limit(self) -> bool:
        """Whether the attack exceeds the limit by more than chance, which refutes the guarantee."""
        return self.true_positives.low > self.sure_limit


@dataclass(frozen=True, kw_only=True)
class MembershipReport(Record):
    """The result of one attack, beside its limit.

    Attributes:
        attack: Name of the attack.
        num_members: Number of training records.
        num_non_members: Number of other records.
        area: Area under the ROC curve.
        area_limit: The largest area that the guarantee allows; 1 without a guarantee.
        points: The attack at low false-positive rates.
        roc: Pairs of false-positive and true-positive rates, ascending.
    """

    WHAT: ClassVar[str] = "a membership report"

    attack: str
    num_members: Count
    num_non_members: Count
    area: Area
    area_limit: float
    points: tuple[OperatingPoint, ...]
    roc: tuple[tuple[float, float], ...]


def membership_report(
    scores: MembershipScores, limit: AttackLimit | None, *, levels: Sequence[float] = LEVELS
) -> MembershipReport:
    """Summarise an attack beside its limit.

    Args:
        scores: Scores of one attack.
        limit: Limit of the mechanism that trained the model; None for a model without a guarantee.
        levels: False-positive rates of the operating points.
    """
    return MembershipReport(
        attack=scores.attack,
        num_members=len(scores.members),
        num_non_members=len(scores.non_members),
        area=_area(scores),
        area_limit=1.0 if limit is None else limit.area,
        points=tuple(_point(scores, limit, checks.probability("level", level)) for level in levels),
        roc=_roc(scores),
    )


def _area(scores: MembershipScores) -> Area:
    members, others = np.sort(scores.members), np.sort(scores.non_members)
    # For each record, the fraction of the other side below it; equal scores count half.
    beats = (np.searchsorted(others, members, "left") + np.searchsorted(others, members, "right")) / (2 * len(others))
    beaten = (np.searchsorted(members, others, "left") + np.searchsorted(members, others, "right")) / (2 * len(members))
    value = float(beats.mean())
    spread = 0.0
    for part in (beats, beaten):
        spread += float(part.var(ddof=1)) / len(part) if len(part) > 1 else 1.0
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(spread)
    return Area(value=value, low=max(0.0, value - half), high=min(1.0, value + half))


def _point(scores: MembershipScores, limit: AttackLimit | None, level: float) -> OperatingPoint:
    ordered = np.sort(scores.non_members)[::-1]
    num_allowed = min(math.floor(level * len(ordered)), len(ordered) - 1)
    threshold = ordered[num_allowed]
    num_false = int((scores.non_members > threshold).sum())
    # With equal scores the count may be below the allowed one; the larger of the two limits is valid.
    highest = upper_limit(num_allowed, len(ordered), confidence=(1 + CONFIDENCE) / 2)
    false = clopper_pearson(num_false, len(ordered), confidence=CONFIDENCE)
    found = int((scores.members > threshold).sum())
    limits = [1.0, 1.0] if limit is None else limit.true_positive_rates([level, max(highest, false.high)]).tolist()
    return OperatingPoint(
        level=level,
        false_positives=false,
        true_positives=clopper_pearson(found, len(scores.members), confidence=CONFIDENCE),
        limit=limits[0],
        sure_limit=limits[1],
    )


def _roc(scores: MembershipScores) -> tuple[tuple[float, float], ...]:
    """Return the curve at up to a few hundred false-positive rates on a logarithmic scale."""
    others, members = np.sort(scores.non_members), np.sort(scores.members)
    size = len(others)
    wanted = np.unique(np.round(np.logspace(0, math.log10(size), _MOST_ROC_POINTS)).astype(np.int64))
    thresholds = others[size - wanted]
    false = (size - np.searchsorted(others, thresholds, "left")) / size
    true = (len(members) - np.searchsorted(members, thresholds, "left")) / len(members)
    return tuple(dict.fromkeys(zip(false.tolist(), true.tolist(), strict=True)))
