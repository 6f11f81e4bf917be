"""Evaluation of membership scores: ROC curve, AUC, hits at few false alarms, and the limit of a guarantee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privet import checks
from privet.accounting.guarantee import trade_off
from privet.attacks.intervals import Proportion, clopper_pearson, upper_limit
from privet.mechanism.events import DpEvent
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from privet.attacks.membership import MembershipScores

Array = NDArray[np.float64]
CONFIDENCE = 0.95
LEVELS = (0.001, 0.01)
_LIMIT_POINTS = 2001
_MOST_ROC_POINTS = 300
# Marks attacks on a network that has seen no record: what they achieve is no sign of members.
NEVER_TRAINED = ", control: never trained"


@dataclass(frozen=True, kw_only=True)
class AttackLimit:
    """The limit of every membership attack on average, by the guarantee of the mechanism that trained the model."""

    event: DpEvent
    adjacency: Adjacency

    def true_positive_rates(self, false_positive_rates: Sequence[float] | Array) -> Array:
        """Return the largest rate of members found at each rate of false alarms."""
        rates = 1 - trade_off(self.event, adjacency=self.adjacency, false_positive_rates=false_positive_rates)
        return np.asarray(np.minimum(rates, 1.0))

    @cached_property
    def area(self) -> float:
        """The largest area under a ROC curve, rounded up.

        Guarantee: an upper bound. The limit rises with the rate of false alarms, so a sum over right ends of intervals
        is never below the integral.
        """
        return float(self.true_positive_rates(np.linspace(0.0, 1.0, _LIMIT_POINTS))[1:].mean())


@dataclass(frozen=True, kw_only=True)
class Area:
    """The area under the ROC curve: how often a member scores above a non-member. 0.5 is guessing.

    The interval is DeLong's (1988), a normal approximation: the area is no share, so no exact interval exists.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """The attack at one threshold.

    Attributes:
        level: The rate of false alarms it aims at.
        false_positives: Non-members accused. The threshold is a score of a non-member, so the true rate has exactly the
            law behind the Clopper-Pearson interval.
        true_positives: Members found; exact, because the threshold was chosen without looking at members.
        limit: The largest rate of members found that the guarantee allows at ``level``; 1 without a guarantee.
        sure_limit: The same at the upper end of the false alarms' interval: what must not be exceeded for sure.
    """

    level: float
    false_positives: Proportion
    true_positives: Proportion
    limit: float
    sure_limit: float

    @property
    def exceeds_limit(self) -> bool:
        """Whether the attack exceeds the limit beyond chance: then the guarantee does not hold."""
        return self.true_positives.low > self.sure_limit


@dataclass(frozen=True, kw_only=True)
class MembershipReport:
    """The result of one attack, beside its limit.

    Attributes:
        attack: What made the scores.
        num_members: Records that trained the model.
        num_non_members: Records that did not.
        area: Under the ROC curve.
        area_limit: The largest area that the guarantee allows; 1 without a guarantee.
        points: At few false alarms.
        roc: Pairs of false-positive and true-positive rates, from rare to all.
    """

    attack: str
    num_members: int
    num_non_members: int
    area: Area
    area_limit: float
    points: tuple[OperatingPoint, ...]
    roc: tuple[tuple[float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        with checks.reading("a membership report"):
            area = {name: checks.number(name, data["area"][name]) for name in ("value", "low", "high")}
            return cls(
                attack=str(data["attack"]),
                num_members=checks.count("num_members", data["num_members"]),
                num_non_members=checks.count("num_non_members", data["num_non_members"]),
                area=Area(**area),
                area_limit=checks.number("area_limit", data["area_limit"]),
                points=tuple(_read_point(row) for row in data["points"]),
                roc=tuple((checks.number("roc", false), checks.number("roc", true)) for false, true in data["roc"]),
            )


def _read_point(row: Any) -> OperatingPoint:
    return OperatingPoint(
        false_positives=_read_proportion(row["false_positives"]),
        true_positives=_read_proportion(row["true_positives"]),
        **{name: checks.number(name, row[name]) for name in ("level", "limit", "sure_limit")},
    )


def _read_proportion(row: Any) -> Proportion:
    return Proportion(
        num_trials=checks.count("num_trials", row["num_trials"], minimum=0),
        **{name: checks.number(name, row[name]) for name in ("value", "low", "high", "confidence")},
    )


def membership_report(
    scores: MembershipScores, limit: AttackLimit | None, *, levels: Sequence[float] = LEVELS
) -> MembershipReport:
    """Summarise an attack beside its limit; None where the model comes without a guarantee.

    Args:
        scores: From one of the attacks.
        limit: Of the mechanism that trained the model.
        levels: Rates of false alarms at which to count.
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
    # For each record, the share of the other side that it beats; equal scores count half.
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
    accused = int((scores.non_members > threshold).sum())
    # Equal scores may leave fewer accused than allowed; the wider of the two intervals holds for both.
    highest = upper_limit(num_allowed, len(ordered), confidence=(1 + CONFIDENCE) / 2)
    false = clopper_pearson(accused, len(ordered), confidence=CONFIDENCE)
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
    """Return the curve at up to a few hundred false-positive rates, evenly spread on a logarithmic scale."""
    others, members = np.sort(scores.non_members), np.sort(scores.members)
    size = len(others)
    wanted = np.unique(np.round(np.logspace(0, math.log10(size), _MOST_ROC_POINTS)).astype(np.int64))
    thresholds = others[size - wanted]
    false = (size - np.searchsorted(others, thresholds, "left")) / size
    true = (len(members) - np.searchsorted(members, thresholds, "left")) / len(members)
    return tuple(dict.fromkeys(zip(false.tolist(), true.tolist(), strict=True)))
