"""Renyi divergences by integration: exact values, the library's own at whole orders, and bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event, rdp
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.curves import RenyiCurve
from privet.accounting.event_reader import SampledGaussian
from privet.accounting.renyi import ORDERS, gaussian_divergences, sampled_divergences


def divergence(rate: float, multiplier: float, order: float, *, replace: bool = False) -> float:
    release = SampledGaussian(rate=rate, noise_multiplier=multiplier, num_steps=1)
    return float(sampled_divergences(np.array([order]), release, replace=replace)[0])


@pytest.mark.parametrize(
    ("rate", "multiplier", "order", "value", "rel"),
    [
        (0.01, 1, 2.0, 1.71813422074548e-4, 1e-9),
        (0.01, 1, 8.0, 8.93643907606032e-4, 1e-9),
        (0.1, 2, 32.0, 1.62720230101944, 1e-12),
        (0.004, 1.1, 16.5, 0.941226957270028, 1e-12),
        (0.01, 1, 1.5, 1.2725374e-4, 1e-7),
        (0.02, 0.8, 2.5, 2.0203449e-3, 1e-7),
        (0.1, 2, 1.5, 2.0989346e-3, 1e-7),
    ],
)
def test_divergences_have_their_exact_values(
    rate: float, multiplier: float, order: float, value: float, rel: float
) -> None:
    assert divergence(rate, multiplier, order) == pytest.approx(value, rel=rel)


@settings(deadline=None, max_examples=30)
@given(st.floats(-5, -0.05), st.floats(0.3, 20), st.integers(2, 200))
def test_whole_orders_agree_with_the_binomial_sum(log_rate: float, multiplier: float, order: int) -> None:
    rate = 10**log_rate
    accountant = rdp.RdpAccountant(orders=[float(order)])
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier)))
    assert divergence(rate, multiplier, float(order)) == pytest.approx(float(accountant._rdp[0]), rel=1e-8, abs=2e-14)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.001, 0.999), st.floats(0.2, 20), st.floats(1.05, 300))
def test_replacing_costs_more_than_removing_and_less_than_without_sampling(
    rate: float, multiplier: float, order: float
) -> None:
    removed, replaced = divergence(rate, multiplier, order), divergence(rate, multiplier, order, replace=True)
    whole = float(gaussian_divergences(np.array([order]), 2 / multiplier)[0])
    assert removed <= replaced * (1 + 1e-9) + 1e-13
    assert replaced <= whole * (1 + 1e-9) + 1e-13


def test_replacing_at_nearly_full_rate_is_the_gaussian_of_twice_the_signal() -> None:
    assert divergence(1 - 1e-12, 3.0, 7.0, replace=True) == pytest.approx(7 * (2 / 3) ** 2 / 2, rel=1e-6)


def test_noise_too_small_to_integrate_is_charged_without_sampling() -> None:
    assert divergence(0.1, 1e-3, 5.0) == pytest.approx(5 / 2 * 1e6)


def test_the_conversion_is_the_published_one() -> None:
    orders = np.array(ORDERS)
    divergences = gaussian_divergences(orders, 0.7)
    curve = RenyiCurve(orders=orders, divergences=divergences)
    for delta in (1e-3, 1e-5, 1e-10):
        expected, _ = rdp.compute_epsilon(orders, divergences, delta)
        assert curve.epsilon(delta) == pytest.approx(expected, rel=1e-12)
    for epsilon in (0.0, 0.5, 3.0):
        expected, _ = compute_delta(orders, divergences, epsilon)
        assert curve.deltas(np.array([epsilon]))[0] == pytest.approx(expected, rel=1e-9)


def test_the_orders_reach_from_near_one_to_1024() -> None:
    assert np.all(np.diff(ORDERS) > 0)
    assert ORDERS[0] < 1.02
    assert ORDERS[-1] == 1024
    assert not math.isnan(sum(ORDERS))
