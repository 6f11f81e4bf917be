from __future__ import annotations

import math

import pytest
from scipy.integrate import quad
from scipy.special import logsumexp

from privet.accounting.gaussian_dp import gdp_epsilon
from privet.accounting.hidden_state import cyclic_ratio, position_ratios, secret_position_epsilon
from privet_research.theory.shuffled_hidden_state import shuffled_divergence, shuffled_epsilon

SETTING = {"contraction": 0.98, "batches": 10, "epochs": 20}
NOISE, DELTA = 3.0, 1e-5


def log_density(x: float) -> float:
    return -x * x / 2 - math.log(2 * math.pi) / 2


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_the_divergence_of_a_mixture_is_at_most_the_mean_of_its_parts(order: float) -> None:
    mus = [0.2, 0.5, 1.5]

    def integrand(x: float) -> float:
        first = logsumexp([log_density(x - mu) for mu in mus]) - math.log(len(mus))
        return math.exp(order * first + (1 - order) * log_density(x))

    exact = math.log(quad(integrand, -8, 22, limit=500)[0]) / (order - 1)
    bound = shuffled_divergence(mus, order)
    assert exact <= bound * (1 + 1e-9)
    assert bound < max(order * mu**2 / 2 for mu in mus)


def test_one_position_is_a_plain_gaussian() -> None:
    assert shuffled_divergence([0.7], 3.0) == pytest.approx(3.0 * 0.49 / 2)


def test_a_secret_position_costs_less_than_the_last_one_and_tight_accounting_less_still() -> None:
    found = shuffled_epsilon(noise_multiplier=NOISE, delta=DELTA, **SETTING)
    mus = position_ratios(**SETTING) / NOISE
    tight = secret_position_epsilon(mus.tolist(), delta=DELTA)
    worst = gdp_epsilon(cyclic_ratio(**SETTING) / NOISE, DELTA)
    assert tight <= found
    assert found < 1.3 * worst
    assert tight < worst


def test_the_bound_converges_as_epochs_go_on() -> None:
    many, more = (
        shuffled_epsilon(noise_multiplier=NOISE, delta=DELTA, contraction=0.9, batches=5, epochs=epochs)
        for epochs in (40, 80)
    )
    assert more == pytest.approx(many, rel=1e-3)
