"""The last iterate of contractive descent reveals what the greatest convex minorant says, and not less."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtri

from privet.accounting.gaussian_dp import gdp_epsilon, gdp_mu
from privet.accounting.hidden_state import (
    cyclic_ratio,
    gradient_descent_ratio,
    minorant_mu,
    position_ratios,
    projected_mu,
    secret_position_epsilon,
)
from privet.errors import ArgumentError

Array = NDArray[np.float64]


def cyclic_steps(
    contraction: float, batches: int, epochs: int, *, position: int | None = None, shift: float = 1.0
) -> dict[str, Any]:
    total = batches * epochs
    shifts = np.zeros(total)
    shifts[(batches - 1 if position is None else position) :: batches] = shift
    return {"shifts": shifts, "contractions": np.full(total, contraction), "noise_stds": np.ones(total)}


def solved_directly(shifts: Array, contractions: Array, noise_stds: Array) -> float:
    """Solve the quadratic programme over the amounts by a formula, and prove the solution by its multipliers.

    With x_t = W_t a_t the programme is: minimise sum x_t^2 / v_t with partial sums at most S_t and the last equal. Its
    solution is x_t = v_t g_t, where g is the rising sequence nearest to s_t W_t / v_t with weights v_t, which is the
    largest of all smallest means: g_t = max over i <= t of min over j >= t of the mean from i to j. Sums and quotients
    of non-negative numbers only, so no processor's rounding matters.
    """
    weights = np.append(np.cumprod(contractions[::-1])[::-1][1:], 1.0)
    lengths, rises = (weights * noise_stds) ** 2, weights * shifts
    starts_before = np.triu(np.ones((len(shifts), len(shifts)), dtype=bool))
    with np.errstate(invalid="ignore"):
        means = np.cumsum(starts_before * rises, axis=1) / np.cumsum(starts_before * lengths, axis=1)
    smallest = np.minimum.accumulate(np.where(starts_before, means, np.inf)[:, ::-1], axis=1)[:, ::-1]
    slopes = np.where(starts_before, smallest, 0.0).max(axis=0)
    assert_optimal(slopes, lengths=lengths, rises=rises)
    return math.sqrt(math.fsum(lengths * slopes**2))


def assert_optimal(slopes: Array, *, lengths: Array, rises: Array) -> None:
    """Hold the conditions that make an answer of the programme the best one: a wrong oracle shows itself here.

    Feasible amounts cost sum v g^2 and a rising g >= 0 proves that none cost less than 2 sum g W s - sum v g^2; where
    the two meet, both are best.
    """
    amounts = lengths * slopes
    room = np.cumsum(rises) - np.cumsum(amounts)
    total = float(rises.sum())
    assert (np.diff(slopes) >= -1e-12 * slopes.max()).all()
    assert slopes.min() >= 0
    assert (room >= -1e-12 * total).all()
    assert abs(room[-1]) <= 1e-12 * total
    cost = math.fsum(amounts * slopes)
    assert abs(cost - math.fsum(rises * slopes)) <= 1e-12 * cost


# --------------------------------------------------------------------------------------------------- published values

CYCLIC = [
    (0.99, 20, 5, 1.0753361995105),
    (0.99, 20, 50, 1.18726492317437),
    (0.98, 10, 500, 1.35005057731494),
    (1 - 5.4e-5, 60, 400, 2.61487747080881),
    (0.9999, 40, 100, 1.85300819776239),
    (1 - 1e-9, 60, 400, 2.76586326620323),
    (0.5, 3, 4, 1.03004164858898),
    (1.0, 60, 400, 2.76586333718787),
]


@pytest.mark.parametrize(("contraction", "batches", "epochs", "expected"), CYCLIC)
def test_cyclic_descent_has_the_derived_ratios(contraction: float, batches: int, epochs: int, expected: float) -> None:
    assert cyclic_ratio(contraction=contraction, batches=batches, epochs=epochs) == pytest.approx(expected, rel=1e-12)
    assert minorant_mu(**cyclic_steps(contraction, batches, epochs)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("contraction", "steps", "expected"),
    [
        (0.9, 10, 3.02914679532872),
        (0.99, 100, 9.61013744646197),
        (0.999, 10**4, 44.7081581495017),
        (0.5, 2, 1.34164078649987),
        (0.9999, 1000, 31.6096095644313),
    ],
)
def test_descent_on_all_records_has_the_derived_ratios(contraction: float, steps: int, expected: float) -> None:
    assert gradient_descent_ratio(contraction=contraction, steps=steps) == pytest.approx(expected, rel=1e-12)
    assert minorant_mu(**cyclic_steps(contraction, 1, steps)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("epochs", "contraction", "mu", "epsilon"),
    [
        (50, 0.9999, 0.9924914, 4.3392),
        (100, 0.9999, 1.2353388, 5.6013),
        (200, 0.9999, 1.5929737, 7.5789),
        (50, 0.9998, 0.9888585, 4.3208),
        (100, 0.9998, 1.2174539, 5.5061),
        (200, 0.9998, 1.5061240, 7.0859),
    ],
)
def test_the_logistic_regressions_of_bok_su_and_altschuler(
    epochs: int, contraction: float, mu: float, epsilon: float
) -> None:
    found = 2 / 3 * cyclic_ratio(contraction=contraction, batches=40, epochs=epochs)
    assert found == pytest.approx(mu, abs=6e-8)
    assert gdp_epsilon(found, 1e-5) == pytest.approx(epsilon, abs=6e-5)


@pytest.mark.parametrize(
    ("epsilon", "delta", "multiplier"),
    [(1.33, 1e-5, 15.058254), (4.76, 1e-5, 4.865312), (1, 1e-5, 19.510289), (8, 1e-5, 3.139051), (3, 1e-6, 8.074017)],
)
def test_the_noise_for_a_target_is_the_derived_one(epsilon: float, delta: float, multiplier: float) -> None:
    ratio = cyclic_ratio(contraction=1 - 5.4e-5, batches=60, epochs=400)
    assert 2 * ratio / gdp_mu(epsilon, delta) == pytest.approx(multiplier, abs=6e-7)


@pytest.mark.parametrize(
    ("epochs", "slow", "fast"),
    [
        (10, 0.5028, 0.5025),
        (50, 0.6446, 0.6392),
        (100, 0.7903, 0.7622),
        (200, 1.0208, 0.8923),
        (400, 1.3357, 0.9526),
        (1000, 1.6920, 0.9590),
        (4000, 1.7605, 0.9590),
    ],
)
def test_epsilon_stops_growing_with_the_epochs(epochs: int, slow: float, fast: float) -> None:
    for contraction, expected in ((1 - 5.4e-5, slow), (1 - 2e-4, fast)):
        mu = 2 / 15 * cyclic_ratio(contraction=contraction, batches=60, epochs=epochs)
        assert gdp_epsilon(mu, 1e-5) == pytest.approx(expected, abs=6e-5)


def test_a_falling_step_size_is_charged_step_by_step() -> None:
    rates = np.linspace(1, 0.1, 50)
    shifts = np.zeros(50)
    shifts[4::5] = rates[4::5]
    found = minorant_mu(shifts=shifts, contractions=1 - 0.1 * rates, noise_stds=rates)
    assert found == pytest.approx(1.643273221874, abs=1e-12)


def test_earlier_places_in_the_epoch_cost_less() -> None:
    ratios = position_ratios(contraction=0.99, batches=20, epochs=50)
    assert ratios[[0, 10, 18, 19]] == pytest.approx([0.6400046, 0.7076706, 0.9510904, 1.1872649], abs=6e-8)
    assert (np.diff(ratios) > 0).all()


@pytest.mark.parametrize(("place", "expected"), [(58, 2.476475), (57, 2.457845)], ids=["last", "second last"])
def test_more_noise_on_a_short_last_batch_costs_less(place: int, expected: float) -> None:
    batches, epochs = 59, 400
    shifts, stds = np.zeros(batches * epochs), np.ones(batches * epochs)
    shifts[place::batches], stds[batches - 1 :: batches] = 1.0, 1024 / 608
    found = minorant_mu(shifts=shifts, contractions=np.full(batches * epochs, 1 - 5.4e-5), noise_stds=stds)
    assert found == pytest.approx(expected, abs=6e-7)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ("constant", 2.638136),
        ("mean", 4.443176),
    ],
)
def test_dividing_by_the_true_size_of_a_short_batch_costs_more(sizes: str, expected: float) -> None:
    batches, epochs, short = 59, 400, 608 / 1024
    steps = cyclic_steps(1 - 5.4e-5, batches, epochs)
    if sizes == "mean":
        steps["shifts"] = steps["shifts"] / short
    assert minorant_mu(**steps) == pytest.approx(expected, abs=6e-7)


@pytest.mark.parametrize(
    ("multiplier", "worst", "secret"), [(15.0, 1.3357, 1.2347), (5.0, 4.6113, 4.2483)], ids=["15", "5"]
)
def test_a_secret_place_costs_less_than_the_worst(multiplier: float, worst: float, secret: float) -> None:
    ratios = position_ratios(contraction=1 - 5.4e-5, batches=60, epochs=400)
    mus = 2 / multiplier * ratios
    assert gdp_epsilon(float(mus.max()), 1e-5) == pytest.approx(worst, abs=6e-5)
    assert secret_position_epsilon(mus, delta=1e-5) == pytest.approx(secret, abs=6e-5)


@pytest.mark.parametrize(
    ("batches", "epochs", "diameter", "shift", "expected", "tolerance"),
    [(3, 40, 2.0, 0.3, 0.900326738076, 1e-12), (20, 600, 1.0, 0.05, 0.10966, 5e-6)],
    ids=["short", "long"],
)
def test_a_bounded_domain_forgets(
    batches: int, epochs: int, diameter: float, shift: float, expected: float, tolerance: float
) -> None:
    steps = cyclic_steps(1.0, batches, epochs, shift=shift)
    assert projected_mu(domain_diameter=diameter, **steps) == pytest.approx(expected, abs=tolerance)


# ------------------------------------------------------------------------------------------------------------- laws


def test_closed_form_minorant_and_direct_solution_agree_on_a_thousand_settings() -> None:
    rng = np.random.default_rng(5)
    worst = 0.0
    for _ in range(1000):
        batches, epochs = int(rng.integers(1, 9)), int(rng.integers(1, 7))
        contraction = float(1 - rng.choice([0.0, 1.0]) * 10 ** rng.uniform(-6, -0.2))
        steps = cyclic_steps(contraction, batches, epochs)
        closed = cyclic_ratio(contraction=contraction, batches=batches, epochs=epochs)
        for other in (minorant_mu(**steps), solved_directly(**steps)):
            worst = max(worst, abs(other / closed - 1))
    assert worst < 1e-10


def test_minorant_and_direct_solution_agree_on_uneven_schedules() -> None:
    rng = np.random.default_rng(6)
    for _ in range(200):
        total = int(rng.integers(1, 30))
        steps = {
            "shifts": rng.random(total) * (rng.random(total) < 0.4),
            "contractions": rng.uniform(0.5, 1.1, total),
            "noise_stds": rng.uniform(0.2, 2, total),
        }
        assert minorant_mu(**steps) == pytest.approx(solved_directly(**steps), rel=1e-9, abs=1e-12)


def test_a_projection_is_the_best_of_all_beginnings() -> None:
    rng = np.random.default_rng(7)
    for _ in range(150):
        total, diameter = int(rng.integers(1, 25)), float(2 * rng.random())
        steps = {
            "shifts": rng.random(total) * (rng.random(total) < 0.5),
            "contractions": rng.uniform(0, 1.05, total),
            "noise_stds": rng.uniform(0.1, 1.1, total),
        }
        beginnings = [
            minorant_mu(start_distance=diameter, **{name: values[start:] for name, values in steps.items()})
            for start in range(total)
        ]
        expected = min(minorant_mu(**steps), *beginnings)
        assert projected_mu(domain_diameter=diameter, **steps) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@given(
    contraction=st.floats(0, 1),
    batches=st.integers(1, 200),
    epochs=st.integers(1, 2000),
)
def test_the_ratio_lies_between_one_release_and_plain_composition(
    contraction: float, batches: int, epochs: int
) -> None:
    ratio = cyclic_ratio(contraction=contraction, batches=batches, epochs=epochs)
    assert 1 - 1e-12 <= ratio <= math.sqrt(epochs) * (1 + 1e-12)
    assert ratio <= cyclic_ratio(contraction=contraction, batches=batches, epochs=epochs + 1) * (1 + 1e-12)
    slower = contraction + (1 - contraction) / 2
    assert ratio <= cyclic_ratio(contraction=slower, batches=batches, epochs=epochs) * (1 + 1e-9)


def test_a_million_steps_are_accounted_in_two_seconds() -> None:
    steps = cyclic_steps(1 - 1e-6, 50, 20_000)
    began = time.process_time()
    found = minorant_mu(**steps)
    assert time.process_time() - began < 2
    assert found == pytest.approx(cyclic_ratio(contraction=1 - 1e-6, batches=50, epochs=20_000), rel=1e-9)


@pytest.mark.parametrize("contraction", [0.0, 5e-324, 0.5, 1 - 2**-53, 1.0])
def test_extreme_lengths_stay_finite(contraction: float) -> None:
    assert 1 <= cyclic_ratio(contraction=contraction, batches=10**9, epochs=10**9) <= 2


def test_a_contraction_of_zero_forgets_everything_before_it() -> None:
    contractions = np.ones(6)
    contractions[4] = 0.0
    shifts = np.array([5.0, 5.0, 5.0, 5.0, 1.0, 0.0])
    # what is left is one shift, hidden by two steps of noise
    found = minorant_mu(shifts=shifts, contractions=contractions, noise_stds=np.ones(6))
    assert found == pytest.approx(math.sqrt(0.5))


def test_no_steps_reveal_nothing_unless_the_runs_begin_apart() -> None:
    empty: dict[str, Any] = {"shifts": [], "contractions": [], "noise_stds": []}
    assert minorant_mu(**empty) == 0
    assert minorant_mu(start_distance=1.0, **empty) == math.inf
    assert minorant_mu(shifts=[0.0, 0.0], contractions=[1.0, 1.0], noise_stds=[1.0, 1.0]) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("shifts", -1.0), ("contractions", math.nan), ("noise_stds", 0.0), ("shifts", math.inf)],
    ids=["negative", "nan", "no-noise", "infinite"],
)
def test_impossible_steps_are_refused(name: str, value: float) -> None:
    steps = cyclic_steps(0.9, 2, 2)
    steps[name][1] = value
    with pytest.raises(ArgumentError, match=name):
        minorant_mu(**steps)


def test_steps_of_unequal_number_are_refused() -> None:
    with pytest.raises(ArgumentError, match="one number per step"):
        minorant_mu(shifts=[1.0], contractions=[1.0, 1.0], noise_stds=[1.0])


# ----------------------------------------------------------------------------------------------------------- attacks


def separation(first: Array, second: Array) -> tuple[float, float]:
    """Return the mu that the best threshold test shows between two samples, and its standard error."""
    threshold = (first.mean() + second.mean()) / 2
    rates = np.array([(first > threshold).mean(), (second > threshold).mean()])
    quantiles = ndtri(rates)
    slopes = np.exp(-(quantiles**2) / 2) / math.sqrt(2 * math.pi)
    errors = np.sqrt(rates * (1 - rates) / len(first)) / slopes
    return float(abs(quantiles[1] - quantiles[0])), float(np.hypot(*errors))


def final_iterates(
    rng: np.random.Generator, *, contraction: float, batches: int, epochs: int, shift: float, runs: int
) -> Array:
    state = np.zeros(runs)
    for step in range(batches * epochs):
        moved = shift if step % batches == batches - 1 else 0.0
        state = contraction * state + moved + rng.standard_normal(runs)
    return state


@pytest.mark.parametrize(("contraction", "steps"), [(0.9, 10), (0.97, 40)])
def test_an_attack_on_a_quadratic_reaches_the_bound_and_never_beats_it(contraction: float, steps: int) -> None:
    rng = np.random.default_rng(11)
    first, second = (
        final_iterates(rng, contraction=contraction, batches=1, epochs=steps, shift=shift, runs=400_000)
        for shift in (0.0, 0.5)
    )
    found, error = separation(first, second)
    bound = 0.5 * gradient_descent_ratio(contraction=contraction, steps=steps)
    assert 0.95 * bound <= found <= bound + 4 * error


def test_an_attack_on_cyclic_descent_finds_what_a_quadratic_reveals() -> None:
    c, batches, epochs, shift = 0.97, 8, 6, 1.5
    rng = np.random.default_rng(12)
    first, second = (
        final_iterates(rng, contraction=c, batches=batches, epochs=epochs, shift=moved, runs=400_000)
        for moved in (0.0, shift)
    )
    found, error = separation(first, second)
    total = batches * epochs
    exact = shift * (1 - c**total) / (1 - c**batches) * math.sqrt((1 - c**2) / (1 - c ** (2 * total)))
    bound = shift * cyclic_ratio(contraction=c, batches=batches, epochs=epochs)
    assert found == pytest.approx(exact, abs=4 * error)
    assert found <= bound
