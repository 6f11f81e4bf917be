"""Shift of features between public data and the data to fine-tune on; a large shift makes pre-training harmful.

Proposition 4.4 of Xu and Chen (2026): fine-tuning starts at the loss ``log(1 + exp(-a (cos(angle) - sin(angle))))``,
where the angle rotates one class's feature towards the other's. Beyond 45 degrees this is worse than the ``log 2`` of
an untrained network. The features of real data are unknown, so class means represent them, as in ``feature_estimate``.
With ``u`` the means of the public classes and ``f`` those of the target,

    margin(k) = min over j != k of (|f_k - u_j|^2 - |f_k - u_k|^2)  /  min over j != k of |u_k - u_j|^2

compares the distance of a class mean to its own public mean with the distance to the nearest other public mean; it is
1 without a shift. In the setting of the publication it equals ``cos(angle) - sin(angle)`` for the rotated class.

Limits: class means contain linear features at fixed positions only, and the proposition is about the initial loss,
whose influence decreases with private steps. The margin is a warning, not a bound. Not private: use public or held-out
data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.effects.feature_to_noise import pretraining_harms
from privet.effects.reliability import Interval
from privet.errors import DataError

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ClassShift:
    """The shift of one class.

    Attributes:
        name: Name of the class.
        margin: 1 without a shift; 0 if another public class is as near as its own; negative if it is nearer.
        nearest_other: The nearest other public class.
    """

    name: str
    margin: float
    nearest_other: str

    @property
    def angle(self) -> float:
        """The angle in radians, from 0 to 135 degrees, with this margin in the proposition."""
        return equivalent_angle(self.margin)

    @property
    def is_harmed(self) -> bool:
        """Whether Proposition 4.4 predicts a larger initial loss than from scratch for this class."""
        return pretraining_harms(self.angle)


@dataclass(frozen=True, kw_only=True)
class FeatureShift:
    """The shift between public data and the data to fine-tune on.

    Attributes:
        classes: One entry per class.
        margin: Mean over the classes, with a bootstrap interval over the examples of both data sets.
        confidence: Confidence level of the interval.
    """

    classes: tuple[ClassShift, ...]
    margin: Interval
    confidence: float

    @property
    def angle(self) -> float:
        """The largest angle of a class, in radians, which decides the bound of the proposition."""
        return max(found.angle for found in self.classes)

    @property
    def harmed_classes(self) -> tuple[str, ...]:
        """The classes for which Proposition 4.4 predicts a larger initial loss than from scratch."""
        return tuple(found.name for found in self.classes if found.is_harmed)

    @property
    def harms_on_average(self) -> bool:
        """Whether the mean margin is below zero."""
        return self.margin.value < 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "angle_degrees": math.degrees(self.angle),
            "harmed_classes": list(self.harmed_classes),
            "harms_on_average": self.harms_on_average,
        }


def equivalent_angle(margin: float) -> float:
    """Return the angle whose cosine minus sine is the margin, clamped to 0 to 135 degrees."""
    value = min(max(checks.number("margin", margin), -math.sqrt(2)), 1.0)
    return math.acos(value / math.sqrt(2)) - math.pi / 4


def feature_shift(
    public: tuple[Array, Codes],
    target: tuple[Array, Codes],
    *,
    class_names: Sequence[str],
    num_resamples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> FeatureShift:
    """Estimate the shift from examples of both data sets.

    Edge cases: refused are classes with fewer than two examples, values that are not finite, and public classes whose
    means differ by no more than chance.

    Args:
        public: Features, one row per example, and class numbers of the data to pre-train on.
        target: Features and class numbers of the data to fine-tune on, with the same normalisation.
        class_names: One name per class; both data sets have the same classes.
        num_resamples: Number of bootstrap samples.
        confidence: Confidence level of the interval.
        seed: Seed of the resampling.
    """
    level = checks.probability("confidence", confidence)
    generator = np.random.default_rng(checks.count("seed", seed, minimum=0))
    sides = [_sides(features, labels, len(class_names)) for features, labels in (public, target)]
    if sides[0][0].shape[1] != sides[1][0].shape[1]:
        raise DataError("Public and target examples must have equally many features. Choose other public data.")
    # One product for all resamples: row 0 of the weights is the data without resampling.
    count = checks.count("num_resamples", num_resamples)
    (own, errors), (moved, _) = (_means(rows, chosen, count, generator) for rows, chosen in sides)
    # a resampled mean has the sampling error of the data and that of the resampling
    found = [_margins(own[place], moved[place], errors if place == 0 else 2 * errors) for place in range(count + 1)]
    margins, others = found[0]
    lows = np.quantile([values.mean() for values, _ in found[1:]], [(1 - level) / 2, (1 + level) / 2])
    return FeatureShift(
        classes=tuple(
            ClassShift(name=name, margin=float(margin), nearest_other=class_names[int(other)])
            for name, margin, other in zip(class_names, margins, others, strict=True)
        ),
        margin=Interval(value=float(margins.mean()), low=float(lows[0]), high=float(lows[1])),
        confidence=level,
    )


def _sides(features: Array, labels: Codes, num_classes: int) -> tuple[Array, list[Codes]]:
    rows = np.asarray(features, dtype=np.float64).reshape(len(features), -1)
    if not np.isfinite(rows).all():
        raise DataError("Features must be finite numbers. Remove or fill in NaN and infinite values.")
    chosen = [np.flatnonzero(labels == code) for code in range(num_classes)]
    if num_classes < 2 or min(len(own) for own in chosen) < 2:
        raise DataError(
            "A shift is estimated from two classes or more with two examples or more of each, in both data sets."
        )
    return rows, chosen


def _means(rows: Array, chosen: Sequence[Codes], count: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Return class means ``[1 + resamples, class, feature]`` and the squared error of each class's mean."""
    means = np.empty((count + 1, len(chosen), rows.shape[1]))
    errors = np.empty(len(chosen))
    for code, own in enumerate(chosen):
        size = len(own)
        weights = np.vstack([np.ones(size), generator.multinomial(size, np.full(size, 1 / size), size=count)])
        means[:, code] = weights @ rows[own] / size
        errors[code] = rows[own].var(0, ddof=1).sum() / size
    return means, errors


def _margins(own: Array, moved: Array, errors: Array) -> tuple[Array, Codes]:
    """Return the margin and the nearest other class of every class, corrected for the noise of the public means."""
    blocked = np.diag(np.full(len(own), np.inf))
    far = ((moved[:, None] - own[None]) ** 2).sum(2) - errors
    gains = far - np.diag(far)[:, None] + blocked
    apart = (((own[:, None] - own[None]) ** 2).sum(2) - errors[:, None] - errors + blocked).min(1)
    if (apart <= 0).any():
        raise DataError(
            "The means of the public classes do not differ beyond chance: they have no linear features. Choose other "
            "public data."
        )
    return gains.min(1) / apart, gains.argmin(1)
