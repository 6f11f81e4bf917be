"""Noisy sufficient statistics: one release, bounded exactly, calibrated exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privet.accounting.gaussian_dp import gdp_epsilon
from privet.convex import statistics
from privet.convex.features import ConvexFeatures, FeatureMap, RandomFourier, RandomRelu
from privet.convex.statistics import SufficientStatistics, joint_sensitivity
from privet.errors import ArgumentError, DataError, PlanError
from privet.training.randomness import Streams
from privet.vocabulary import Adjacency, Unit
from tests.contract import statistics as stats

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


SIZE, CLASSES = 60, 40
weights = pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
adjacencies = pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda adjacency: adjacency.value)


def released(
    monkeypatch: pytest.MonkeyPatch, made: SufficientStatistics, inputs: Tensor, labels: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """Fit, and return A and B as they leave the release."""
    found: list[tuple[Tensor, Tensor]] = []

    def noted(second: Tensor, mixed: Tensor, noise_std: float) -> Tensor:
        found.append((second.clone(), mixed.clone()))
        return torch.zeros_like(mixed)

    monkeypatch.setattr(statistics, "_solve", noted)
    made.fit(inputs, labels, seed=seed)
    return found[0]


def noise_alone(
    monkeypatch: pytest.MonkeyPatch, adjacency: Adjacency, weight: float, *, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Return A and B of no records, over the noise multiplier."""
    made = SufficientStatistics(
        features=RandomRelu(size=SIZE),
        num_classes=CLASSES,
        delta=1e-5,
        adjacency=adjacency,
        unit=Unit.RECORD,
        noise_multiplier=1.7,
        label_weight=weight,
    )
    second, mixed = released(monkeypatch, made, torch.zeros(0, 6), torch.zeros(0, dtype=torch.long), seed)
    return second / 1.7, mixed / 1.7


@weights
@adjacencies
def test_the_noise_of_every_entry_has_the_announced_size(
    monkeypatch: pytest.MonkeyPatch, adjacency: Adjacency, weight: float
) -> None:
    second, mixed = noise_alone(monkeypatch, adjacency, weight)
    moved = joint_sensitivity(weight, adjacency)
    above = torch.ones(SIZE, SIZE).triu(1).bool()
    entries = {
        "diagonal": second.diagonal() / moved,
        "off the diagonal": second[above] / (moved / math.sqrt(2)),
        "labels": mixed.reshape(-1) / (moved / weight),
    }
    assert torch.equal(second, second.T)
    for name, values in entries.items():
        found = values.numpy()
        assert stats.chi_square(float((found**2).sum()), len(found)) > stats.ALPHA, name
        assert stats.kolmogorov(found) > stats.ALPHA, name


@weights
@adjacencies
def test_the_worst_pair_is_as_far_apart_in_the_noise_that_was_added_as_the_event_says(
    monkeypatch: pytest.MonkeyPatch, adjacency: Adjacency, weight: float
) -> None:
    """Independent entries of a Gaussian release: mu is the length of the difference in units of their noise."""
    second, mixed = noise_alone(monkeypatch, adjacency, weight)
    above = torch.ones(SIZE, SIZE).triu(1).bool()
    stds = [float(part.square().mean().sqrt()) for part in (second.diagonal(), second[above], mixed)]

    def mu(first: np.ndarray, other: np.ndarray) -> float:
        moved = np.outer(first, first) - np.outer(other, other)
        upper = moved[np.triu_indices(2, 1)]
        parts = (np.linalg.norm(np.diag(moved)), np.linalg.norm(upper), np.linalg.norm(first - other))
        return math.hypot(*(part / std for part, std in zip(parts, stds, strict=True)))

    cosine = max(-1.0, -(weight**2) / 2)
    if adjacency is Adjacency.REPLACE_ONE:
        turns = (0.0, 0.4, math.pi / 4)  # whether the difference lies on the diagonal or beside it
        pairs = [
            (np.array([math.cos(turn), math.sin(turn)]), np.array([math.cos(turn + angle), math.sin(turn + angle)]))
            for turn in turns
            for angle in (math.acos(cosine), math.pi / 2, 1.0)
        ]
    else:
        pairs = [(np.array([math.cos(turn), math.sin(turn)]), np.zeros(2)) for turn in (0.0, 0.4, math.pi / 4)]
    found = [mu(*pair) for pair in pairs]
    # the multiplier is one here, and 60 entries of the diagonal tell their size to a tenth or so
    assert max(found) == pytest.approx(1.0, abs=0.3)


def test_the_noise_of_two_releases_and_of_both_statistics_is_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    above = torch.ones(SIZE, SIZE).triu(1).bool()
    (first, labels), (second, _) = (
        noise_alone(monkeypatch, Adjacency.ADD_REMOVE, 1.0, seed=seed) for seed in (1, 2)
    )  # fmt: skip
    one, other = first[above].numpy(), second[above].numpy()
    assert stats.correlation(one, other) > stats.ALPHA
    beside = labels.reshape(-1).numpy()[: len(one)]
    assert stats.correlation(one[: len(beside)], beside) > stats.ALPHA
    assert stats.correlation(one[1:], one[:-1]) > stats.ALPHA


def test_the_noise_is_added_to_the_sums_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(RandomRelu(size=5))
    inputs, labels = clusters(400)
    nothing = released(monkeypatch, made, inputs[:0], labels[:0], 3)
    something = released(monkeypatch, made, inputs, labels, 3)
    generator = torch.Generator().manual_seed(int(Streams.new(inputs.device, seed=3).masks.integers(2**63)))
    rows = made.features.draw(6, generator)(inputs)
    assert torch.allclose(something[0] - nothing[0], (rows.T @ rows).double(), atol=1e-3)
    wanted = torch.nn.functional.one_hot(labels, 3).to(rows)
    assert torch.allclose(something[1] - nothing[1], (rows.T @ wanted).double(), atol=1e-3)


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
