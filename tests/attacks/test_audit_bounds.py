"""Bounds of audits, against closed forms, worked values and mechanisms whose privacy is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtrc, expit, logit, ndtr, ndtri

from privet.accounting.gaussian_dp import gdp_epsilon
from privet.attacks.audit_bounds import (
    Errors,
    Guesses,
    one_run_epsilon,
    one_run_p_value,
    one_run_refutes,
)
from privet.attacks.one_run_audit import SHARES, guess
from privet.errors import ArgumentError


def errors(wrong_out: int, wrong_in: int, side: int = 1000) -> Errors:
    return Errors(false_positives=wrong_out, num_out=side, false_negatives=wrong_in, num_in=side)


def test_an_errorless_test_has_the_two_exact_limits_of_no_errors() -> None:
    # no error in n trials: the limit at level a is 1 - a^(1/n)
    limit = 1 - 0.025 ** (1 / 1000)
    assert errors(0, 0).upper_rates(0.95) == pytest.approx((limit, limit), rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 400), st.integers(0, 400), st.floats(0.5, 0.999))
def test_more_errors_and_more_confidence_raise_the_limits(wrong_out: int, wrong_in: int, confidence: float) -> None:
    false_positive, false_negative = errors(wrong_out, wrong_in).upper_rates(confidence)
    assert errors(wrong_out + 1, wrong_in).upper_rates(confidence)[0] > false_positive
    assert errors(wrong_out, wrong_in + 1).upper_rates(confidence)[1] > false_negative
    surer = errors(wrong_out, wrong_in).upper_rates((1 + confidence) / 2)
    assert surer[0] > false_positive
    assert surer[1] > false_negative


def test_a_side_without_canaries_has_the_limit_one() -> None:
    empty = Errors(false_positives=0, num_out=0, false_negatives=0, num_in=9)
    assert empty.upper_rates(0.95)[0] == 1


def test_a_full_score_refutes_every_epsilon_below_the_one_of_repeated_randomized_response() -> None:
    # all of 1000 guesses right: expit(epsilon)^1000 = 5 % at epsilon = logit(0.05^(1/1000)) = 5.81
    expected = logit(0.05 ** (1 / 1000))
    assert expected == pytest.approx(5.81, abs=0.005)
    full = Guesses(num_canaries=1000, num_guesses=1000, num_right=1000)
    assert one_run_epsilon(full, delta=0.0, confidence=0.95) == pytest.approx(expected, rel=2e-6)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.data(), st.floats(0.0, 4.0), st.floats(0.0, 1e-3))
def test_the_p_value_is_the_binomial_tail_and_the_toll_of_delta(
    made: int, data: st.DataObject, epsilon: float, delta: float
) -> None:
    right = data.draw(st.integers(1, made))
    guesses = Guesses(num_canaries=2 * made, num_guesses=made, num_right=right)
    chance = expit(epsilon)
    beta = float(bdtrc(right - 1, made, chance))
    toll = max(
        ((1.0 if right == i else float(bdtrc(right - i - 1, made, chance))) - beta) / i for i in range(1, right + 1)
    )
    expected = min(1.0, beta + 2 * guesses.num_canaries * delta * toll)
    assert one_run_p_value(guesses, epsilon=epsilon, delta=delta) == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert one_run_p_value(guesses, epsilon=epsilon, delta=0.0) == pytest.approx(beta, rel=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.integers(10, 200), st.data())
def test_one_more_right_guess_never_proves_less(made: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, made - 1))
    fewer, more = (Guesses(num_canaries=made, num_guesses=made, num_right=each) for each in (right, right + 1))
    assert one_run_epsilon(fewer, delta=1e-5, confidence=0.95) <= one_run_epsilon(more, delta=1e-5, confidence=0.95)
    for mu in (0.0, 0.5, 1.0, 2.0, 4.0):
        assert refutes_mu(more, mu, 0.95) or not refutes_mu(fewer, mu, 0.95)


def refutes_mu(guesses: Guesses, mu: float, confidence: float) -> bool:
    return one_run_refutes(guesses, lambda rate: float(ndtr(ndtri(rate) - mu)), confidence=confidence)


def largest_refuted_mu(guesses: Guesses, confidence: float) -> float:
    low, high = 0.0, 64.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refutes_mu(guesses, middle, confidence) else (low, middle)
    return low


def one_run_bounds(sigma: float, steps: int, canaries: int, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    is_in = rng.random(canaries) < 0.5
    scores = rng.standard_normal(canaries) + is_in * math.sqrt(steps) / sigma
    made = [guess(scores, is_in, share=share) for share in SHARES]
    level = 1 - 0.05 / len(made)
    plain = max(one_run_epsilon(each, delta=1e-5, confidence=level) for each in made)
    return plain, max(gdp_epsilon(largest_refuted_mu(each, level), 1e-5) for each in made)


@pytest.mark.parametrize(
    ("sigma", "steps", "plain", "tight"),
    [(0.5, 1, 3.83, 5.41), (1.0, 1, 1.90, 2.36), (2.0, 1, 0.92, 1.12), (1.0, 10, 5.20, 8.94), (2.0, 25, 4.67, 7.75)],
    ids=str,
)
def test_gaussian_mechanisms_give_the_bounds_that_were_measured_for_ten_thousand_canaries(
    sigma: float, steps: int, plain: float, tight: float
) -> None:
    found = one_run_bounds(sigma, steps, 10_000, seed=0)
    # single runs scatter by a tenth: a few hundred guesses decide, nearly all of them right
    assert found[0] == pytest.approx(plain, rel=0.15)
    assert found[1] == pytest.approx(tight, rel=0.15)
    assert max(found) < gdp_epsilon(math.sqrt(steps) / sigma, 1e-5)


def test_a_true_claim_is_refuted_no_more_often_than_allowed() -> None:
    rng = np.random.default_rng(1)
    canaries, runs, refuted = 100, 400, 0
    for _ in range(runs):
        is_in = rng.random(canaries) < 0.5
        made = guess(rng.standard_normal(canaries) + is_in, is_in, share=1.0)
        refuted += refutes_mu(made, 1.0, 0.8)
    # more than 109 of 400 has a probability below 1e-4 at a rate of 20 percent
    assert refuted <= 109


def test_guesses_are_made_about_both_ends_and_nothing_between() -> None:
    scores, is_in = np.array([3.0, -1.0, 0.5, 2.0, -4.0, 0.0]), np.array([True, True, False, True, False, False])
    assert guess(scores, is_in, share=1.0) == Guesses(num_canaries=6, num_guesses=6, num_right=4)
    assert guess(scores, is_in, share=0.4) == Guesses(num_canaries=6, num_guesses=2, num_right=2)
    assert guess(scores, is_in, share=0.1) == Guesses(num_canaries=6, num_guesses=0, num_right=0)


def test_numbers_that_do_not_nest_are_refused() -> None:
    with pytest.raises(ArgumentError, match="num_right <= num_guesses"):
        Guesses(num_canaries=5, num_guesses=3, num_right=4)
    with pytest.raises(ArgumentError, match="epsilon"):
        one_run_p_value(Guesses(num_canaries=5, num_guesses=3, num_right=2), epsilon=-1.0, delta=0.0)
    nothing = Guesses(num_canaries=5, num_guesses=0, num_right=0)
    assert one_run_p_value(nothing, epsilon=0.0, delta=0.0) == 1
    assert one_run_epsilon(nothing, delta=0.0, confidence=0.9) == 0
    assert not refutes_mu(nothing, 0.0, 0.9)
