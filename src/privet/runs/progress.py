"""Progress of a run: its events, and the receivers of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from privet.accounting.guarantee import Guarantee
from privet.runs.measures import CurvePoint


@dataclass(frozen=True, kw_only=True)
class StepUpdate:
    """Where a run stands after a step. All public, except the loss.

    Attributes:
        step: Steps taken, by this process and those before it.
        num_steps: Steps planned.
        epsilon: Spent by now, at most.
        epsilon_spent: Spent by now, exactly; None at the many steps for which it is not computed.
        epsilon_planned: Spent at the end.
        expected_batch_size: Examples per step, by the plan; the true number is private.
        loss: Mean loss of the step's examples: not covered by the guarantee, and None unless it may be shown.
        may_tell_time: Whether times may be written down. They depend on how many examples each step really had, so on
            private data they may not.
        learning_rate: Of the step; that of the first group where there are several.
        masked_share: Share of the coordinates that the step left out.
    """

    step: int
    num_steps: int
    epsilon: float
    epsilon_spent: float | None
    epsilon_planned: float
    expected_batch_size: float
    loss: float | None
    may_tell_time: bool
    learning_rate: float
    masked_share: float


class Progress(Protocol):
    """Receives the events of a run. Implementations decide how often to show them."""

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        """The run begins, or resumes, after this many steps."""
        ...

    def stepped(self, update: StepUpdate) -> None:
        """A step was taken."""
        ...

    def evaluated(self, point: CurvePoint) -> None:
        """The model was measured on public test data."""
        ...

    def ended(self) -> None:
        """No more steps follow."""
        ...


@dataclass(frozen=True, kw_only=True)
class Silent:
    """Shows nothing."""

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        """See ``Progress``."""

    def stepped(self, update: StepUpdate) -> None:
        """See ``Progress``."""

    def evaluated(self, point: CurvePoint) -> None:
        """See ``Progress``."""

    def ended(self) -> None:
        """See ``Progress``."""


@dataclass(frozen=True, kw_only=True)
class Several:
    """Tells several receivers, in order."""

    receivers: tuple[Progress, ...]

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        """See ``Progress``."""
        for receiver in self.receivers:
            receiver.started(promised, step=step, num_steps=num_steps)

    def stepped(self, update: StepUpdate) -> None:
        """See ``Progress``."""
        for receiver in self.receivers:
            receiver.stepped(update)

    def evaluated(self, point: CurvePoint) -> None:
        """See ``Progress``."""
        for receiver in self.receivers:
            receiver.evaluated(point)

    def ended(self) -> None:
        """See ``Progress``."""
        for receiver in self.receivers:
            receiver.ended()


def epsilon_after(table: Sequence[tuple[int, float]], num_rounds: int) -> float:
    """Return the epsilon to show after this many rounds: that of the next row, which is never too small."""
    place = bisect_left(table, num_rounds, key=lambda row: row[0])
    return table[min(place, len(table) - 1)][1]
