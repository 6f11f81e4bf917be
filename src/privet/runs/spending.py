"""Epsilon spent after each step of a run: exact where it was computed, an upper bound everywhere."""

from __future__ import annotations

import math
from functools import cached_property

from privet.accounting.calibration import num_affordable_rows, spent_epsilon
from privet.mechanism.events import compose
from privet.plan import Plan
from privet.runs.progress import epsilon_after
from privet.vocabulary import Release

# Rounds of a run whose epsilon is computed, and measurements for which it is computed besides.
_NUM_ROUNDS, _MOST_MEASUREMENTS = 12, 64


class Spending:
    """The privacy that a plan's first rounds spend.

    Accounting takes a few hundredths of a second, which a step may not even take. So the exact figure is computed for
    a few rounds, about evenly apart in epsilon, and for those in which the model is measured; for others it is not
    known, and nothing is made up in between.

    Guarantee:
        ``exactly`` is what the plan's accountant says of the rounds charged by then, the figure that ``privet account``
        gives for a run that ends there; it never decreases from step to step. ``at_most`` is a bound too: that of the
        next round in a short table.
    Edge cases: where only the last model is released, ``exactly`` is known at the end alone, because a run that ends
    earlier has no such guarantee; a plan without noise spends infinity from its first round.
    """

    def __init__(self, plan: Plan, *, measured_every: int | None = None) -> None:
        """Prepare for a run of this plan; ``measured_every`` is the number of steps between measurements, or None."""
        self._plan, self._measured_every = plan, measured_every
        self._table = plan.epsilon_by_round
        self._promised = plan.guarantee().epsilon
        self._newest = (0, 0.0)

    def at_most(self, num_steps: int) -> float:
        """Return a bound on what these first steps spend, without accounting."""
        return epsilon_after(self._table, self._rounds(num_steps))

    def exactly(self, num_steps: int) -> float | None:
        """Return what these first steps spend; None where it was not computed. Ask for later and later steps."""
        rounds = self._rounds(num_steps)
        if rounds >= self._plan.num_rounds and self._is_earned(num_steps):
            return self._promised
        if rounds not in self._known:
            return None
        done, spent = self._newest
        if rounds > done:
            event = compose(((self._plan.round_event, rounds),))
            here = spent_epsilon(event, delta=self._plan.delta, adjacency=self._plan.adjacency)
            # Rounding in the accountant is worth less than a log in which epsilon goes down.
            self._newest = (rounds, max(spent, min(here, self._promised)))
        return self._newest[1]

    def _is_earned(self, num_steps: int) -> bool:
        """Whether the promise holds after these steps, once the last round is charged."""
        return self._plan.release is Release.EVERY_ITERATE or num_steps >= self._plan.num_steps

    def _rounds(self, num_steps: int) -> int:
        return -(-num_steps // self._plan.sampling.steps_per_round)

    @cached_property
    def _known(self) -> frozenset[int]:
        plan, total = self._plan, self._plan.num_rounds
        if plan.release is not Release.EVERY_ITERATE:
            return frozenset()
        if math.isinf(self._promised):
            return frozenset(range(1, total))
        rows = num_affordable_rows(plan.round_event, total, adjacency=plan.adjacency, num_rows=_NUM_ROUNDS)
        found = {max(1, round(total * (row / rows) ** 2)) for row in range(rows)}
        every = self._measured_every
        if every is not None and rows == _NUM_ROUNDS and plan.num_steps // every <= _MOST_MEASUREMENTS:
            found |= {self._rounds(step) for step in range(every, plan.num_steps, every)}
        return frozenset(found)
