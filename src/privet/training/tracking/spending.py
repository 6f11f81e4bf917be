"""Epsilon spent after each step of a run: exact where it was computed, an upper bound everywhere."""

from __future__ import annotations

import math
from functools import cached_property

from privet.accounting.calibration import num_affordable_rows, spent_epsilon
from privet.mechanism.events import compose
from privet.plan import Plan
from privet.training.tracking.progress import StepUpdate, epsilon_after
from privet.vocabulary import Release

# Number of rounds whose epsilon is computed, and the most measurements whose epsilon is computed in addition.
_NUM_ROUNDS, _MOST_MEASUREMENTS = 12, 64


class Spending:
    """The privacy that a plan's first rounds spend.

    Accounting takes a few hundredths of a second, which can be longer than a step. So the exact figure is computed for
    a few rounds, about evenly apart in epsilon, and for the rounds in which the model is measured. Other rounds have no
    exact figure, and none is interpolated.

    Guarantee:
        ``exactly`` is the epsilon of the charged rounds by the plan's accountant, the figure that ``privet account``
        gives for a run that ends there; it never decreases from step to step. ``at_most`` is a bound too: that of the
        next round in a short table.
    Edge cases: where only the last model is released, ``exactly`` is known at the end only, because a run that ends
    earlier has no such guarantee; a plan without noise spends infinity from its first round.
    """

    def __init__(self, plan: Plan, *, measured_every: int | None = None) -> None:
        """Prepare for a run of this plan; ``measured_every`` is the number of steps between measurements, or None."""
        self._plan, self._measured_every = plan, measured_every
        self._table = plan.epsilon_by_round
        self._promised = plan.guarantee().epsilon
        self._newest = (0, 0.0)

    def at_most(self, num_steps: int) -> float:
        """Return a bound on the epsilon of the first steps, without accounting."""
        return epsilon_after(self._table, self._rounds(num_steps))

    def exactly(self, num_steps: int) -> float | None:
        """Return the epsilon of the first steps; None where it is not computed. Call it with increasing numbers."""
        rounds = self._rounds(num_steps)
        if rounds >= self._plan.num_rounds and self._promise_holds(num_steps):
            return self._promised
        if rounds not in self._accounted_rounds:
            return None
        done, spent = self._newest
        if rounds > done:
            event = compose(((self._plan.round_event, rounds),))
            here = spent_epsilon(event, delta=self._plan.delta, adjacency=self._plan.adjacency)
            # The accountant's rounding must not let epsilon decrease in the log.
            self._newest = (rounds, max(spent, min(here, self._promised)))
        return self._newest[1]

    def update(
        self,
        step: int,
        *,
        learning_rate: float,
        masked_share: float,
        loss: float | None = None,
        may_show_time: bool = False,
    ) -> StepUpdate:
        """Return the state of a run after so many steps, for its receivers; loss and times only where they may show."""
        return StepUpdate(
            step=step,
            num_steps=self._plan.num_steps,
            epsilon=self.at_most(step),
            epsilon_spent=self.exactly(step),
            epsilon_planned=self._promised,
            expected_batch_size=self._plan.sampling.expected_batch_size,
            loss=loss,
            may_show_time=may_show_time,
            learning_rate=learning_rate,
            masked_share=masked_share,
        )

    def _promise_holds(self, num_steps: int) -> bool:
        """Whether the promise holds after these steps, once the last round is charged."""
        return self._plan.release is Release.EVERY_ITERATE or num_steps >= self._plan.num_steps

    def _rounds(self, num_steps: int) -> int:
        return -(-num_steps // self._plan.sampling.steps_per_round)

    @cached_property
    def _accounted_rounds(self) -> frozenset[int]:
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
