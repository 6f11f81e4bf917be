"""The sum of a sequence of ledger rows. The writer and every reader use this one piece of code.

A tally takes whole lines in order. It refuses the first one that does not continue the chain, and it never looks at a
file: the same code checks a ledger on disk, one in memory and one on a simulated disk.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, assert_never

from privet import checks
from privet.accounting.ledger.changes import Changed, Unexplained
from privet.accounting.ledger.evidence import Settled, Tried, Vouched
from privet.accounting.ledger.rows import (
    MAX_ROW_BYTES,
    NO_ROW_SHA256,
    Closed,
    CodedEvent,
    Completed,
    Created,
    Further,
    Mismatched,
    Reserved,
    Row,
    RowFields,
    RowMaker,
    Voided,
    read_entry,
    split_row,
)
from privet.errors import ArgumentError, LedgerCorrupt, LedgerMismatch, LoopError
from privet.mechanism.events import DpEvent, same_event

_DIGEST_BYTES = 32
_MAX_REMEMBERED_BODIES = 4096
# The JSON around one event in a closing row: {"count":<up to 16 digits>,"event":...} and a comma.
_RETURNED_PART_BYTES = 48


@dataclass(frozen=True, kw_only=True)
class LedgerHead:
    """The name of one moment in the life of a ledger: a row number and the SHA-256 of that row's line.

    A checkpoint carries the head it was written under. A ledger that does not contain it was rolled back or belongs to
    another run.
    """

    seq: int
    sha256: str

    def __post_init__(self) -> None:
        checks.count("seq", self.seq, minimum=0)
        is_text = isinstance(self.sha256, str)
        if not is_text or len(self.sha256) != 64 or not set(self.sha256) <= set("0123456789abcdef"):
            raise ArgumentError(f"sha256 must be 64 lower-case hex digits, got {self.sha256!r}.")


class Tally:
    """The running state of a chain of rows: the head, the charges, and the rounds that may still be given back."""

    def __init__(self) -> None:
        self.plan_hash = b""
        self.plan: Mapping[str, Any] = {}
        self.is_seeded = False
        self.run = ""
        self.tried: tuple[str, ...] = ()
        self.vouched: tuple[str, ...] = ()
        self._assumed: tuple[str, ...] = ()
        self.is_complete = False
        self.num_rows = 0
        self.num_bytes = 0
        self.num_voids = 0
        self.num_mismatches = 0
        self.public_changes: list[Changed] = []
        self.unexplained: list[Unexplained] = []
        self.prev = NO_ROW_SHA256.encode()  # the hash of the newest row, in hex digits
        self._digests = bytearray()
        self._events: dict[bytes, DpEvent] = {}
        self._charged: dict[bytes, int] = {}
        self.further: list[Further] = []
        self._writer = b""
        self._writer_closed = False
        self._earlier_writers: set[bytes] = set()
        self._returnable: dict[bytes, int] = {}
        self._remembered: dict[bytes, RowMaker[Reserved]] = {}

    @property
    def head(self) -> LedgerHead:
        """The newest row."""
        return LedgerHead(seq=self.num_rows - 1, sha256=self.prev.decode())

    @property
    def charged(self) -> list[tuple[DpEvent, int]]:
        """Every charged event with its number of rounds, in the order in which each was first charged."""
        return [(self._events[key], rounds) for key, rounds in self._charged.items() if rounds > 0]

    @property
    def planned(self) -> list[tuple[DpEvent, int]]:
        """The charges without the releases besides the plan."""
        besides = Counter(release.coded.key for release in self.further)
        left = [(self._events[key], rounds - besides[key]) for key, rounds in self._charged.items()]
        return [(event, rounds) for event, rounds in left if rounds > 0]

    @property
    def charged_rounds(self) -> int:
        """How many rounds of the plan are charged; releases besides the plan are no rounds of it."""
        return sum(self._charged.values()) - len(self.further)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the first row, and the user's public changes, each once."""
        changes = dict.fromkeys(change.assumption for change in self.public_changes)
        besides = dict.fromkeys(release.purpose.assumption for release in self.further)
        return (*self._assumed, *changes, *besides, *self.vouched)

    @property
    def why_not_private(self) -> tuple[str, ...]:
        """Why no promise is made for the charges of these rows, besides a seed."""
        return tuple(change.why_not_private for change in self.unexplained[:1])

    def contains(self, head: LedgerHead) -> bool:
        """Say whether the row named by ``head`` is one of these rows."""
        if head.seq >= self.num_rows:
            return False
        start = head.seq * _DIGEST_BYTES
        return bytes(self._digests[start : start + _DIGEST_BYTES]).hex() == head.sha256

    def take(self, line: bytes) -> None:
        """Check that a line continues the chain, and add up its charge; raise ``LedgerCorrupt`` if it does not."""
        known = self._remembered.get(line[: line.rfind(b',"crc":"')])
        expected = RowFields(self.plan_hash, self.prev, self._writer, self.num_rows)
        # A million rows hold a handful of different bodies. A row whose body is known is checked by writing it again.
        if known is not None and not self._writer_closed and known.line(expected) == line:
            self._charge(known.entry.coded, known.entry.count, is_returnable=True)
        else:
            self._take_with_care(line)
        digest = hashlib.sha256(line)
        self._digests += digest.digest()
        self.prev = digest.hexdigest().encode()
        self.num_rows += 1
        # Last, because an interrupt before this line leaves a length that no longer fits the file: the next append is
        # then refused instead of breaking the chain.
        self.num_bytes += len(line)

    def _take_with_care(self, line: bytes) -> None:
        parts = split_row(line)
        if parts is None:
            raise LedgerCorrupt(
                f"Row {self.num_rows} of the ledger is damaged: it is not a row, or its checksum is wrong."
            )
        kind, body, fields = parts
        self._check_chain(fields)
        self._check_writer(fields.process)
        entry = read_entry(kind, body, seq=self.num_rows)
        self._add(entry, fields, line)
        if isinstance(entry, Reserved):
            if len(self._remembered) >= _MAX_REMEMBERED_BODIES:
                self._remembered.clear()
            row = RowMaker(entry)
            self._remembered[row.start] = row

    def take_all(self, reader: BinaryIO) -> bool:
        """Take every row of a file; return whether an unfinished row lies at its end.

        Guarantee: only bytes that were never acknowledged are left out. A row is acknowledged when its newline is
        durable, so an unfinished row has none: it is the beginning of a row, perhaps followed by zeros where the
        length of the file reached the disk before its contents did. A whole row followed by anything else is damage.
        Edge cases: a file without one complete row is refused, because a ledger appears under its name only after its
        first row is durable.
        """
        tail = b""
        while line := reader.readline(MAX_ROW_BYTES + 1):
            if line[-1:] != b"\n" and len(line) <= MAX_ROW_BYTES:
                tail = line
                break
            self.take(line)
        if self.num_rows == 0:
            raise LedgerCorrupt("The ledger holds no complete row: it was emptied or damaged.")
        written = tail.rstrip(b"\0")
        complete = written[: written.rfind(b"}") + 1]
        if complete != written and split_row(complete + b"\n") is not None:
            raise LedgerCorrupt(f"Row {self.num_rows} of the ledger is damaged: its last byte was changed.")
        return bool(tail)

    def verify(self, segments: Sequence[tuple[DpEvent, int]]) -> None:
        """Raise ``LedgerMismatch`` unless everything charged is in the plan, at most as often as planned. Pure."""
        if self.num_mismatches:
            raise LedgerMismatch(
                f"{self.num_mismatches} rounds ran as something else than was planned. "
                "The guarantee of the plan does not hold; the one computed from the ledger does."
            )
        if self.unexplained:
            raise LedgerMismatch(f"Nothing is promised for this run: {self.unexplained[0].why_not_private}.")
        planned = _Allowance(segments)
        for event, rounds in self.planned:
            planned.spend(event, rounds)

    def _check_chain(self, fields: RowFields) -> None:
        seq = self.num_rows
        if fields.seq != seq:
            raise LedgerCorrupt(f"Row {seq} of the ledger is numbered {fields.seq}: rows were removed or reordered.")
        if fields.prev != self.prev:
            raise LedgerCorrupt(f"Row {seq} of the ledger does not follow from the row before it: the chain is broken.")
        if seq and fields.plan_hash != self.plan_hash:
            raise LedgerCorrupt(f"Row {seq} of the ledger was written for another plan than the first row.")

    def _check_writer(self, process: bytes) -> None:
        if process == self._writer:
            if self._writer_closed:
                raise LedgerCorrupt(f"Row {self.num_rows} of the ledger follows the closing row of its own process.")
            return
        if process in self._earlier_writers:
            raise LedgerCorrupt(f"Row {self.num_rows} of the ledger is by a process that another had already replaced.")

    def _add(self, entry: Row, fields: RowFields, line: bytes) -> None:
        if isinstance(entry, Created) != (self.num_rows == 0):
            raise LedgerCorrupt(
                f"Row {self.num_rows} of the ledger: the creating row must be the first and only the first."
            )
        if fields.process != self._writer:
            self._earlier_writers.add(self._writer)
            self._writer = fields.process
            self._writer_closed = False
            # Rounds of a writer that vanished may have been released, so nobody can give them back any more.
            self._returnable.clear()
        self._add_up(entry, fields, line)

    def _add_up(self, entry: Row, fields: RowFields, line: bytes) -> None:
        match entry:
            case Reserved():
                self._charge(entry.coded, entry.count, is_returnable=True)
            case Further():
                # A bound on the last model of a run is about its steps, and stands beside later releases.
                was_complete = self.is_complete
                self._charge(entry.coded, 1, is_returnable=True)
                self.further.append(entry)
                self.is_complete = was_complete
            case Created():
                # runs of format 1 have no name of their own, but a first row like no other
                self.run = entry.run or hashlib.sha256(line).hexdigest()[:32]
                self.plan, self.plan_hash, self.is_seeded = entry.plan, fields.plan_hash, entry.is_seeded
                self._assumed = entry.assumptions
            case Voided():
                self._use(entry.coded, 1)
                self.num_voids += 1
                self.is_complete = False
            case Mismatched():
                self._use(entry.reserved, 1)
                self._charge(entry.facts, 1, is_returnable=False)
                self.num_mismatches += 1
            case Changed():
                self.public_changes.append(entry)
            case Unexplained():
                self.unexplained.append(entry)
                self.is_complete = False
            case Tried():
                self.tried = tuple(dict.fromkeys((*self.tried, entry.reason)))
            case Settled():
                self.tried = tuple(reason for reason in self.tried if reason != entry.reason)
            case Vouched():
                self.vouched = tuple(dict.fromkeys((*self.vouched, entry.assumption)))
            case Completed():
                # a bound on the end of a run is about steps alone, so a change among them takes it away
                self.is_complete = not self.public_changes and not self.unexplained
            case Closed():
                for part in entry.returned:
                    self._use(part.coded, part.count)
                    self._charged[part.coded.key] -= part.count
                    self._keep_further(part.coded)
                self._writer_closed = True
            case _:
                assert_never(entry)

    def _charge(self, coded: CodedEvent, rounds: int, *, is_returnable: bool) -> None:
        self.is_complete = False  # a later charge belongs to another end of the run
        key = coded.key
        self._events.setdefault(key, coded.event)
        self._charged[key] = self._charged.get(key, 0) + rounds
        if is_returnable:
            self._returnable[key] = self._returnable.get(key, 0) + rounds

    def _keep_further(self, coded: CodedEvent) -> None:
        """Refuse a closing row that gives back a release besides the plan, which nobody ever does."""
        if self._charged[coded.key] < sum(release.coded.key == coded.key for release in self.further):
            raise LedgerCorrupt(f"Row {self.num_rows} of the ledger gives back a release besides the plan.")

    def _use(self, coded: CodedEvent, rounds: int) -> None:
        left = self._returnable.get(coded.key, 0) - rounds
        if left < 0:
            raise LedgerCorrupt(f"Row {self.num_rows} of the ledger uses or gives back more rounds than were reserved.")
        self._returnable[coded.key] = left


