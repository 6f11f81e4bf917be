"""Two ways to help a group, and what they cost: weighting its losses is free, drawing it more often is charged.

Freezing and augmentation are free too: see ``privet.mechanism.masking`` and ``privet.training.augmentation``.
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
    """Return a loss function that multiplies every example's loss by the weight of its own group.

    Guarantee: free. A weight changes an example's gradient before it is clipped, and the clipping bound holds whatever
    the gradient was. That needs weights that are declared: weights computed from the records, such as the inverse of
    their counts, are a release of their own and not covered.

    Edge cases: a weight of zero leaves a group out; weights below zero, infinite or NaN are refused. Gradients that are
    longer than the bound already gain nothing from a larger weight.

    Args:
        losses: From inputs and targets to one loss per example.
        groups: From inputs and targets to the group of each example, from 0.
        weights: One per group, declared.
    """
    values = [checks.non_negative("weight", weight) for weight in weights]
    if not values:
        raise ArgumentError("Give one weight per group.")

    def weighted(inputs: Tensor, targets: Tensor) -> Tensor:
        found = losses(inputs, targets)
        return found * found.new_tensor(values)[groups(inputs, targets)]

    return weighted


def charged_for_group_rates(plan: Plan, rates: Sequence[float]) -> Plan:
    """Return the plan that a training with a sampling rate per group would have to be charged as.

    privet's sessions draw every record at one rate, and recipes refuse any other. Whoever draws a rare group more often
    in a loop of their own must account for it at the highest rate; this plan is the price.

    Guarantee: where every record joins a step independently of all others with the rate of its own group, the guarantee
    of this plan holds for the records of every group, because the cost rises with the rate. The average rate would
    understate what the favoured group, of all people, gives up. Rates must be declared, not computed from the records.

    Edge cases: equal rates give the plan at that rate; a group of rate zero is not used and costs nothing.

    Args:
        plan: The plan with one rate; its noise, clipping and steps are kept.
        rates: Probability with which a record of each group joins a step.

    Raises:
        ArgumentError: the plan samples otherwise, so that there is no rate to raise, or no group is ever drawn.
    """
    if not plan.sampling.has_independent_coins or plan.sampling.inclusion == 1:
        raise ArgumentError(
            f"Rates of groups are charged for Poisson sampling, and this plan has {type(plan.sampling).__name__}. Use "
            "Poisson sampling, or weight losses, which is free."
        )
    found = [checks.probability("rate", rate, allow_zero=True, allow_one=True) for rate in rates]
    if not found or max(found) == 0:
        raise ArgumentError("Give one rate per group, at least one of them above zero: otherwise nothing is drawn.")
    divisor = plan.sampling.expected_batch_size
    return replace(plan, sampling=Poisson(rate=max(found), steps=plan.num_steps, expected_batch_size=divisor))
