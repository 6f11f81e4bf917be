"""Sizes of truncated batches, and the charge by total variation beside the tight one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event

from privet.accounting.accountants import PLD, RDP, ExactGaussian, curve
from privet.accounting.batch_sizes import suggest_batch
from privet.accounting.guarantee import guarantee
from privet.accounting.total_variation import SurchargedCurve
from privet.errors import ArgumentError, TruncationError
from privet.mechanism.events import DpEvent, TotalVariationDpEvent
from privet.mechanism.truncated import TruncatedPoisson, Truncation, expected_kept
from privet.vocabulary import Adjacency, Unit

ADD_REMOVE = Adjacency.ADD_REMOVE


def by_total_variation(size: int, batch: int, limit: int, multiplier: float, steps: int) -> DpEvent:
    sampling = TruncatedPoisson(
        rate=batch / size,
        steps=steps,
        dataset_size=size,
        max_batch_size=limit,
        truncation=Truncation.TOTAL_VARIATION,
    )
    return dp_event.SelfComposedDpEvent(sampling.amplify(dp_event.GaussianDpEvent(multiplier)), steps)


@pytest.mark.parametrize(
    ("size", "batch", "limit", "multiplier", "steps", "epsilon"),
    [(60000, 256, 384, 1.1, 14063, 2.3817672141), (50000, 1024, 1280, 1.0, 3000, 7.2186591924)],
)
def test_the_charge_by_total_variation_has_its_reference_value(
    size: int, batch: int, limit: int, multiplier: float, steps: int, epsilon: float
) -> None:
    event = by_total_variation(size, batch, limit, multiplier, steps)
    promise = guarantee(event, delta=1e-5, adjacency=ADD_REMOVE, unit=Unit.RECORD)
    assert epsilon * (1 - 1e-6) <= promise.epsilon <= epsilon * (1 + 1e-3)
    assert promise.accountant == "PLD + total variation"
    tight = dp_event.SelfComposedDpEvent(
        dp_event.TruncatedSubsampledGaussianDpEvent(size, batch / size, limit, multiplier), steps
    )
    assert PLD().epsilon(tight, delta=1e-5, adjacency=ADD_REMOVE) <= promise.epsilon * (1 + 2e-4)


@pytest.mark.parametrize("limit", [268, 307, 332, 358])
def test_a_batch_that_overflows_too_often_has_no_guarantee_by_total_variation(limit: int) -> None:
    event = by_total_variation(60000, 256, limit, 1.1, 14063)
    with pytest.raises(TruncationError, match="Increase max_batch_size"):
        guarantee(event, delta=1e-5, adjacency=ADD_REMOVE, unit=Unit.RECORD)
    assert RDP().epsilon(event, delta=1e-5, adjacency=ADD_REMOVE) == math.inf


def test_a_surcharged_curve_never_rises_and_reads_the_same_both_ways() -> None:
    event = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1.0), TotalVariationDpEvent(distance=1e-7)])
    drawn = curve(event, ADD_REMOVE)
    assert isinstance(drawn, SurchargedCurve)
    epsilons = np.linspace(0, 30, 400)
    deltas = drawn.deltas(epsilons)
    assert np.all(np.diff(deltas) <= 0)
    plain = curve(dp_event.GaussianDpEvent(1.0), ADD_REMOVE).deltas(epsilons)
    added = np.minimum(1.0, plain + 1e-7 * (1 + np.exp(epsilons)))
    assert deltas == pytest.approx(np.minimum.accumulate(added), rel=1e-2)
    assert np.all(deltas >= plain)
    for delta in (1e-2, 1e-3, 1e-4):
        epsilon = drawn.epsilon(delta)
        assert float(drawn.deltas(np.array([epsilon]))[0]) == pytest.approx(delta, rel=1e-9)
    mu = drawn.mu(1e-3)
    assert mu is not None
    assert 1.0 <= mu < 1.1


def test_a_surcharged_gaussian_is_no_longer_exact() -> None:
    event = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(2.0), TotalVariationDpEvent(distance=1e-9)])
    promise = guarantee(event, delta=1e-5, adjacency=ADD_REMOVE, unit=Unit.RECORD)
    assert promise.lower is None
    assert promise.epsilon > ExactGaussian().epsilon(dp_event.GaussianDpEvent(2.0), delta=1e-5, adjacency=ADD_REMOVE)


def test_surcharges_of_all_steps_add_up() -> None:
    once = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(5.0), TotalVariationDpEvent(distance=1e-8)])
    many = dp_event.SelfComposedDpEvent(once, 100)
    drawn = curve(many, ADD_REMOVE)
    assert isinstance(drawn, SurchargedCurve)
    assert drawn.total_variation == pytest.approx(1e-6, rel=1e-12)


def test_a_suggested_batch_keeps_the_budget_and_beats_its_neighbours() -> None:
    asked = {"dataset_size": 5000, "steps": 300, "epsilon": 0.5, "delta": 1e-5, "adjacency": ADD_REMOVE}
    found = suggest_batch(physical=100, **asked)  # type: ignore[arg-type]
    sampling = found.sampling
    assert sampling.max_batch_size == 100
    assert 40 <= sampling.expected_batch_size <= 90

    def spent(batch: float, noise: float) -> float:
        piece = TruncatedPoisson(rate=batch / 5000, steps=300, dataset_size=5000, max_batch_size=100)
        event = dp_event.SelfComposedDpEvent(piece.amplify(dp_event.GaussianDpEvent(noise)), 300)
        return PLD(coarsest_spacing=1e-2).epsilon(event, delta=1e-5, adjacency=ADD_REMOVE)

    assert 0.498 <= spent(sampling.expected_batch_size, found.noise_multiplier) <= 0.501
    for batch in (25, 100):
        kept = expected_kept(dataset_size=5000, rate=batch / 5000, max_batch_size=100)
        assert spent(batch, found.noise_over_signal * kept) > 0.501, "as little noise would overspend"


def test_a_physical_batch_as_large_as_the_data_is_filled() -> None:
    found = suggest_batch(physical=100, dataset_size=50, steps=3, epsilon=2.0, delta=1e-5, adjacency=ADD_REMOVE)
    assert found.sampling.rate == 1


def test_a_batch_of_no_slots_is_refused() -> None:
    with pytest.raises(ArgumentError):
        suggest_batch(physical=0, dataset_size=50, steps=3, epsilon=2.0, delta=1e-5, adjacency=ADD_REMOVE)
