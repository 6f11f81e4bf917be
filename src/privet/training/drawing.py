"""Batches that are drawn before their step begins, so that their examples can be read meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from privet.training.reading import Indices


class Charges(Protocol):
    """The rounds of a ledger."""

    @property
    def charged_rounds(self) -> int:
        """How many rounds are charged, durably."""
        ...

    @property
    def available(self) -> int:
        """How many of them this process has not begun."""
        ...


class DrawsAhead:
    """The batches of a run in the order of the plan, some of them drawn before their step.

    Guarantee:
        A batch is drawn, and can be read, only after its round was charged. Batches are drawn from the run's stream in
        the order of the rounds, each once, so the run has the same batches as without this. A round that was charged
        and not begun when the run ends is given back: nothing computed from its examples has left.
    """

    def __init__(self, draw: Callable[[], Iterable[Indices]], ledger: Charges) -> None:
        """Draw nothing yet.

        Args:
            draw: Draws the batches of the next round from the run's secret stream.
            ledger: The run's; rounds count from its first row on.
        """
        self._draw_round, self._ledger = draw, ledger
        self._drawn: deque[tuple[int, Indices]] = deque()  # round and batch, not handed out yet
        self._latest = -1

    def round(self) -> Iterator[Indices]:
        """Yield the batches of the round that begins; it is charged."""
        number = self._ledger.charged_rounds - self._ledger.available
        while self._drawn and self._drawn[0][0] < number:  # of a round that was broken off
            self._drawn.popleft()
        if not self._drawn:
            self._draw(number)
        while self._drawn and self._drawn[0][0] == number:
            yield self._drawn.popleft()[1]

    def upcoming(self) -> Iterator[Indices]:
        """Yield the batches after the present one, as far as their rounds are charged."""
        place = 0
        while True:
            while place == len(self._drawn):
                if self._latest + 1 >= self._ledger.charged_rounds:
                    return
                self._draw(self._latest + 1)
            yield self._drawn[place][1]
            place += 1

    def _draw(self, number: int) -> None:
        self._drawn.extend((number, batch) for batch in self._draw_round())
        self._latest = number
