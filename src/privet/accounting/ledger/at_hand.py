"""The rounds that a process has reserved and not begun, and how what was done is compared with them."""

from __future__ import annotations

from collections import deque

from dp_accounting.dp_event import NonPrivateDpEvent

from privet.accounting.ledger.rows import MAX_ROW_BYTES, CodedEvent, Reserved
from privet.errors import ArgumentError, PrivetError
from privet.mechanism.events import DpEvent
from privet.mechanism.executed import ExecutedRound

# The JSON around one event in a closing row: {"count":<up to 16 digits>,"event":...} and a comma.
_RETURNED_PART_BYTES = 48


class AtHand:
    """The rounds this process has reserved and not begun, oldest first."""

    def __init__(self) -> None:
        self._runs: deque[tuple[CodedEvent, int]] = deque()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, coded: CodedEvent, rounds: int) -> None:
        """Put rounds behind those that are there."""
        self._total += rounds
        if self._runs and self._runs[-1][0].key == coded.key:
            rounds += self._runs.pop()[1]
        self._runs.append((coded, rounds))

    def take(self) -> CodedEvent | None:
        """Remove and return the oldest round; None if there is none."""
        if not self._runs:
            return None
        coded, rounds = self._runs[0]
        self._total -= 1
        if rounds == 1:
            self._runs.popleft()
        else:
            self._runs[0] = (coded, rounds - 1)
        return coded

    def take_all(self) -> tuple[Reserved, ...]:
        """Remove everything; return it merged, as much of it as one row can hold."""
        totals: dict[bytes, int] = {}
        events: dict[bytes, CodedEvent] = {}
        for coded, rounds in self._runs:
            totals[coded.key] = totals.get(coded.key, 0) + rounds
            events[coded.key] = coded
        self._runs.clear()
        self._total = 0
        parts, room = [], MAX_ROW_BYTES // 2
        for key, rounds in totals.items():
            room -= len(key) + _RETURNED_PART_BYTES
            # What finds no room in the closing row stays charged, which is never wrong.
            if room >= 0:
                parts.append(Reserved(coded=events[key], count=rounds))
        return tuple(parts)


def event_of(done: ExecutedRound) -> DpEvent:
    """Return the event of what was done; refuse anything else, an event above all."""
    found: object = done
    if not isinstance(found, ExecutedRound):
        raise ArgumentError(
            f"A ledger compares what was done, and got a {type(found).__name__}. What was planned is no evidence: take "
            "what executed_step or executed_gaussian return, which is made of the noise that was drawn."
        )
    return found.event


def coded_or_non_private(event: DpEvent) -> CodedEvent:
    """Return facts in the form of a row; those that no event describes count as not private."""
    try:
        return CodedEvent.of(event)
    except PrivetError:
        return CodedEvent.of(NonPrivateDpEvent())
