"""Noisy sufficient statistics: one release, bounded exactly, calibrated exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.gaussian_dp import gdp_epsilon
from privet.convex.features import ConvexFeatures, FeatureMap, RandomFourier, RandomRelu
from privet.convex.statistics import SufficientStatistics, joint_sensitivity
from privet.errors import ArgumentError, DataError, PlanError
from privet.mechanism.terms import Adjacency, Unit

MAPS: dict[str, FeatureMap] = {
    "convex": ConvexFeatures(num_gates=12, projected_width=6),
    "projected": ConvexFeatures(num_gates=12, projected_width=4),
    "relu": RandomRelu(size=12),
    "fourier": RandomFourier(size=12),
}
maps = pytest.mark.parametrize("features", MAPS.values(), ids=MAPS.keys())


def trainer(features: FeatureMap, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> SufficientStatistics:
    return SufficientStatistics(
        features=features, num_classes=3, delta=1e-5, adjacency=adjacency, unit=Unit.RECORD
    ).calibrated(epsilon=4.76)


def clusters(num: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 3
    return 4 * torch.eye(6)[labels] + torch.randn(num, 6, generator=rng), labels


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 2.1213203), (0.5, 1.5909903), (2.0, 4.0), (0.0, math.sqrt(2))])
def test_a_replacement_moves_the_statistics_by_the_derived_distance(weight: float, expected: float) -> None:
    assert joint_sensitivity(weight, Adjacency.REPLACE_ONE) == pytest.approx(expected, abs=5e-8)
    assert joint_sensitivity(weight, Adjacency.ADD_REMOVE) == pytest.approx(math.sqrt(1 + weight**2))


@settings(max_examples=300)
@given(seed=st.integers(0, 10**6), weight=st.floats(0, 3), same=st.booleans(), cosine=st.floats(-1, 1))
def test_no_pair_of_records_moves_the_statistics_further(seed: int, weight: float, same: bool, cosine: float) -> None:
    rng = np.random.default_rng(seed)
    base = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    first, second = base[:, 0], cosine * base[:, 0] + math.sqrt(1 - cosine**2) * base[:, 1]
    first, second = first * rng.uniform(0, 1), second * rng.uniform(0, 1)
    labels = np.eye(3)[[0, 0 if same else 1]]
    moved = math.hypot(
        np.linalg.norm(np.outer(first, first) - np.outer(second, second)),
        weight * np.linalg.norm(np.outer(first, labels[0]) - np.outer(second, labels[1])),
    )
    assert moved <= joint_sensitivity(weight, Adjacency.REPLACE_ONE) * (1 + 1e-12)


def test_the_worst_pair_attains_the_sensitivity() -> None:
    weight, cosine = 1.0, -0.5
    first, second = np.array([1.0, 0.0]), np.array([cosine, math.sqrt(1 - cosine**2)])
    moved = math.hypot(
        np.linalg.norm(np.outer(first, first) - np.outer(second, second)), weight * np.linalg.norm(first - second)
    )
    assert moved == pytest.approx(joint_sensitivity(weight, Adjacency.REPLACE_ONE))


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda adjacency: adjacency.value)
def test_the_guarantee_is_the_target_exactly(adjacency: Adjacency) -> None:
    made = trainer(RandomRelu(size=4), adjacency)
    assert made.guarantee().epsilon == pytest.approx(4.76, rel=1e-9)
    mu = joint_sensitivity(1.0, adjacency) / made.noise_std
    assert gdp_epsilon(mu, 1e-5) == pytest.approx(4.76, rel=1e-9)


@maps
@pytest.mark.parametrize("value", [1.0, 0.0, 1e30, math.nan, math.inf])
def test_every_record_has_features_of_length_one_at_most(features: FeatureMap, value: float) -> None:
    drawn = features.draw(6, torch.Generator().manual_seed(1))
    rows = drawn(torch.cat([torch.full((1, 6), value), torch.randn(20, 6, generator=torch.Generator().manual_seed(2))]))
    assert rows.isfinite().all()
    assert (rows.norm(dim=1) <= 1 + 1e-5).all()


@maps
def test_clusters_are_learned(features: FeatureMap) -> None:
    inputs, labels = clusters(3000)
    fitted = trainer(features).fit(inputs, labels, seed=0)
    assert fitted.score(*clusters(600, seed=9)) > 0.9
    assert fitted.guarantee_.not_private_because


def test_the_noise_has_the_announced_size() -> None:
    made = trainer(RandomRelu(size=150))
    nothing = torch.zeros(0, 6)
    fitted = made.fit(nothing, torch.zeros(0, dtype=torch.long), seed=1)
    # no records: A and B are noise alone, and the solution has the size that noise over the ridge gives it
    ridge = made.noise_std * math.sqrt(2 * 150)
    assert 0.3 < float(fitted.weights.std()) / (made.noise_std / ridge) < 1.1


def test_a_private_fit_promises_its_target() -> None:
    inputs, labels = clusters(30)
    fitted = trainer(RandomRelu(size=5)).fit(inputs, labels)
    assert fitted.guarantee_.epsilon == pytest.approx(4.76, rel=1e-9)
    assert not fitted.guarantee_.not_private_because


def test_what_cannot_be_fitted_is_refused() -> None:
    inputs, labels = clusters(30)
    with pytest.raises(DataError, match="pairs"):
        trainer(RandomRelu(size=5)).fit(inputs, labels[:-1])
    uncalibrated = SufficientStatistics(
        features=RandomRelu(size=5), num_classes=3, delta=1e-5, adjacency=Adjacency.REPLACE_ONE, unit=Unit.RECORD
    )
    with pytest.raises(PlanError, match="calibrated"):
        uncalibrated.fit(inputs, labels)
    with pytest.raises(ArgumentError, match="size"):
        RandomRelu(size=0)
