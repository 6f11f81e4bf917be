"""Laws of the cost of noise that ends somewhere."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import chndtr, log_ndtr

from privet.accounting.tail_truncation import (
    KEYSTREAM_RADIUS_BITS,
    TAIL_SHARE,
    beyond,
    lost_mass,
    reach_of_bits,
    tail_delta,
)
from privet.errors import AccountingError
from privet.vocabulary import Adjacency

REACH = reach_of_bits(KEYSTREAM_RADIUS_BITS)


def steps(rate: float, multiplier: float, count: int) -> dp_event.DpEvent:
    return dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier)), count
    )


def test_the_reach_is_that_of_the_bits() -> None:
    assert pytest.approx(8.4904, abs=1e-4) == REACH
    assert math.exp(-0.5 * REACH**2) == pytest.approx(2.0**-52)


@pytest.mark.parametrize(("distance", "reach"), [(0.0, 3.0), (0.5, 4.0), (1.0, 3.0), (2.0, 5.0)])
def test_the_mass_beyond_is_the_tail_of_a_noncentral_chi_square(distance: float, reach: float) -> None:
    assert beyond(distance, reach) == pytest.approx(1 - float(chndtr(reach**2, 2, distance**2)), rel=1e-7)


def test_without_distance_the_mass_beyond_is_exact_far_in_the_tail() -> None:
    assert beyond(0.0, REACH) == pytest.approx(2.0**-52, rel=1e-10)


@pytest.mark.parametrize("num_coordinates", [1, 2, 7, 40])
@pytest.mark.parametrize("concentration", [0.0, 0.5, 0.99])
def test_no_spread_of_the_distance_loses_more_than_the_bound(num_coordinates: int, concentration: float) -> None:
    # A reach that draws do leave, so that the lost share can be counted.
    reach, shift, draws = 2.5, 0.9, 40_000
    rng = np.random.default_rng(5)
    pairs = (num_coordinates + 1) // 2
    shares = np.full(pairs, (1 - concentration) / pairs)
    shares[0] += concentration
    noise = rng.normal(size=(draws, pairs, 2))
    moved = noise.copy()
    moved[:, :, 0] += shift * np.sqrt(shares)
    kept = (np.linalg.norm(noise, axis=2) <= reach).all(1)
    seen = (np.linalg.norm(moved, axis=2) > reach).any(1)
    # Given that all pairs were within reach, the share of outcomes that the neighbour cannot give.
    lost = float(seen[kept].mean())
    assert lost <= lost_mass(shift, reach=reach, num_coordinates=num_coordinates) / float(kept.mean())
    assert lost > 0


Losses = tuple[np.ndarray, float]
_STEP, _SPAN = 0.01, 40.0


def _losses(above: np.ndarray, below: np.ndarray, *, rounds_up: bool) -> Losses:
    """Return the masses of ``log(above / below)`` on a grid, and the mass that the second cannot give."""
    lonely = (above > 0) & (below <= 0)
    both = (above > 0) & (below > 0)
    places = np.log(above[both] / below[both]) / _STEP
    places = (np.ceil(places) if rounds_up else np.floor(places)) + _SPAN / _STEP
    masses = np.bincount(np.clip(places, 0, 2 * _SPAN / _STEP).astype(int), above[both], int(2 * _SPAN / _STEP) + 1)
    return masses, float(above[lonely].sum())


def _composed_delta(losses: Losses, *, times: int, epsilon: float) -> float:
    masses, lonely = losses
    total = masses
    for _ in range(times - 1):
        total = np.convolve(total, masses)
    at = _STEP * np.arange(len(total)) - times * _SPAN
    return 1 - (1 - lonely) ** times + float(total @ np.maximum(0.0, -np.expm1(np.minimum(epsilon - at, 0.0))))


def _one_round(shift: float, rate: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Masses, cell by cell of the plane, of one round without and with the record; noise that ends at a reach."""
    side = np.arange(-min(reach, 9.0), min(reach, 9.0) + shift, 0.02) + 0.003
    x, y = side[:, None], side[None, side < min(reach, 9.0) + 0.01]

    def cut(centre: float) -> np.ndarray:
        square = (x - centre) ** 2 + y**2
        density = np.where(square <= reach**2, np.exp(-0.5 * square), 0.0)
        return density / density.sum()

    without = cut(0.0)
    return without.ravel(), ((1 - rate) * without + rate * cut(shift)).ravel()


@pytest.mark.parametrize(
    ("shift", "rate", "times", "reach"),
    [(1.0, 1.0, 1, 3.0), (0.8, 0.3, 1, 3.0), (0.8, 0.3, 2, 2.5), (1.4, 0.1, 3, 3.0)],
)
def test_the_promise_with_the_cost_added_holds_for_cut_noise_worked_out_cell_by_cell(
    shift: float, rate: float, times: int, reach: float
) -> None:
    """Both directions, worked out from the densities themselves and rounded in the cut noise's favour."""
    cut, whole = _one_round(shift, rate, reach), _one_round(shift, rate, math.inf)
    for (first, second), epsilon in itertools.product(((0, 1), (1, 0)), (0.1, 1.0, 3.0, 6.0)):
        found = _composed_delta(_losses(cut[first], cut[second], rounds_up=False), times=times, epsilon=epsilon)
        ideal = _composed_delta(_losses(whole[first], whole[second], rounds_up=True), times=times, epsilon=epsilon)
        cost = tail_delta(
            steps(rate, 1 / shift, times),
            adjacency=Adjacency.ADD_REMOVE,
            epsilon=epsilon,
            delta=ideal,
            reach=reach,
            num_coordinates=2,
        )
        assert found <= ideal + cost
        if epsilon == 3.0 and first == 1:
            assert cost <= 20 * (found - ideal), "a bound that is far too large proves nothing"


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_the_cost_covers_a_distance_that_is_spread_over_several_pairs(pairs: int) -> None:
    """With every record in every round, pairs are like rounds: their noise is drawn apart."""
    shift, reach, epsilon = 1.2, 3.0, 2.0
    share = shift / math.sqrt(pairs)
    cut, whole = _one_round(share, 1.0, reach), _one_round(share, 1.0, math.inf)
    found = _composed_delta(_losses(cut[1], cut[0], rounds_up=False), times=pairs, epsilon=epsilon)
    ideal = _composed_delta(_losses(whole[1], whole[0], rounds_up=True), times=pairs, epsilon=epsilon)
    cost = tail_delta(
        dp_event.GaussianDpEvent(1 / shift),
        adjacency=Adjacency.ADD_REMOVE,
        epsilon=epsilon,
        delta=ideal,
        reach=reach,
        num_coordinates=2 * pairs,
    )
    assert found <= ideal + cost


