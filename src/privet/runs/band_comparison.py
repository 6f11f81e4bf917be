"""When correlated noise pays: the error of the weights at one guarantee, for every number of bands.

The figure is the root mean squared error, over all steps and coordinates, that the noise adds to the sum of the
updates, in units of the clipping bound. Independent noise is one band. Nothing here reads data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from privet.errors import CalibrationError, PlanError
from privet.mechanism import factorisation
from privet.mechanism.correlated_noise import BandedGaussian
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.noise import calibrated_multiplier
from privet.mechanism.sampling import Sampling
from privet.plan import Plan

_WORTH = 0.95


@dataclass(frozen=True, kw_only=True)
class BandCost:
    """The cost of one number of bands at the common guarantee.

    Attributes:
        bands: Number of bands; 1 is independent noise.
        plan: The calibrated plan.
        error: Root mean squared error of the weights of a step, over learning rate and clipping bound.
        over_independent: The error over that of independent noise.
        vectors: Vectors of noise that a run keeps in memory.
    """

    bands: int
    plan: Plan
    error: float
    over_independent: float

    @property
    def pays(self) -> bool:
        """Whether the gain over independent noise is worth the memory: at least a twentieth."""
        return self.over_independent <= _WORTH

    @property
    def vectors(self) -> int:
        return self.bands - 1


def compare_bands(plan: Plan, *, epsilon: float, momentum: float = 0.0, kept_weight: float = 1.0) -> list[BandCost]:
    """Calibrate optimised bands of every power of two to the same guarantee, independent noise first.

    Args:
        plan: Gives batches, steps, clipping and terms.
        epsilon: Target of every row, at the plan's delta.
        momentum: Momentum of the optimizer.
        kept_weight: Factor that the weights keep in a step: one minus learning rate times weight decay.

    Raises:
        PlanError: no cost is proven for correlated noise with the pieces of this plan.
    """
    found: list[BandCost] = []
    terms = {"momentum": momentum, "kept_weight": kept_weight}
    for bands, sampling in _samplings(plan.sampling):
        noise = BandedGaussian.optimised(bands=bands, steps=plan.num_steps, **terms)
        try:
            made = replace(plan, sampling=sampling, noise=noise).calibrated(epsilon=epsilon)
        except CalibrationError:
            continue
        size = calibrated_multiplier("BandedGaussian", made.noise.noise_multiplier) * noise.scale
        error = size * factorisation.prefix_error(noise.coefficients, plan.num_steps, **terms)
        first = found[0].error if found else error
        found.append(BandCost(bands=bands, plan=made, error=error, over_independent=error / first))
    if not found:
        raise PlanError(f"No noise reaches epsilon {epsilon:g} here, independent or correlated.")
    return found


def best_bands(costs: Sequence[BandCost]) -> BandCost:
    """Return the row with the least error."""
    return min(costs, key=lambda row: row.error)


def _samplings(sampling: Sampling) -> Iterator[tuple[int, Sampling]]:
    """Yield numbers of bands with a sampling of the same batches and steps that allows them."""
    num_steps = sampling.num_rounds * sampling.steps_per_round
    around = (lambda inner: inner) if sampling.contribution is None else sampling.contribution.around
    if sampling.contribution is not None and sampling.contribution.items_per_person > 1:
        raise PlanError(
            f"{type(sampling).__name__} may use records of a person in two steps that follow each other, so no cost of "
            "correlated noise is proven. Draw persons: SampledPersons."
        )
    if sampling.has_independent_coins:
        most = min(math.floor(1 / sampling.inclusion + 1e-9), num_steps, factorisation.MOST_BANDS)
        for bands in _powers(most):
            yield (
                bands,
                around(
                    CyclicPoisson(
                        groups=bands,
                        rate=min(1.0, bands * sampling.inclusion),
                        cycles=-(-num_steps // bands),
                        expected_batch_size=sampling.expected_batch_size,
                    )
                ),
            )
    elif sampling.separation > 1:
        for bands in _powers(min(sampling.separation, factorisation.MOST_BANDS)):
            yield bands, sampling
    else:
        raise PlanError(
            f"{type(sampling).__name__} may use a record in two steps that follow each other, so there is no proven "
            "cost of correlated noise. Use Poisson or Cyclic sampling."
        )


def _powers(most: int) -> Iterator[int]:
    bands = 1
    while bands <= most:
        yield bands
        bands *= 2
