"""The loss of noise with density exp(-length): against simulation, the ordinary Laplace mechanism and known ratios."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event

from privet.accounting.accountants import PLD, RDP, tightest
from privet.accounting.calibration import calibrate_noise
from privet.accounting.radial_laplace import RadialRemoval, SampledRadialLaplace, bessel_ratio
from privet.mechanism.events import L2LaplaceDpEvent
from privet.mechanism.laplace import mean_coordinate
from privet.vocabulary import Adjacency


def release(multiplier: float, dimension: int) -> L2LaplaceDpEvent:
    return L2LaplaceDpEvent(noise_multiplier=multiplier, num_coordinates=dimension)


def simulated_losses(dimension: int, scale: float, count: int) -> np.ndarray:
    rng = np.random.default_rng(dimension)
    first, rest = rng.normal(size=count), rng.chisquare(dimension - 1, size=count)
    cosine, radius = first / np.sqrt(first**2 + rest), rng.gamma(dimension, scale, size=count)
    return np.asarray((np.sqrt(radius**2 - 2 * radius * cosine + 1) - radius) / scale)


@pytest.mark.parametrize(
    ("dimension", "scale"), [(2, 1.0), (2, 0.02), (3, 0.3), (10, 0.2), (650, 0.05), (10**6, 1e-3)], ids=str
)
def test_the_tails_are_those_of_simulated_losses(dimension: int, scale: float) -> None:
    count = 200_000
    losses = simulated_losses(dimension, scale, count)
    pair = RadialRemoval(rate=1.0, scale=scale, dimension=dimension)
    at = np.quantile(losses, [0.001, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999])
    found = pair.upper_mass(pair.outcome(at), np.full(len(at), np.inf))
    share = (losses[:, None] > at).mean(0)
    assert np.abs(found - share).max() < 5 / math.sqrt(count)
    assert float(pair.upper_mass(np.array(-np.inf), np.array(np.inf))) == pytest.approx(1.0, abs=1e-12)
    deltas = np.array([np.maximum(-np.expm1(e - losses), 0).mean() for e in (0.0, 0.5, 1.0, 2.0)])
    multiplier = scale * math.sqrt(dimension + 1)
    curve = PLD().curve(release(multiplier, dimension), Adjacency.ADD_REMOVE)
    assert np.abs(curve.deltas(np.array([0.0, 0.5, 1.0, 2.0])) - deltas).max() < 5 / math.sqrt(count) + 2e-4


def test_the_ratio_of_the_two_laws_is_the_loss() -> None:
    pair = RadialRemoval(rate=1.0, scale=0.1, dimension=30)
    edges = np.linspace(-0.5, 0.5, 2001)
    ratio = np.log(pair.upper_mass(edges[:-1], edges[1:]) / pair.lower_mass(edges[:-1], edges[1:]))
    assert np.allclose(ratio, pair.loss((edges[:-1] + edges[1:]) / 2), atol=1e-5)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_one_dimension_is_the_ordinary_laplace_mechanism(rate: float) -> None:
    def total(event: dp_event.DpEvent) -> dp_event.DpEvent:
        return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, event), 20)

    ours, theirs = total(release(3.0, 1)), total(dp_event.LaplaceDpEvent(3.0 / math.sqrt(2)))
    for accountant in (PLD(), RDP()):
        left, right = (
            accountant.epsilon(event, delta=1e-5, adjacency=Adjacency.ADD_REMOVE) for event in (ours, theirs)
        )
        assert left == pytest.approx(right, rel=1e-9)


@pytest.mark.parametrize("dimension", [2, 10, 650, 10**6])
def test_the_largest_loss_is_reached_only_by_the_pure_guarantee(dimension: int) -> None:
    multiplier = math.sqrt(dimension + 1) / 0.5
    event = release(multiplier, dimension)
    assert PLD().epsilon(event, delta=1e-9, adjacency=Adjacency.ADD_REMOVE) <= 0.5 * (1 + 1e-3)
    found = SampledRadialLaplace(rate=1.0, noise_multiplier=multiplier, dimension=dimension)
    divergences = found.divergences(np.array([2.0, 64.0, 1024.0]), Adjacency.ADD_REMOVE)
    assert (np.diff(divergences) > 0).all()
    assert divergences.max() <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("dimension", [2, 650, 10**6])
def test_both_accountants_bound_the_same_mechanism(dimension: int, rate: float) -> None:
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, release(4.0, dimension)), 50)
    tight, loose = (a.epsilon(event, delta=1e-5, adjacency=Adjacency.ADD_REMOVE) for a in (PLD(), RDP()))
    assert tight <= loose <= 1.35 * tight


@pytest.mark.parametrize(("dimension", "known"), [(2, 0.428), (10, 0.759)], ids=str)
def test_one_release_needs_less_noise_than_the_gaussian_in_few_dimensions(dimension: int, known: float) -> None:
    terms = {"epsilon": 1.0, "delta": 1e-5, "adjacency": Adjacency.ADD_REMOVE}
    ours = calibrate_noise(lambda value: release(value, dimension), **terms)  # type: ignore[arg-type]
    gaussian = calibrate_noise(dp_event.GaussianDpEvent, **terms)  # type: ignore[arg-type]
    mean = ours / math.sqrt(dimension + 1) * mean_coordinate(dimension)
    assert mean / (gaussian * math.sqrt(2 / math.pi)) == pytest.approx(known, abs=0.005)


@pytest.mark.parametrize(("dimension", "known"), [(2, 1.109), (650, 1.0)], ids=str)
def test_many_sampled_releases_need_as_much_noise_as_the_gaussian(dimension: int, known: float) -> None:
    def total(event: dp_event.DpEvent) -> dp_event.DpEvent:
        return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.1, event), 300)

    mean = mean_coordinate(dimension) / math.sqrt(dimension + 1) / math.sqrt(2 / math.pi)
    multiplier = 5.637 * known / mean
    spent = PLD().epsilon(total(release(multiplier, dimension)), delta=1e-4, adjacency=Adjacency.ADD_REMOVE)
    assert spent == pytest.approx(1.0, abs=0.006), "5.637 is the Gaussian's multiplier for epsilon 1"


def test_exchanging_a_record_moves_twice_as_far_and_is_refused_on_samples() -> None:
    twice = PLD().epsilon(release(8.0, 10), delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert twice == pytest.approx(PLD().epsilon(release(4.0, 10), delta=1e-5, adjacency=Adjacency.ADD_REMOVE), rel=1e-6)
    sampled = SampledRadialLaplace(rate=0.5, noise_multiplier=1.0, dimension=3)
    assert sampled.refusal(Adjacency.REPLACE_ONE) is not None
    assert tightest(release(1.0, 3), Adjacency.REPLACE_ONE, 1e-5).name == "PLD"


@pytest.mark.parametrize("z", [1e-3, 0.7, 30.0, 2000.0])
def test_ratios_of_bessel_functions_solve_their_recurrence(z: float) -> None:
    for order in (3.0, 3.5, 40.0, 5000.0, 500_000.5):
        assert bessel_ratio(order + 1, z) == pytest.approx(2 * order / z + 1 / bessel_ratio(order, z), rel=1e-9)
