"""Accuracy by confidence and calibration errors, as plain values without torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Self

from privet.records import Count, read_record

_INTERVALS = ("accuracy", "expected_error", "largest_error", "brier_score", "negative_log_likelihood")
# Files of earlier versions do not contain these intervals.
_OPTIONAL = ("over_confidence", "under_confidence")


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """The predictions with confidence in ``(low, high]``; the means of an empty bin are zero.

    Attributes:
        low: Lower end, not included.
        high: Upper end, included.
        num_examples: Number of predictions.
        confidence: Their mean confidence.
        accuracy: Fraction of correct predictions.
    """

    low: float
    high: float
    num_examples: int
    confidence: float
    accuracy: float

    @property
    def over_confidence(self) -> float:
        """Mean confidence minus accuracy; negative for under-confident predictions."""
        return self.confidence - self.accuracy


class Binning(Enum):
    """The rule that defines the bins of confidence."""

    EQUAL_WIDTH = "equal width"
    EQUAL_MASS = "equal mass"


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Accuracy by confidence (a reliability diagram), and the calibration errors."""

    bins: tuple[ReliabilityBin, ...]
    binning: Binning

    def to_dict(self) -> dict[str, Any]:
        return {"binning": self.binning.value, "bins": [asdict(entry) for entry in self.bins]}

    @property
    def num_examples(self) -> int:
        return sum(entry.num_examples for entry in self.bins)

    @property
    def expected_error(self) -> float:
        """ECE: the mean absolute gap between confidence and accuracy, weighted by the number of predictions."""
        return math.fsum(self._weighted(abs(entry.over_confidence), entry) for entry in self.bins)

    @property
    def largest_error(self) -> float:
        """MCE: the largest absolute gap of a bin that is not empty. Unreliable if that bin has few predictions."""
        return max((abs(entry.over_confidence) for entry in self.bins if entry.num_examples), default=0.0)

    @property
    def worst_bin_size(self) -> int:
        """The number of predictions in the bin of the largest error."""
        worst = max(
            (entry for entry in self.bins if entry.num_examples), key=lambda e: abs(e.over_confidence), default=None
        )
        return 0 if worst is None else worst.num_examples

    @property
    def over_confidence(self) -> float:
        """The part of the expected error from over-confident bins."""
        return math.fsum(self._weighted(max(entry.over_confidence, 0.0), entry) for entry in self.bins)

    @property
    def under_confidence(self) -> float:
        """The part of the expected error from under-confident bins."""
        return math.fsum(self._weighted(max(-entry.over_confidence, 0.0), entry) for entry in self.bins)

    def _weighted(self, gap: float, entry: ReliabilityBin) -> float:
        return gap * entry.num_examples / self.num_examples if entry.num_examples else 0.0


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and its bootstrap percentile interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class CalibrationReport:
    """The calibration of one classifier on one set of examples.

    Attributes:
        num_examples: Number of examples.
        accuracy: Fraction of correct predictions.
        expected_error: ECE.
        largest_error: MCE; its interval is wide if bins have few predictions.
        brier_score: Mean squared distance between the probabilities and the one-hot label.
        negative_log_likelihood: Mean loss.
        reliability: The bins of the reliability diagram.
        over_confidence: The part of the expected error from over-confident bins; None in files of earlier versions.
        under_confidence: The part of the expected error from under-confident bins; None in files of earlier versions.
    """

    num_examples: Count
    accuracy: Interval
    expected_error: Interval
    over_confidence: Interval | None = None
    under_confidence: Interval | None = None
    largest_error: Interval
    brier_score: Interval
    negative_log_likelihood: Interval
    reliability: Reliability

    def to_dict(self) -> dict[str, Any]:
        known = (name for name in (*_INTERVALS, *_OPTIONAL) if getattr(self, name) is not None)
        intervals = {name: asdict(getattr(self, name)) for name in known}
        return {"num_examples": self.num_examples, **intervals, "reliability": self.reliability.to_dict()}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        return read_record(cls, data, what="a calibration report")
