"""Costs of the kinds of noise at one guarantee: each is calibrated to the same epsilon, delta and rounds.

The cost of a noise is the mean of ``sum_i weight_i |noise_i|`` over the sum of the weights: the weighted mean absolute
noise of a coordinate. Weights are public; without weights all coordinates count alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.errors import AccountingError, ArgumentError, PlanError
from privet.mechanism.laplace import L2Laplace, ProductLaplace
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian, MultipliedNoise, Noise, calibrated_multiplier
from privet.mechanism.optimal_laplace import optimal_block_l2, optimal_product_laplace
from privet.mechanism.sensitivity import Sensitivity
from privet.plan import Plan

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NoiseCost:
    """The cost of one kind of noise at the common guarantee.

    Attributes:
        name: Display name of the kind.
        noise: The calibrated piece; None where the guarantee cannot be reached.
        cost: Weighted mean absolute noise of a coordinate over the sensitivity; None where it cannot be reached.
        over_gaussian: The cost over that of Gaussian noise.
        signal_to_noise: Upper bound: the length of the clipped sum if all expected gradients are parallel and of
            the clipping bound's length, over the root mean squared length of the noise.
        remark: Why there is no figure, or which accountant bounds it.
    """

    name: str
    noise: Noise | None
    cost: float | None
    over_gaussian: float | None
    signal_to_noise: float | None
    remark: str = ""


def compare_noise(
    plan: Plan, *, num_coordinates: int, epsilon: float, weights: Sequence[float] | None = None
) -> list[NoiseCost]:
    """Calibrate every kind of noise to the same guarantee and return their costs, Gaussian noise first.

    Args:
        plan: Gives everything but the noise.
        num_coordinates: Trainable coordinates of the model.
        epsilon: Target of every kind, at the plan's delta.
        weights: Public weights of the coordinates; equal by default.
    """
    size = checks.count("num_coordinates", num_coordinates)
    values = [1.0] * size if weights is None else list(weights)
    if len(values) != size:
        raise ArgumentError(f"weights must be {size} numbers, one per coordinate, got {len(values)}.")
    kinds: list[tuple[str, MultipliedNoise, str]] = [
        ("Gaussian", Gaussian(), ""),
        ("L2-Laplace", L2Laplace(num_coordinates=size), ""),
        ("Laplace, equal", ProductLaplace(sizes=(1.0,) * size), "bounded by RDP"),
        ("Laplace, by weight", optimal_product_laplace(values, epsilon=1.0), "bounded by RDP"),
        ("block norm", optimal_block_l2(values, epsilon=1.0), "its pure guarantee only"),
    ]
    if weights is None:
        kinds = [kind for kind in kinds if kind[0] != "Laplace, by weight"]
    whole, one = Layout(names=("all",), shapes=((size,),), groups=(0,)), Sensitivity(bounds=(1.0,))
    share = np.array(values) / math.fsum(values)
    found: list[NoiseCost] = []
    for name, piece, remark in kinds:
        try:
            multiplier = replace(plan, noise=piece).calibrated(epsilon=epsilon).noise.noise_multiplier
        except (AccountingError, PlanError) as error:
            found.append(
                NoiseCost(name=name, noise=None, cost=None, over_gaussian=None, signal_to_noise=None, remark=str(error))
            )
            continue
        made = piece.with_multiplier(calibrated_multiplier(name, multiplier))
        cost = float(made.mean_noise(whole, one) @ share)
        first = found[0].cost if found else cost
        found.append(
            NoiseCost(
                name=name,
                noise=made,
                cost=cost,
                over_gaussian=None if first is None else cost / first,
                signal_to_noise=plan.sampling.expected_batch_size / made.root_mean_square(size),
                remark=remark,
            )
        )
    return found
