"""The last iterate of shuffled batches by a mean over positions, after Ye and Shokri (2022).

Romijnders and Koskela (2025) name that bound as the state of the literature. Whoever sees the last iterate alone does
not know at which position of an epoch the differing record was. The divergence of a mixture is at most that of its
parts in the mean, ``D <= log(mean of exp((order - 1) D_j)) / (order - 1)``, by the joint convexity of
``exp((order - 1) D)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from privet import checks
from privet.accounting.hidden_state import position_ratios


def shuffled_divergence(mus: Sequence[float], order: float) -> float:
    """Return the Renyi divergence of a mixture over positions, each a Gaussian pair of distance ``mu``.

    Guarantee: an upper bound for a position that is uniform, secret, and the same in every epoch.
    """
    alpha = checks.positive("order - 1", order - 1) + 1
    parts = [alpha * checks.non_negative("mu", mu) ** 2 / 2 for mu in mus]
    return float(logsumexp((alpha - 1) * np.array(parts)) - math.log(len(parts))) / (alpha - 1)


def shuffled_epsilon(*, noise_multiplier: float, contraction: float, batches: int, epochs: int, delta: float) -> float:
    """Return epsilon of the last iterate of cyclic descent on a secret shuffle, through that divergence.

    Args:
        noise_multiplier: Noise over the sensitivity of a step.
        contraction: Of one step, below one.
        batches: Per epoch.
        epochs: Passes over the batches, in the same order in each.
        delta: Of the guarantee; Renyi divergences are converted as Canonne, Kamath and Steinke (2020) do.
    """
    noise, least = checks.positive("noise_multiplier", noise_multiplier), checks.probability("delta", delta)
    mus = position_ratios(contraction=contraction, batches=batches, epochs=epochs) / noise

    def epsilon(exponent: float) -> float:
        order = 1 + math.exp(exponent)
        lost = (math.log(1 / least) + (order - 1) * math.log1p(-1 / order) - math.log(order)) / (order - 1)
        return shuffled_divergence(mus.tolist(), order) + lost

    found = minimize_scalar(epsilon, bounds=(math.log(1e-3), math.log(1e4)), method="bounded")
    return max(0.0, float(found.fun))
