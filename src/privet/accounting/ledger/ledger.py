"""The ledger: the witness of the privacy that a training run spends, written before it is spent.

A round is the part of a run that one charged event covers: one step with Poisson sampling, a whole epoch with shuffled
batches. Its life::

    reserve(event, n) -> row written -> row durable -> n times:
        [ sample -> gradients -> clip -> sum -> noise -> check(facts) -> release ]  -> checkpoint(head) -> close

Whatever fails wherever, the rows on disk charge at least what was released. Eight rules make that so:

1. No data is read for a round before the row that charges it is durable.
2. Rows are only ever added. A round that goes wrong is followed by a ``void`` or ``mismatch`` row and stays charged.
   Only a clean exit gives back rounds, and only those that its own process reserved and never began.
3. The ledger is not part of a checkpoint. Going back to an older checkpoint does not give back what was spent since.
4. A checkpoint carries the ledger's head, and the user's state folder keeps the newest one. A ledger that does not
   contain such a head was rolled back, or is another's.
5. A resumed process starts with no rounds at hand, draws fresh randomness, and pays for repeated rounds again.
6. One process at a time holds the ledger; a second one is refused, and so are a forked copy of the first and a process
   that a launcher started together with others. Ranks that carry out one run together have one ledger file, which
   rank 0 holds; the others keep copies in memory.
7. Every row names the plan. Rows of another plan, or opening with another plan, are refused.
8. Order is the sequence number. No clock is consulted.

Repeating rounds with the *same* noise would not be cheaper but ruinous: any small difference between the two runs
(another summation order, another world size) would be released with the noise cancelled.

The chain shows damage and any edit of a part. It cannot stop someone who may write the file from writing another whole
one; the head kept in checkpoints and reports gives that away.

The other files: ``notes`` (rows that charge nothing), ``rows`` (their bytes), ``tally`` (their sum), ``views`` (for
readers), ``store`` (the disk).
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from privet import checks
from privet.accounting.ledger.changes import Unexplained
from privet.accounting.ledger.notes import LedgerNotes
from privet.accounting.ledger.processes import check_company, new_process_word, new_run_word
from privet.accounting.ledger.rows import (
    MAX_COUNT,
    Closed,
    CodedEvent,
    Completed,
    Created,
    Entry,
    Further,
    Mismatched,
    Purpose,
    Reserved,
    RowFields,
    RowMaker,
    Voided,
    VoidReason,
    checked_plan,
    checked_plan_hash,
)
from privet.accounting.ledger.store import FileSystem, LedgerFile, PosixFileSystem, reading
from privet.accounting.ledger.tally import AtHand, Tally, take_rows
from privet.accounting.ledger.views import LedgerView
from privet.errors import ArgumentError, LedgerBusy, LedgerError, LedgerMismatch, LedgerWriteError, LoopError
from privet.mechanism.events import DpEvent, matches
from privet.mechanism.executed import ExecutedRound, no_evidence

if TYPE_CHECKING:
    from privet.accounting.ledger.heads import Heads


class Ledger(LedgerNotes):
    """The charges of a run, each made before it is spent. Made by ``in_memory``, ``create`` or ``open``.

    Guarantee: for everything that passed ``check``, a durable row was there before ``reserve`` returned. Nothing this
    object or a crash does lowers what the rows charge below what passed ``check``.
    Edge cases: a ledger without rounds composes to the empty event; after any failed ``reserve`` nothing is at hand
    from it; a forked child can neither reserve nor check nor close on behalf of its parent.
    """

    def __init__(
        self,
        *,
        tally: Tally,
        process: bytes,
        file: LedgerFile | None,
        heads: Heads | None = None,
        num_processes: int = 1,
    ) -> None:
        super().__init__(tally)
        self._num_processes = num_processes
        self._heads = heads
        self._process = process
        self._file = file
        self._owner = os.getpid()
        self._guard = threading.RLock()
        self._at_hand = AtHand()
        self._latest: RowMaker[Reserved] | None = None  # writes the row that was reserved last once more
        self._matched: tuple[CodedEvent | None, ExecutedRound | None] = None, None  # compared last, and equal
        self._closed = False
        self._gives_back = True
        self._unrecorded_mismatch = False

    @classmethod
    def in_memory(cls, plan_hash: str, *, is_seeded: bool = False, num_processes: int = 1) -> Ledger:
        """Return a ledger that writes no file: the same checks, without surviving the process."""
        process, tally = new_process_word(num_processes), Tally()
        tally.take(_first_line(tally, Created(plan={}, is_seeded=is_seeded, run=new_run_word()), plan_hash, process))
        return cls(tally=tally, process=process, file=None, num_processes=num_processes)

    @classmethod
    def copy_in_memory(cls, rows: bytes, *, num_processes: int) -> Ledger:
        """Return a ledger in memory that goes on from the rows of another process, for a rank of the same run.

        Guarantee: rounds that the rows charge are charged here too, and are not at hand. This copy is no witness: what
        it charges is durable only if the process that holds the file charges the same.
        """
        process, tally = new_process_word(num_processes), Tally()
        take_rows(tally, io.BytesIO(rows), "the copy of the ledger of rank 0")
        return cls(tally=tally, process=process, file=None, num_processes=num_processes)

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        plan: Mapping[str, Any],
        plan_hash: str,
        is_seeded: bool = False,
        assumptions: tuple[str, ...] = (),
        files: FileSystem | None = None,
        heads: Heads | None = None,
        num_processes: int = 1,
    ) -> Ledger:
        """Start a new ledger file and hold it.

        Args:
            path: Where. The name must be free and its folder must exist.
            plan: The public plan as plain JSON data.
            plan_hash: The hash that names the plan, written into every row.
            is_seeded: Whether the user chose the seed of the random streams: whoever reads the ledger is told so.
            assumptions: Assumptions of the guarantee besides those of the plan.
            files: The file system to use; the real one if None.
            heads: Where the newest row is kept, so that a roll-back is noticed; None keeps it nowhere.
            num_processes: How many ranks carry out the run; this one holds their ledger.

        Guarantee: on return the first row, the name and the folders above it are durable.
        Edge cases: an existing name raises ``LedgerError``; a full or read-only disk raises ``LedgerWriteError`` and
        leaves the name free.
        """
        process = new_process_word(num_processes)
        tally = Tally()
        entry = Created(plan=checked_plan(plan), is_seeded=is_seeded, assumptions=assumptions, run=new_run_word())
        line = _first_line(tally, entry, plan_hash, process)
        file = LedgerFile.create(Path(path), line, process=process.decode(), files=files or PosixFileSystem())
        tally.take(line)
        return cls(tally=tally, process=process, file=file, heads=heads, num_processes=num_processes)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        plan_hash: str,
        former_hashes: Sequence[str] = (),
        files: FileSystem | None = None,
        heads: Heads | None = None,
        num_processes: int = 1,
    ) -> Ledger:
        """Resume a ledger file and hold it, after checking every row.

        Args:
            path: Where it is.
            plan_hash: The hash that names the plan.
            former_hashes: The names that the same plan had in earlier formats; a ledger keeps the one it began with.
            files: The file system to use; the real one if None.
            heads: Where the newest row is kept; a ledger that lacks it is refused. None keeps it nowhere.
            num_processes: How many ranks carry out the run from now on; this one holds their ledger.

        Guarantee: rounds that an earlier process reserved stay charged and are not at hand: they may have been
        released.
        Edge cases: an unfinished last row was never acknowledged and is cut off; a broken chain raises
        ``LedgerCorrupt``, another plan ``LedgerMismatch``, a ledger in use ``LedgerBusy``, a missing file, a link or
        anything but a regular file ``LedgerError``.
        """
        asked, process = checked_plan_hash(plan_hash), new_process_word(num_processes)
        known = (asked, *(checked_plan_hash(former) for former in former_hashes))
        file = LedgerFile.open(Path(path), files=files or PosixFileSystem())
        try:
            tally = Tally()
            with file.reading() as reader:
                has_unfinished_row = take_rows(tally, reader, path)
            if tally.plan_hash.decode() not in known:
                raise LedgerMismatch(
                    f"The ledger {path} belongs to the plan {tally.plan_hash.decode()}, asked was {asked}. Restore "
                    "that plan to resume, or start a new run in its own folder and add up both guarantees."
                )
            if heads is not None:
                heads.check(LedgerView(tally=tally, has_unfinished_row=has_unfinished_row), path)
            if has_unfinished_row:
                file.drop_unfinished(tally.num_bytes)
        except BaseException:
            file.release()
            raise
        opened = cls(tally=tally, process=process, file=file, heads=heads, num_processes=num_processes)
        if heads is not None:
            heads.keep(opened)
        return opened

    @staticmethod
    def read(path: Path | str, *, files: FileSystem | None = None) -> LedgerView:
        """Check every row of a ledger file and return its view, without a lock and without changing it."""
        tally = Tally()
        with reading(Path(path), files=files or PosixFileSystem()) as reader:
            has_unfinished_row = take_rows(tally, reader, path)
        return LedgerView(tally=tally, has_unfinished_row=has_unfinished_row)

    def reserve(self, event: DpEvent, count: int = 1) -> None:
        """Charge ``count`` rounds of ``event`` before any of them runs.

        Guarantee: the row is durable before this returns.
        Edge cases: counts below 1 or above 2**53, and events that cannot be written, raise ``ArgumentError`` or
        ``AccountingError``; a full, failing or read-only disk raises ``LedgerWriteError``. After any error nothing of
        this call is at hand.
        """
        row = self._latest
        if row is None or row.entry.coded.event is not event or row.entry.count != count:
            rounds = checks.count("count", count)
            if rounds > MAX_COUNT:
                raise ArgumentError(f"count must be at most 2**53, got {rounds}.")
            row = RowMaker(Reserved(coded=CodedEvent.of(event), count=rounds))
        self._charge(row, row.entry.coded, row.entry.count)
        self._latest = row

    def reserve_further(self, event: DpEvent, *, purpose: Purpose, coordinates: int) -> None:
        """Charge one release besides the rounds of the plan, before it is made.

        Args:
            event: Its event.
            purpose: Its purpose; the row states it, and every guarantee from this ledger includes the release.
            coordinates: How many numbers get noise.

        Guarantee: the row is durable before this returns. The release is never given back: the process that charged
            one gives back nothing when it closes.
        """
        release = Further(
            purpose=purpose, coded=CodedEvent.of(event), coordinates=checks.count("coordinates", coordinates)
        )
        self._gives_back = False
        self._charge(RowMaker(release), release.coded, 1)

    def _charge(self, row: RowMaker[Entry], coded: CodedEvent, count: int) -> None:
        check_company(self._num_processes)
        self._check_usable()
        with self._guard:
            self._append(row)
            self._at_hand.add(coded, count)

    def check(self, done: ExecutedRound) -> None:
        """Use up one reserved round, and refuse its release unless what was done is what was reserved.

        Args:
            done: Told by the place that bounded contributions and added noise; a planned event is not taken.

        Guarantee: returns only if a durable row charges this very event. Otherwise the facts are charged on top of the
        reservation, so the ledger is right even if the caller releases against this refusal.
        Edge cases: facts that no event describes (NaN, unknown types) are charged as not private; without a reserved
        round this raises ``LoopError``.
        """
        if not isinstance(done, ExecutedRound):
            raise no_evidence(done)
        self._check_usable()
        with self._guard:
            reserved = self._at_hand.take("check")
            # neither changes, so neither does the answer
            known = self._matched[0] is reserved and self._matched[1] is done
            if known or matches(reserved.event, done.event):
                self._matched = reserved, done
                return
            facts = CodedEvent.of_facts(done.event)
            self._refuse(Mismatched(facts=facts, reserved=reserved), f"Reserved was {reserved.key.decode()}", facts)

    def check_within(self, done: ExecutedRound) -> None:
        """Refuse a further release of a round that is charged already unless it is what was charged.

        For a later step of a round that covers several, and for a round that an earlier process charged in advance.

        Guarantee: returns only if a durable row charges this very event; otherwise the facts are charged anew.
        """
        if not isinstance(done, ExecutedRound):
            raise no_evidence(done)
        self._check_usable()
        with self._guard:
            if any(matches(charged, done.event) for charged, _ in self._tally.charged):
                return
            facts = CodedEvent.of_facts(done.event)
            self._refuse(Reserved(coded=facts, count=1), "No round of this kind was charged", facts)

    def _refuse(self, entry: Entry, found: str, facts: CodedEvent) -> NoReturn:
        """Charge what ran, and raise."""
        message = (
            f"{found}, what ran is {facts.key.decode()}. The result must not be released. Change the plan instead of "
            "its pieces, and start a new run."
        )
        try:
            self._append(RowMaker(entry))
        except LedgerWriteError as error:
            self._unrecorded_mismatch = True
            raise LedgerMismatch(f"{message} This could not be recorded either: {error}") from error
        raise LedgerMismatch(message)

    def void(self, reason: VoidReason) -> None:
        """Record that the oldest reserved round was begun and given up. It stays charged and cannot be run again."""
        if not isinstance(reason, VoidReason):
            raise ArgumentError(f"reason must be a VoidReason, got {reason!r}: a ledger takes no free text.")
        self._check_usable()
        with self._guard:
            self._append(RowMaker(Voided(coded=self._at_hand.take("void"), reason=reason)))

    def note_unexplained_change(self, *, step: int) -> None:
        """Record that something that was no private step changed the weights: from here on nothing is promised.

        Edge cases: if the disk refuses, this object refuses all further rounds, and ``LedgerMismatch`` is raised.
        """
        self._check_usable()
        with self._guard:
            try:
                self._append(RowMaker(Unexplained(step=step)))
            except LedgerWriteError as error:
                self._unrecorded_mismatch = True
                raise LedgerMismatch(f"The weights were changed by no private step, unrecorded: {error}") from error

    def complete(self) -> None:
        """Record, durably, that the plan was carried out to its end; a bound on the end of a run holds only then.

        Guarantee: the row stands for the rows before it alone: whatever is charged or given up later takes it back.
        It has no effect where weights were changed by anything but steps, for then no such bound is proven.
        Edge cases: saying it twice writes one row; with rounds at hand that were not run it raises ``LoopError``.
        """
        self._check_usable()
        with self._guard:
            if self._at_hand.total:
                raise LoopError("The plan is not at its end: rounds are reserved that were not run.")
            if not self._tally.is_complete:
                self._append(RowMaker(Completed()))

    def close(self) -> None:
        """End cleanly: give back the rounds that were reserved and never begun, and free the ledger.

        Guarantee: rounds are given back only after this object can no longer check one. If the closing row cannot be
        written, nothing is given back. A round that was begun and not finished must be voided first.
        Edge cases: closing twice does nothing; closing in a forked child leaves the parent's ledger alone.
        """
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._owner:
            if self._file is not None:
                self._file.abandon()
            return
        with self._guard:
            try:
                if not self._unrecorded_mismatch:
                    returned = self._at_hand.take_all() if self._gives_back else ()
                    self._append(RowMaker(Closed(returned=returned)))
            finally:
                self._release()

    def abandon(self) -> None:
        """Free the ledger and write nothing, for a session that could not begin; reserved rounds stay charged."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._owner:
            with self._guard:
                self._release()
        elif self._file is not None:
            self._file.abandon()

    @property
    def available(self) -> int:
        """How many rounds this process has reserved and not begun. Zero after ``open`` and after ``close``."""
        return 0 if self._closed else self._at_hand.total

    @property
    def why_not_private(self) -> tuple[str, ...]:
        """Why nothing is promised for these charges, besides a seed; also a row that the disk refused."""
        untold = "something ran or changed its weights that was not planned, and the disk refused to record it"
        return super().why_not_private + ((untold,) if self._unrecorded_mismatch else ())

    def verify(self, segments: Sequence[tuple[DpEvent, int]]) -> None:
        """Raise ``LedgerMismatch`` unless everything charged is in the plan, at most as often as planned. Pure."""
        if self._unrecorded_mismatch:
            raise LedgerMismatch("A round ran as something else than was planned, and the disk refused to record it.")
        self._tally.verify(segments)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or os.getpid() != self._owner:
            self.close()
        elif not self._closed:
            # Not a clean exit: nobody knows how far the round at hand came, so nothing is given back.
            self._closed = True
            self._release()

    def _check_usable(self) -> None:
        if os.getpid() != self._owner:
            raise LedgerBusy("A forked process may not use its parent's ledger. Reserve and check in the parent only.")
        if self._closed:
            raise LedgerError("The ledger is closed. Open it again to go on; what was charged stays charged.")
        if self._unrecorded_mismatch:
            raise LedgerMismatch("A round ran as something else than was planned. This ledger takes no more rounds.")

    def _write(self, entries: Iterable[Entry]) -> None:
        self._check_usable()
        with self._guard:
            for entry in entries:
                self._append(RowMaker(entry))

    def _append(self, row: RowMaker[Entry]) -> None:
        """Write a row, durably, and count it."""
        tally = self._tally
        line = row.line(RowFields(tally.plan_hash, tally.prev, self._process, tally.num_rows))
        if self._file is not None:
            self._file.append(line, at=tally.num_bytes)
        tally.take(line)
        if self._heads is not None:
            self._heads.keep(self)

    def _release(self) -> None:
        if self._file is not None:
            self._file.release()


def _first_line(tally: Tally, entry: Created, plan_hash: str, process: bytes) -> bytes:
    return RowMaker(entry).line(RowFields(checked_plan_hash(plan_hash).encode(), tally.prev, process, tally.num_rows))
