"""Scores of canaries: how much the noisy sums of a run speak for the membership of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.mechanism.factorisation import inverse
from privet.plan import Plan
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]


def mixed(share: float, log_ratio: Array) -> Array:
    """Return the logarithm of ``1 - share + share * exp(log_ratio)``, without overflow."""
    if share == 1:
        return log_ratio
    return np.asarray(np.logaddexp(math.log1p(-share), math.log(share) + log_ratio))


@dataclass(frozen=True, kw_only=True)
class StepEvidence:
    """The log-likelihood ratio of one step, for Gaussian noise that is independent of that of other steps.

    Attributes:
        plan: The plan under audit.
        law: The probabilities of 0, 1, ... contributions of a canary to a step; a person may make several.
    """

    plan: Plan
    law: Sequence[float]

    def of(self, seen: Array, ratios: Array) -> Array:
        """Return the evidence of a canary's coordinate in one noisy sum, given the ratio of noise to bound."""
        found = self._likelihood(seen, ratios)
        if self.plan.adjacency is Adjacency.REPLACE_ONE:
            found -= self._likelihood(-seen, ratios)
        return found

    def _likelihood(self, seen: Array, ratios: Array) -> Array:
        found = np.full(np.broadcast(seen, ratios).shape, -np.inf)
        for number, chance in enumerate(self.law):
            if chance > 0:
                found = np.logaddexp(found, math.log(chance) + number * (2 * seen - number) / (2 * ratios**2))
        return found


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """The log-likelihood ratio of all steps of a run, for noise that is correlated between steps.

    The attacker multiplies the released sums by C, which makes their noise independent, and adds up what every step of
    the record's own group says. The group of a record is secret, so the likelihood is the mean over all groups.

    Attributes:
        plan: The plan under audit.
        num_steps: Number of steps that the attacker sees.
    """

    plan: Plan
    num_steps: int

    @property
    def column(self) -> Array:
        """The first column of C."""
        return inverse(self.plan.noise.weights(self.num_steps), self.num_steps)

    def made_independent(self, seen: Array) -> Array:
        """Multiply the released sums, steps by canaries, by C."""
        column = self.column
        return np.stack([column[step::-1] @ seen[: step + 1] for step in range(self.num_steps)])

    def of(self, rows: Array, ratios: Array) -> Array:
        """Return the evidence of rows with independent noise, given the ratio of the noise multiplier to the bound."""
        sizes = ratios * self.plan.noise.scale
        found = self._likelihood(rows, sizes)
        if self.plan.adjacency is Adjacency.REPLACE_ONE:
            found -= self._likelihood(-rows, sizes)
        return found

    def _likelihood(self, rows: Array, sizes: Array) -> Array:
        groups = self.plan.sampling.steps_per_round
        rate = self.plan.sampling.inclusion * groups
        places = [self._of_group(rows, sizes, group, min(1.0, rate)) for group in range(groups)]
        return np.asarray(np.logaddexp.reduce(places, axis=0) - math.log(groups))

    def _of_group(self, rows: Array, sizes: Array, group: int, rate: float) -> Array:
        shifts = []
        for use in range(group, self.num_steps, self.plan.sampling.steps_per_round):
            shift = np.zeros(self.num_steps)
            shift[use:] = self.column[: self.num_steps - use]
            shifts.append(shift)
        if rate == 1:  # all uses are certain: one joint shift
            shifts = [np.sum(shifts, axis=0)]
        return np.asarray(sum(mixed(rate, (shift @ rows - shift @ shift / 2) / sizes**2) for shift in shifts))