@given(shift=st.floats(0.05, 6.0), num_coordinates=st.integers(1, 10**8))
@settings(max_examples=25)
def test_the_bound_is_a_probability_and_at_least_the_loss_of_the_simplest_spread(
    shift: float, num_coordinates: int
) -> None:
    found = lost_mass(shift, reach=REACH, num_coordinates=num_coordinates)
    assert math.exp(float(log_ndtr(-(REACH - shift)))) - 2.0**-52 <= found <= 1


def test_more_coordinates_more_steps_and_less_noise_never_cost_less() -> None:
    def cost(rate: float = 0.01, multiplier: float = 1.0, count: int = 1000, size: int = 1000) -> float:
        return tail_delta(
            steps(rate, multiplier, count),
            adjacency=Adjacency.ADD_REMOVE,
            epsilon=2.0,
            delta=1e-5,
            reach=REACH,
            num_coordinates=size,
        )

    usual = cost()
    assert 0 < usual < cost(count=2000) < cost(count=4000)
    assert usual < cost(multiplier=0.7)
    assert usual < cost(rate=0.02)
    assert usual < cost(size=10**8)


@pytest.mark.parametrize(
    ("rate", "multiplier", "count", "size"),
    [
        (0.01, 1.0, 3000, 10**6),
        (256 / 60_000, 0.7, 14_063, 26_010),
        (0.1, 4.0, 10_000, 10**7),
        (0.0025, 0.6, 2000, 10**5),
    ],
)
def test_ordinary_plans_lose_less_than_a_thousandth_of_delta(
    rate: float, multiplier: float, count: int, size: int
) -> None:
    found = tail_delta(
        steps(rate, multiplier, count),
        adjacency=Adjacency.ADD_REMOVE,
        epsilon=3.0,
        delta=1e-5,
        reach=REACH,
        num_coordinates=size,
    )
    assert found <= 1e-5 * TAIL_SHARE


def test_the_reach_of_single_precision_costs_more_than_delta() -> None:
    found = tail_delta(
        steps(0.01, 1.0, 3000),
        adjacency=Adjacency.ADD_REMOVE,
        epsilon=1.0,
        delta=1e-5,
        reach=5.7681,
        num_coordinates=1,
    )
    assert found > 1e-5


def test_replacing_and_truncation_count_the_distance_twice() -> None:
    def cost(event: dp_event.DpEvent, adjacency: Adjacency) -> float:
        return tail_delta(event, adjacency=adjacency, epsilon=1.0, delta=1e-5, reach=REACH, num_coordinates=9)

    gaussian = dp_event.GaussianDpEvent(1.0)
    doubled = cost(dp_event.GaussianDpEvent(0.5), Adjacency.ADD_REMOVE)
    assert cost(gaussian, Adjacency.REPLACE_ONE) == doubled
    assert cost(dp_event.SampledWithoutReplacementDpEvent(10, 5, gaussian), Adjacency.REPLACE_ONE) == doubled
    truncated = dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0)
    assert cost(truncated, Adjacency.ADD_REMOVE) == doubled


def test_nothing_released_costs_nothing_and_other_noise_is_not_guessed_at() -> None:
    def cost(event: dp_event.DpEvent, epsilon: float = 1.0) -> float:
        return tail_delta(
            event, adjacency=Adjacency.ADD_REMOVE, epsilon=epsilon, delta=1e-5, reach=REACH, num_coordinates=9
        )

    assert cost(dp_event.NoOpDpEvent()) == 0
    for event in (dp_event.LaplaceDpEvent(1.0), dp_event.NonPrivateDpEvent(), dp_event.GaussianDpEvent(0.0)):
        with pytest.raises(AccountingError):
            cost(event)
    with pytest.raises(AccountingError, match="finite epsilon"):
        cost(dp_event.GaussianDpEvent(1.0), math.inf)


def test_the_keystream_reaches_exactly_as_far_as_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from privet.training import randomness

    class Ones:
        """A cipher whose stream is all ones: the largest uniform number, hence the largest radius."""

        def update_into(self, zeros: memoryview, into: bytearray) -> int:
            into[: len(zeros)] = b"\xff" * len(zeros)
            return len(zeros)

    assert Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor() is not None
    source = randomness.KeystreamNoise(bytes(48))
    monkeypatch.setattr(source, "_cipher", Ones())
    drawn = torch.zeros(2, dtype=torch.float64)
    source.add_normal(drawn, 1.0)
    assert float(drawn.norm()) == pytest.approx(REACH, rel=1e-12)
