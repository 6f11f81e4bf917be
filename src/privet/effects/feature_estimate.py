"""Where a gap between groups comes from, estimated on real data: features, clipping, imbalance.

The theory of the feature-to-noise ratio knows its features; real data do not name theirs. The estimate takes what
separates the classes on average for the feature, and all else for noise:

* feature size: how far the classes' means lie from their common centre, corrected for the means' own noise;
* noise length: the usual distance of an example from the mean of its class;
* clipping factor: the mean of ``min(1, C / |gradient|)`` at the model that is given.

Limits: means see linear features only, so what a network learns beyond them is counted as noise; position counts (a
moved object is noise); and gradients change in training. It ranks groups of one data set at one resolution. It is no
bound and cannot be compared between data sets. Not private: use public data.
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
    """The feature and the noise of a set of examples.

    Attributes:
        feature_size: Distance of the classes' means from their centre, root mean square over the classes.
        noise_length: Distance of an example from its class's mean, root mean square.
    """

    feature_size: float
    noise_length: float

    def feature_to_noise(self, *, noise_std: float, num_filters: int = 1) -> float:
        """The ratio for a layer of this many filters; infinite without noise, zero without a feature."""
        if self.feature_size == 0:
            return 0.0
        deviation = checks.non_negative("noise_std", noise_std)
        spread = math.sqrt(checks.count("num_filters", num_filters)) * (self.feature_size + self.noise_length)
        return self.feature_size**2 / (deviation * spread) if deviation else math.inf


def estimate_features(features: Array, labels: Codes) -> FeatureEstimate:
    """Estimate feature and noise from examples of two classes or more.

    Edge cases: classes of one example give no estimate of noise and are refused, as is a single class.

    Args:
        features: One row per example, of any further shape.
        labels: Class numbers.
    """
    rows = np.asarray(features, dtype=np.float64).reshape(len(features), -1)
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2 or counts.min() < 2:
        raise DataError("Separating features from noise needs at least two classes and at least two examples of each.")
    if not np.isfinite(rows).all():
        raise DataError("Features must be finite numbers. Remove or fill in NaN and infinite values.")
    means = np.stack([rows[labels == one].mean(0) for one in classes])
    # Unbiased, so that small classes do not look quieter than large ones.
    spreads = np.array([rows[labels == one].var(0, ddof=1).sum() for one in classes])
    errors, number = spreads / counts, len(classes)
    found = ((means - means.mean(0)) ** 2).sum(1)
    # A mean of few examples lies away from the centre by chance alone.
    by_chance = errors * (1 - 1 / number) ** 2 + (errors.sum() - errors) / number**2
    return FeatureEstimate(
        feature_size=math.sqrt(max(0.0, float((found - by_chance).mean()))),
        noise_length=math.sqrt(float(np.average(spreads, weights=counts))),
    )


def padding_ratio(side: int, padding: int) -> float:
    """The share of a padded image's side that is padding, ``2 p / (s + 2 p)``: 5 on 28 pixels is 26 %.

    Padded and resized back, an object keeps ``1 - ratio`` of its side, and so about that share of its feature's size.
    """
    width = checks.count("side", side)
    margin = checks.count("padding", padding, minimum=0)
    return 2 * margin / (width + 2 * margin)


@dataclass(frozen=True, kw_only=True)
class GroupSources:
    """Why the theory expects more loss in one group than in the best one.

    Attributes:
        name: The group.
        share: Its share of the examples.
        estimate: Its features and noise.
        clip_factor: What clipping leaves of its gradients on average.
        sources: Against the group of least expected loss; all 1 for that group itself.
    """

    name: str
    share: float
    estimate: FeatureEstimate
    clip_factor: float
    sources: DisparitySources


def explain_groups(
    features: Array, labels: Codes, attribute: Attribute, gradient_norms: Array, *, clip_norm: float
) -> tuple[GroupSources, ...]:
    """Split the expected disparity of each group into feature disparity, clipping and imbalance (Corollary 4.2).

    Args:
        features: One row per example.
        labels: Class numbers.
        attribute: The groups; groups without examples are left out.
        gradient_norms: Length of each example's loss gradient at the model in question.
        clip_norm: Bound that training clips to.

    Raises:
        DataError: no comparison follows from the attribute, or a group is too small to estimate its features.
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
        raise DataError(f"The means of the classes do not differ within a group of {attribute.name!r}: no features.")
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