class _Allowance:
    """How many rounds of each event a plan still allows."""

    def __init__(self, segments: Sequence[tuple[DpEvent, int]]) -> None:
        self._left: list[tuple[DpEvent, int]] = []
        for event, rounds in segments:
            self._grow(event, checks.count("count", rounds, minimum=0))

    def _grow(self, event: DpEvent, rounds: int) -> None:
        place = self._find(event)
        if place is None:
            self._left.append((event, rounds))
        else:
            self._left[place] = (event, self._left[place][1] + rounds)

    def _find(self, event: DpEvent) -> int | None:
        return next((i for i, (planned, _) in enumerate(self._left) if same_event(planned, event)), None)

    def spend(self, event: DpEvent, rounds: int) -> None:
        place = self._find(event)
        if place is None:
            raise LedgerMismatch(f"{rounds} rounds of {event} were charged, and the plan has no such round.")
        planned, left = self._left[place]
        if rounds > left:
            raise LedgerMismatch(
                f"{rounds} rounds of {event} were charged, and the plan allows {left}. "
                "Rounds repeated after an interruption count again: compute the guarantee from the ledger."
            )
        self._left[place] = (planned, left - rounds)


class AtHand:
    """The rounds this process has reserved and not begun, oldest first."""

    def __init__(self) -> None:
        self._runs: deque[tuple[CodedEvent, int]] = deque()
        self.total = 0

    def add(self, coded: CodedEvent, rounds: int) -> None:
        """Put rounds behind those that are there."""
        self.total += rounds
        if self._runs and self._runs[-1][0].key == coded.key:
            rounds += self._runs.pop()[1]
        self._runs.append((coded, rounds))

    def take(self, verb: str) -> CodedEvent:
        """Remove and return the oldest round; ``verb`` is the word for errors."""
        if not self._runs:
            raise LoopError(
                f"Cannot {verb} a round: none is reserved. Call reserve before reading data; rounds reserved by an "
                "earlier process are spent and cannot be used by this one."
            )
        coded, rounds = self._runs[0]
        self.total -= 1
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
        self.total = 0
        parts, room = [], MAX_ROW_BYTES // 2
        for key, rounds in totals.items():
            room -= len(key) + _RETURNED_PART_BYTES
            # Rounds without room in the closing row stay charged, which is never wrong.
            if room >= 0:
                parts.append(Reserved(coded=events[key], count=rounds))
        return tuple(parts)


def take_rows(tally: Tally, reader: Any, path: Path | str) -> bool:
    """Take all rows of a file, and name it if one is corrupt; see ``Tally.take_all``."""
    try:
        return tally.take_all(reader)
    except LedgerCorrupt as error:
        raise LedgerCorrupt(
            f"{path}: {error} Restore the ledger from a copy; without it nobody knows what was spent."
        ) from None
