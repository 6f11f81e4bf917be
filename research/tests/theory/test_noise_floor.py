from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.effects.model_sensitivity import ModelSensitivity
from privet.errors import ArgumentError
from privet.mechanism.layout import Layout
from privet.mechanism.noise import MultipliedNoise
from privet.mechanism.optimal_laplace import optimal_block_l2, optimal_product_laplace
from privet.mechanism.sensitivity import Sensitivity
from privet_research.theory.noise_floor import least_noise_cost

WEIGHTS = {
    "equal, 2": np.ones(2),
    "equal, 100": np.ones(100),
    "equal, 10000": np.ones(10_000),
    "quadratic, 100": 1.0 + np.arange(100.0) ** 2,
    "few heavy ones, 1000": np.where(np.arange(1000) < 10, 1.0, 1e-3),
}


def cost(noise: MultipliedNoise, weights: np.ndarray) -> float:
    layout = Layout(names=("a",), shapes=((len(weights),),), groups=(0,))
    return ModelSensitivity(layout=layout, weights=weights).expected_cost(noise, Sensitivity(bounds=(1.0,)))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_block_noise_is_within_a_small_factor_of_every_noise_there_could_be(name: str, epsilon: float) -> None:
    weights = WEIGHTS[name]
    least = least_noise_cost(weights.tolist(), epsilon=epsilon)
    block = cost(optimal_block_l2(weights.tolist(), epsilon=epsilon), weights)
    assert least <= block * (1 + 1e-9)
    # 2.3 to 3.6 times; where ten of a thousand coordinates matter the bound itself is weaker.
    assert block <= (8.0 if name.startswith("few") else 3.6) * least


def test_independent_noise_is_further_from_the_bound_than_block_noise_in_high_dimension() -> None:
    weights = WEIGHTS["equal, 10000"]
    least = least_noise_cost(weights.tolist(), epsilon=1.0)
    assert cost(optimal_product_laplace(weights.tolist(), epsilon=1.0), weights) > cost(
        optimal_block_l2(weights.tolist(), epsilon=1.0), weights
    )
    assert cost(optimal_product_laplace(weights.tolist(), epsilon=1.0), weights) < 10 * least


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
def test_the_best_noise_in_one_dimension_is_not_below_the_bound(epsilon: float) -> None:
    # Geng and Viswanath (2014): the staircase has the least mean absolute value, exp(e / 2) / (exp(e) - 1).
    staircase = np.exp(epsilon / 2) / np.expm1(epsilon)
    assert least_noise_cost([1.0], epsilon=epsilon) <= staircase <= 6 * least_noise_cost([1.0], epsilon=epsilon)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.01, 4), st.floats(0.1, 10))
def test_the_bound_scales_with_the_weights_and_falls_with_epsilon(
    weights: list[float], epsilon: float, factor: float
) -> None:
    here = least_noise_cost(weights, epsilon=epsilon)
    assert least_noise_cost([factor * weight for weight in weights], epsilon=epsilon) == pytest.approx(factor * here)
    assert least_noise_cost(weights, epsilon=2 * epsilon) < here
    assert least_noise_cost([*weights, 1.0], epsilon=epsilon) >= here * (1 - 1e-9)


@pytest.mark.parametrize("weights", [[], [0.0], [-1.0, 1.0], [float("nan")]], ids=str)
def test_weights_without_meaning_are_refused(weights: list[float]) -> None:
    with pytest.raises(ArgumentError, match="weights"):
        least_noise_cost(weights, epsilon=1.0)
