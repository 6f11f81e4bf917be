"""Progress of a run: its events, and their receivers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from privet.accounting.guarantee import Guarantee

if TYPE_CHECKING:
    from privet.runs.measures import CurvePoint


@dataclass(frozen=True, kw_only=True)
class StepUpdate:
    """State of a run after a step. All values are public, except the loss.

    Attributes:
        step: Steps taken, by this process and those before it.
        num_steps: Steps planned.
        epsilon: Upper bound on the epsilon spent by these steps.
        epsilon_spent: Exact epsilon spent by these steps; None at the many steps for which it is not computed.
        epsilon_planned: Epsilon spent at the end.
        expected_batch_size: Examples per step according to the plan; the true number is private.
        loss: Mean loss of the step's examples: not covered by the guarantee, and None unless it may be shown.
        may_show_time: Whether durations may be logged. The duration of a step depends on its number of examples,
            which is private.
        learning_rate: Learning rate of the step, in the first parameter group.
        masked_share: Share of the coordinates that the mask left out.
    """

    step: int
    num_steps: int
    epsilon: float
    epsilon_spent: float | None
    epsilon_planned: float
    expected_batch_size: float
    loss: float | None
    may_show_time: bool
    learning_rate: float
    masked_share: float


class Progress(Protocol):
    """Receives the events of a run. Implementations decide how often to show them."""

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        """The run starts, or resumes, after this many steps."""
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
        pass

    def stepped(self, update: StepUpdate) -> None:
        pass

    def evaluated(self, point: CurvePoint) -> None:
        pass

    def ended(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Several:
    """Passes every event to several receivers, in order."""

    receivers: tuple[Progress, ...]

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        for receiver in self.receivers:
            receiver.started(promised, step=step, num_steps=num_steps)

    def stepped(self, update: StepUpdate) -> None:
        for receiver in self.receivers:
            receiver.stepped(update)

    def evaluated(self, point: CurvePoint) -> None:
        for receiver in self.receivers:
            receiver.evaluated(point)

    def ended(self) -> None:
        for receiver in self.receivers:
            receiver.ended()


def epsilon_after(table: Sequence[tuple[int, float]], num_rounds: int) -> float:
    """Return an upper bound on the epsilon after this many rounds: that of the table's next row."""
    place = bisect_left(table, num_rounds, key=lambda row: row[0])
    return table[min(place, len(table) - 1)][1]
