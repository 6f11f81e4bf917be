"""Sources of a gap between groups, estimated on real data: features, clipping, imbalance.

The theory of the feature-to-noise ratio assumes known features; those of real data are unknown. The estimate uses the
differences between class means as features, and counts everything else as noise:

* feature size: root mean square distance of the class means from their centre, corrected for sampling noise;
* noise length: root mean square distance of an example from the mean of its class;
* clipping factor: the mean of ``min(1, C / |gradient|)`` at the given model.

Limits: class means contain linear features only, so nonlinear features count as noise; the position of an object
matters; and gradients change during training. The estimate ranks groups of one data set at one resolution. It is no
bound, and values of different data sets are not comparable. Not private: use public data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.effects.fairness import Attribute, check_attribute
from privet.effects.feature_to_noise import DisparitySources
from privet.errors import ArgumentError, DataError

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class FeatureEstimate:
    """Estimated feature size and noise of a set of examples.

    Attributes:
        feature_size: Root mean square distance of the class means from their centre.
        noise_length: Root mean square distance of an example from the mean of its class.
    """

    feature_size: float
    noise_length: float

    def feature_to_noise(self, *, noise_std: float, num_filters: int = 1) -> float:
        """Return the ratio for a layer with this many filters; infinite without noise, zero without a feature."""
        if self.feature_size == 0:
            return 0.0
        deviation = checks.non_negative("noise_std", noise_std)
        spread = math.sqrt(checks.count("num_filters", num_filters)) * (self.feature_size + self.noise_length)
        return self.feature_size**2 / (deviation * spread) if deviation else math.inf


def estimate_features(features: Array, labels: Codes) -> FeatureEstimate:
    """Estimate feature size and noise from examples of two classes or more.

    Edge cases: a single class and classes with one example are refused.

    Args:
        features: One row per example, of any further shape.
        labels: Class numbers.
    """
    rows = np.asarray(features, dtype=np.float64).reshape(len(features), -1)
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2 or counts.min() < 2:
        raise DataError("The feature estimate needs at least two classes and at least two examples of each.")
    if not np.isfinite(rows).all():
        raise DataError("Features must be finite numbers. Remove or fill in NaN and infinite values.")
    means = np.stack([rows[labels == one].mean(0) for one in classes])
    # unbiased: otherwise small classes would have too little noise
    spreads = np.array([rows[labels == one].var(0, ddof=1).sum() for one in classes])
    errors, number = spreads / counts, len(classes)
    found = ((means - means.mean(0)) ** 2).sum(1)
    # the expected squared distance of a class mean from the centre by sampling noise alone
    by_chance = errors * (1 - 1 / number) ** 2 + (errors.sum() - errors) / number**2
    return FeatureEstimate(
        feature_size=math.sqrt(max(0.0, float((found - by_chance).mean()))),
        noise_length=math.sqrt(float(np.average(spreads, weights=counts))),
    )


def padding_ratio(side: int, padding: int) -> float:
    """Return the fraction of padding in a padded image's side, ``2 p / (s + 2 p)``: 5 on 28 pixels is 26 %.

    After padding and resizing, an object has ``1 - ratio`` of its former side, and about that fraction of its feature
    size.
    """
    width = checks.count("side", side)
    margin = checks.count("padding", padding, minimum=0)
    return 2 * margin / (width + 2 * margin)


@dataclass(frozen=True, kw_only=True)
class GroupSources:
    """Sources of the loss that the theory expects in one group beyond that of the best group.

    Attributes:
        name: Name of the group.
        share: Its fraction of the examples.
        estimate: Its feature size and noise.
        clip_factor: Its mean clipping factor.
        sources: Factors against the group of smallest expected loss; all 1 for that group.
    """

    name: str
    share: float
    estimate: FeatureEstimate
    clip_factor: float
    sources: DisparitySources


def explain_groups(
    features: Array, labels: Codes, attribute: Attribute, gradient_norms: Array, *, clip_norm: float
) -> tuple[GroupSources, ...]:
    """Decompose the expected disparity of each group into feature disparity, clipping and imbalance (Corollary 4.2).

    Args:
        features: One row per example.
        labels: Class numbers.
        attribute: The groups; empty groups are skipped.
        gradient_norms: Norm of each example's loss gradient at the model.
        clip_norm: Clipping norm of the training.

    Raises:
        DataError: the attribute allows no comparison, or a group is too small for an estimate.
    """
    check_attribute(attribute, labels)
    bound = checks.positive("clip_norm", clip_norm)
    if len(gradient_norms) != len(labels) or not np.isfinite(gradient_norms).all():
        raise ArgumentError("gradient_norms must be one finite number per example.")
    found = []
    for code, name in enumerate(attribute.group_names):
        own = attribute.codes == code
        if own.any():
            kept = np.minimum(1.0, bound / np.maximum(gradient_norms[own], np.finfo(np.float64).tiny))
            found.append((name, float(own.mean()), estimate_features(features[own], labels[own]), float(kept.mean())))
    strengths = [estimate.feature_to_noise(noise_std=1.0) for _, _, estimate, _ in found]
    if not all(strengths):
        raise DataError(f"The class means are equal in a group of {attribute.name!r}: no features. Leave it out.")
    best = int(np.argmax([share * kept * ratio for (_, share, _, kept), ratio in zip(found, strengths, strict=True)]))
    return tuple(
        GroupSources(
            name=name,
            share=share,
            estimate=estimate,
            clip_factor=kept,
            sources=DisparitySources(
                features=strengths[best] / ratio, clipping=found[best][3] / kept, imbalance=found[best][1] / share
            ),
        )
        for (name, share, estimate, kept), ratio in zip(found, strengths, strict=True)
    )
