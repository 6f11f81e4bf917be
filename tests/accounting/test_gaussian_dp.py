"""Gaussian DP: closed forms against published high-precision values, and their inverses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.gaussian_dp import (
    CentralLimitFigure,
    clt_mu,
    gdp_delta,
    gdp_deltas,
    gdp_epsilon,
    gdp_mu,
    smallest_mu,
)
from privet.errors import ArgumentError


@pytest.mark.parametrize(
    ("mu", "epsilon", "delta", "rel"),
    [
        (0.1, 0, 0.039877611676744925, 1e-13),
        (0.5, 1, 0.0068295949831145754, 1e-12),
        (1, 1, 0.12693673750664395, 1e-13),
        (1, 5, 5.7937216919194941e-7, 1e-12),
        (2, 8, 4.9540173893874536e-4, 1e-12),
        (6, 40, 7.3698687068735787e-5, 1e-12),
        (0.05, 1, 1.1290332270977223e-91, 1e-10),
        (30, 800, 6.7745819e-32, 1e-8),
        (20, 100, 0.99999961466855645, 1e-14),
        (3, -1, 0.92186267942642962, 1e-13),
    ],
)
def test_delta_has_its_exact_value(mu: float, epsilon: float, delta: float, rel: float) -> None:
    assert gdp_delta(mu, epsilon) == pytest.approx(delta, rel=rel)


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [
        (0.1, 1e-5, 0.34066936468432643),
        (0.5, 1e-5, 1.9930914044151196),
        (1, 1e-5, 4.3771780956812246),
        (1, 1e-10, 6.547924066864951),
        (3, 1e-6, 18.163445759078475),
        (10, 1e-5, 91.817289624663745),
        (100, 1e-8, 5560.22720575796),
        (0.02, 0.01, 0.0),
    ],
)
def test_epsilon_has_its_exact_value(mu: float, delta: float, epsilon: float) -> None:
    assert gdp_epsilon(mu, delta) == pytest.approx(epsilon, rel=2.5e-12, abs=0)


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    [
        (1, 1e-5, 0.26805112321129422),
        (8, 1e-5, 1.6660305978457182),
        (0.1, 1e-6, 0.027544650243827622),
        (3, 1e-6, 0.64772653068873043),
        (0, 1e-3, 0.0025066289308651091),
        (50, 1e-9, 5.7213597689549303),
    ],
)
def test_mu_has_its_exact_value(epsilon: float, delta: float, mu: float) -> None:
    assert gdp_mu(epsilon, delta) == pytest.approx(mu, rel=1e-11)
    assert smallest_mu(np.array([float(epsilon)]), np.array([delta])) == pytest.approx(mu, rel=1e-11)


@pytest.mark.parametrize(
    ("rate", "multiplier", "steps", "poisson"),
    [
        (256 / 60000, 1.1, 14063, 0.57360147039228),
        (0.005, 1.3, 12000, 0.49206300643209),
        (32 / 550152, 0.4, 51577, 0.3003626857672),
        (0.02, 1, 500, 0.58622211293315),
        (0.01, 2, 10000, 0.53294035002779),
    ],
)
def test_central_limit_figures_have_their_published_values(
    rate: float, multiplier: float, steps: int, poisson: float
) -> None:
    arguments: dict[str, Any] = {"rate": rate, "noise_multiplier": multiplier, "num_steps": steps}
    assert clt_mu(**arguments).mu == pytest.approx(poisson, rel=1e-12)


def test_a_central_limit_figure_says_that_it_is_no_bound() -> None:
    figure = clt_mu(rate=32 / 550152, noise_multiplier=0.4, num_steps=51577)
    assert isinstance(figure, CentralLimitFigure)
    assert figure.is_upper_bound is False
    assert "not a bound" in figure.note
    # The published claim for these settings; the true epsilon is 5.13.
    assert figure.epsilon(1 / 550152) == pytest.approx(1.2535, abs=1e-4)


def test_central_limit_figures_at_the_ends() -> None:
    assert clt_mu(rate=0.0, noise_multiplier=1.0, num_steps=10).mu == 0
    assert clt_mu(rate=0.1, noise_multiplier=1.0, num_steps=0).mu == 0
    assert clt_mu(rate=0.1, noise_multiplier=1e-200, num_steps=1).mu == math.inf


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-2, 50), st.floats(-11, -0.5))
def test_mu_and_epsilon_are_inverse_to_each_other(mu: float, log_delta: float) -> None:
    delta = 10**log_delta
    epsilon = gdp_epsilon(mu, delta)
    if epsilon == 0:
        assert gdp_delta(mu, 0) <= delta * (1 + 1e-12)
    else:
        assert gdp_mu(epsilon, delta) == pytest.approx(mu, rel=1e-10)
        assert gdp_delta(mu, epsilon) == pytest.approx(delta, rel=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.floats(1e-3, 20), st.floats(0, 100), st.floats(1.001, 2))
def test_more_signal_reveals_more_and_more_epsilon_excuses_more(mu: float, epsilon: float, factor: float) -> None:
    assert gdp_delta(mu * factor, epsilon) >= gdp_delta(mu, epsilon)
    assert gdp_delta(mu, epsilon * factor) <= gdp_delta(mu, epsilon)


@pytest.mark.parametrize("mu", [0.0, 1e-10, 1e-3, 0.7, 5.0, 60.0, 1e6, math.inf])
def test_many_deltas_are_the_single_ones(mu: float) -> None:
    epsilons = np.array([0.0, 1e-12, 0.01, 1.0, 30.0, 2000.0, math.inf])
    single = [gdp_delta(mu, float(epsilon)) for epsilon in epsilons]
    assert gdp_deltas(mu, epsilons) == pytest.approx(np.array(single), rel=1e-14, abs=0)


def test_the_ends_of_the_range() -> None:
    assert gdp_delta(0, 1) == 0
    assert gdp_delta(0, -1) == pytest.approx(1 - math.exp(-1))
    assert gdp_delta(math.inf, 3) == 1
    assert gdp_delta(1, math.inf) == 0
    assert gdp_delta(1, -math.inf) == 1
    assert gdp_delta(1e-10, 0) == pytest.approx(1e-10 / math.sqrt(2 * math.pi), rel=1e-12)
    assert gdp_epsilon(0, 1e-5) == 0
    assert gdp_epsilon(math.inf, 1e-5) == math.inf
    assert gdp_epsilon(1e200, 1e-5) == math.inf
    assert gdp_mu(math.inf, 1e-5) == math.inf


def test_the_smallest_mu_covers_every_point() -> None:
    epsilons, deltas = np.array([0.0, 1.0, 2.0]), np.array([0.2, 0.05, 1e-6])
    mu = smallest_mu(epsilons, deltas)
    covered = [gdp_delta(mu, epsilon) for epsilon in epsilons]
    assert all(have >= need * (1 - 1e-9) for have, need in zip(covered, deltas, strict=True))
    assert any(have <= need * (1 + 1e-9) for have, need in zip(covered, deltas, strict=True))


def test_the_smallest_mu_at_the_ends() -> None:
    assert smallest_mu(np.array([1.0]), np.array([0.0])) == 0
    assert smallest_mu(np.array([1.0]), np.array([1.0])) == math.inf


@pytest.mark.parametrize("bad", [math.nan, -1.0, "1", None, True])
def test_a_wrong_mu_is_refused(bad: Any) -> None:
    with pytest.raises(ArgumentError):
        gdp_delta(bad, 1.0)
    with pytest.raises(ArgumentError):
        gdp_epsilon(bad, 1e-5)


@pytest.mark.parametrize("bad", [math.nan, 0.0, 1.0, -1e-5, 2.0, "1e-5", None, True])
def test_a_wrong_delta_is_refused(bad: Any) -> None:
    with pytest.raises(ArgumentError):
        gdp_epsilon(1.0, bad)
    with pytest.raises(ArgumentError):
        gdp_mu(1.0, bad)


@pytest.mark.parametrize("bad", [math.nan, -1.0, "1", None, True])
def test_a_wrong_epsilon_is_refused(bad: Any) -> None:
    with pytest.raises(ArgumentError):
        gdp_mu(bad, 1e-5)
