from __future__ import annotations

import math

import numpy as np
import pytest

from privet.datasets.two_patch import TwoPatch
from privet.effects.fairness import Attribute
from privet.effects.feature_estimate import estimate_features, explain_groups, padding_ratio
from privet.errors import ArgumentError, DataError


def two_groups(sizes: tuple[float, float], counts: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, Attribute]:
    """Two classes at plus and minus a feature along the first axis, under unit noise; the groups differ in its size."""
    generator = np.random.default_rng(0)
    codes = np.repeat([0, 1], counts)
    labels = np.tile([0, 1], sum(counts))[: sum(counts)]
    features = generator.normal(size=(sum(counts), 20))
    features[:, 0] += np.array(sizes)[codes] * (2 * labels - 1)
    return features, labels, Attribute(name="g", group_names=("a", "b"), codes=codes)


@pytest.mark.parametrize("count", [40, 400, 4000])
def test_size_and_noise_are_found_whatever_the_number_of_examples(count: int) -> None:
    features, labels, _ = two_groups((3.0, 3.0), (count // 2, count // 2))
    found = estimate_features(features, labels)
    assert found.feature_size == pytest.approx(3.0, rel=0.12)
    assert found.noise_length == pytest.approx(math.sqrt(20), rel=0.1)


def test_features_of_the_two_patch_task_are_estimated_from_its_majority() -> None:
    """One place of the feature: with two, half of it is noise to a mean, as the limits say."""
    sample = TwoPatch.one_feature_per_class(size=4.0, dimension=50).draw(2000, seed=0)
    aligned = sample.inputs.sum(1).double().numpy()
    found = estimate_features(aligned, sample.labels.numpy())
    # Two orthogonal features of length 4 lie 4 / sqrt(2) from their centre.
    assert found.feature_size == pytest.approx(4 / math.sqrt(2), rel=0.05)


def test_classes_without_a_difference_have_no_feature() -> None:
    generator = np.random.default_rng(1)
    found = estimate_features(generator.normal(size=(2000, 30)), generator.integers(2, size=2000))
    assert found.feature_size < 0.2
    assert found.feature_to_noise(noise_std=1.0) < 0.02


def test_padding_ratios_are_the_published_ones() -> None:
    assert [round(100 * padding_ratio(28, padding)) for padding in (0, 5, 14, 23, 42)] == [0, 26, 50, 62, 75]


def test_a_rare_group_a_weak_group_and_a_clipped_group_are_told_apart() -> None:
    features, labels, attribute = two_groups((3.0, 3.0), (900, 100))
    even = np.ones(1000)
    rare = explain_groups(features, labels, attribute, even, clip_norm=1.0)[1].sources
    assert rare.imbalance == pytest.approx(9.0)
    assert rare.features == pytest.approx(1.0, abs=0.15)
    assert rare.clipping == 1.0
    features, labels, attribute = two_groups((3.0, 1.0), (500, 500))
    weak = explain_groups(features, labels, attribute, np.ones(1000), clip_norm=1.0)[1].sources
    assert weak.features > 3
    assert weak.imbalance == 1.0
    features, labels, attribute = two_groups((3.0, 3.0), (500, 500))
    norms = np.where(attribute.codes == 1, 4.0, 1.0)
    clipped = explain_groups(features, labels, attribute, norms, clip_norm=1.0)[1]
    assert clipped.clip_factor == 0.25
    assert clipped.sources.clipping == pytest.approx(4.0)


def test_the_best_group_is_the_reference() -> None:
    features, labels, attribute = two_groups((3.0, 1.0), (500, 500))
    best, worse = explain_groups(features, labels, attribute, np.ones(1000), clip_norm=1.0)
    assert best.sources.total == 1.0
    assert worse.sources.total > 1.0
    assert best.estimate.feature_to_noise(noise_std=0.0) == math.inf


def test_data_that_tell_nothing_are_refused() -> None:
    features, labels, attribute = two_groups((3.0, 3.0), (20, 20))
    with pytest.raises(DataError, match="two classes"):
        estimate_features(features, np.zeros(40, dtype=np.int64))
    with pytest.raises(DataError, match="two examples"):
        estimate_features(features[:3], np.array([0, 0, 1]))
    with pytest.raises(DataError, match="finite"):
        estimate_features(np.where(features > 1, np.nan, features), labels)
    with pytest.raises(ArgumentError, match="one finite number"):
        explain_groups(features, labels, attribute, np.ones(3), clip_norm=1.0)
    flat = np.zeros((40, 2))
    with pytest.raises(DataError, match="no features"):
        explain_groups(flat, labels, attribute, np.ones(40), clip_norm=1.0)
