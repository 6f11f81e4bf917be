"""Two methods in favour of a group: loss weights cost no privacy, a higher sampling rate does.

Freezing and augmentation cost no privacy either: see ``privet.mechanism.masking`` and ``privet.training.augmentation``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.sampling import Poisson
from privet.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor

    Losses = Callable[[Tensor, Tensor], Tensor]


def group_weighted(losses: Losses, groups: Callable[[Tensor, Tensor], Tensor], weights: Sequence[float]) -> Losses:
    """Return a loss function that multiplies every example's loss by the weight of its group.

    Guarantee: no privacy cost. A weight changes an example's gradient before clipping, and the clipping bound holds for
    every gradient. The weights must be declared: weights computed from the records, such as inverse counts, are a
    separate release that the guarantee does not cover.

    Edge cases: a weight of zero excludes a group; weights below zero, infinite or NaN are refused. A larger weight has
    no effect on gradients that are already longer than the bound.

    Args:
        losses: Maps inputs and targets to one loss per example.
        groups: Maps inputs and targets to the group number of each example, from 0.
        weights: Declared weights, one per group.
    """
    values = [checks.non_negative("weight", weight) for weight in weights]
    if not values:
        raise ArgumentError("weights is empty. Give one weight per group.")

    def weighted(inputs: Tensor, targets: Tensor) -> Tensor:
        found = losses(inputs, targets)
        return found * found.new_tensor(values)[groups(inputs, targets)]

    return weighted


def charged_for_group_rates(plan: Plan, rates: Sequence[float]) -> Plan:
    """Return the plan whose guarantee covers training with a different sampling rate for each group.

    Sessions and recipes sample every record at one rate. A custom training loop that samples a rare group more often
    must be accounted for at the highest rate; this plan has that rate.

    Guarantee: if every record joins a step independently with the rate of its group, the guarantee of this plan holds
    for the records of every group, because the privacy cost increases with the rate. The average rate would understate
    the cost for the group with the highest rate. Rates must be declared, not computed from the records.

    Edge cases: equal rates give the plan at that rate; a group with rate zero is not used and has no cost.

    Args:
        plan: The plan with one rate; noise, clipping and steps stay the same.
        rates: Sampling probability of a record per step, one per group.

    Raises:
        ArgumentError: the plan has no Poisson sampling, or all rates are zero.
    """
    if not plan.sampling.has_independent_coins or plan.sampling.inclusion == 1:
        raise ArgumentError(
            f"Sampling rates of groups need Poisson sampling, and this plan has {type(plan.sampling).__name__}. Use "
            "Poisson sampling, or group_weighted losses, which cost no privacy."
        )
    found = [checks.probability("rate", rate, allow_zero=True, allow_one=True) for rate in rates]
    if not found or max(found) == 0:
        raise ArgumentError("Give one rate per group, at least one of them above zero.")
    divisor = plan.sampling.expected_batch_size
    return replace(plan, sampling=Poisson(rate=max(found), steps=plan.num_steps, expected_batch_size=divisor))
