"""The newest row of every run, kept outside its folder, so that a folder that was rolled back is noticed.

A run folder restored from a backup and finished again gives a second model on one charge. Nothing in the folder can
tell: ledger and checkpoints are older together. So the newest row of each run is kept in the user's state folder, under
the run's own name. A copy of a folder that goes on on another machine cannot be seen from here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from privet.accounting.ledger.rows import CodedEvent, parse_strict
from privet.accounting.ledger.tally import LedgerHead
from privet.accounting.ledger.views import LedgerFacts
from privet.durable import STATE_VARIABLE, state_folder, write_durably
from privet.errors import LedgerCorrupt, LedgerError, PrivetError

_LOG = logging.getLogger("privet")
_FORMAT = 1
_MAX_BYTES = 1 << 20
_MAX_MARKS = 64


class Heads(Protocol):
    """Where the newest row of a run is kept."""

    def check(self, ledger: LedgerFacts, where: Path | str) -> None:
        """Refuse a ledger that lacks the row which is kept of its run."""
        ...

    def keep(self, ledger: LedgerFacts) -> None:
        """Keep the ledger's newest row."""
        ...


@dataclass(frozen=True, kw_only=True)
class KeptHead:
    """The record that is kept of a run.

    Attributes:
        marks: Rows of the ledger in order, the newest last: all of a short ledger, a few dozen of a long one.
        charged: The charges of the ledger when the last of them was its newest row.
    """

    marks: tuple[LedgerHead, ...]
    charged: tuple[tuple[CodedEvent, int], ...]

    @property
    def head(self) -> LedgerHead:
        """The newest row."""
        return self.marks[-1]

    @property
    def charged_rounds(self) -> int:
        """How many rounds were charged in all."""
        return sum(rounds for _, rounds in self.charged)

    def last_common(self, ledger: LedgerFacts) -> LedgerHead | None:
        """Return the newest kept row that a ledger has as well; None if it has none of them."""
        return next((mark for mark in reversed(self.marks) if ledger.contains(mark)), None)

    def check(self, ledger: LedgerFacts, where: Path | str) -> None:
        """Refuse a ledger of the same run that lacks the newest row, and say the way out."""
        if ledger.contains(self.head):
            return
        raise LedgerCorrupt(
            f"The ledger of {where} ends at row {ledger.head.seq}, with {ledger.charged_rounds} rounds charged. This "
            f"machine knows of row {self.head.seq} of the same run, with {self.charged_rounds}: the ledger was rolled "
            "back to an older copy, or is a copy of a run that went on elsewhere. What is trained from it would be "
            "released twice and paid for once. Restore the newest folder; if it is lost, this charges what it had "
            "charged, so that the run can go on: privet account accept RUN"
        )

    def to_json(self) -> bytes:
        """Return the contents of its file."""
        values = {
            "format": _FORMAT,
            "rows": [{"seq": mark.seq, "sha256": mark.sha256} for mark in self.marks],
            "charged": [{"event": coded.form, "count": rounds} for coded, rounds in self.charged],
        }
        return json.dumps(values).encode()

    @classmethod
    def read(cls, data: bytes) -> KeptHead:
        """Read it back.

        Raises:
            ValueError, KeyError, TypeError: it is damaged.
            LedgerError: a newer version wrote it.
        """
        found: Any = parse_strict(data)
        if found["format"] != _FORMAT:
            raise LedgerError(f"It is of format {found['format']!r} and was made by a newer privet. Update privet.")
        marks = tuple(LedgerHead(seq=row["seq"], sha256=row["sha256"]) for row in found["rows"])
        charged = tuple((CodedEvent.read(part["event"]), int(part["count"])) for part in found["charged"])
        if not marks:
            raise ValueError("it names no row")
        return cls(marks=marks, charged=charged)


class UserHeads:
    """Heads in the user's state folder, one small file for each run. One object serves one ledger.

    Guarantee: a ledger that passes ``check`` holds the newest row that was kept of its run on this machine, so it
    charges at least what was charged when that row was written.
    Edge cases: a state folder that cannot be written or read is told on the log once, and the run goes on: a roll-back
    is then not noticed. A damaged file is refused.
    """

    def __init__(self) -> None:
        """Know nothing of the run yet."""
        self._marks: tuple[LedgerHead, ...] = ()
        self._is_silent = False

    @staticmethod
    def path_of(run: str) -> Path:
        """Return where the head of a run is kept."""
        return state_folder() / "heads" / f"{run}.json"

    def find(self, run: str) -> KeptHead | None:
        """Return the record of a run; None where there is none, or it cannot be read."""
        path = self.path_of(run)
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._tell(error)
            return None
        try:
            return KeptHead.read(data)
        except LedgerError as error:
            raise LedgerError(f"{path} keeps the newest row of this run. {error}") from None
        except (PrivetError, ValueError, KeyError, TypeError):
            raise LedgerError(
                f"{path} keeps the newest row of this run, and is damaged. If you are certain that the folder is the "
                "newest one, delete the file; a new one is made."
            ) from None

    def check(self, ledger: LedgerFacts, where: Path | str) -> None:
        """Refuse a ledger that lacks the row which is kept of its run.

        Raises:
            LedgerCorrupt: the ledger is older than the kept head, or went on from an older copy.
        """
        kept = self.find(ledger.run)
        if kept is not None:
            kept.check(ledger, where)
            self._marks = kept.marks

    def keep(self, ledger: LedgerFacts) -> None:
        """Keep the ledger's newest row, durably; rows that are kept already stay."""
        if self._marks and self._marks[-1] == ledger.head:
            return
        self._marks = _thinned((*self._marks, ledger.head))
        charged = tuple((CodedEvent.of(event), rounds) for event, rounds in ledger.charged)
        path = self.path_of(ledger.run)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(path, KeptHead(marks=self._marks, charged=charged).to_json())
        except OSError as error:
            self._tell(error)

    def begin_anew(self, lost: KeptHead, ledger: LedgerFacts) -> None:
        """Keep a ledger in place of a newer copy that is lost, once it charges what that copy had charged."""
        self._marks = tuple(mark for mark in lost.marks if ledger.contains(mark))
        self.keep(ledger)

    def _tell(self, error: OSError) -> None:
        if not self._is_silent:
            self._is_silent = True
            _LOG.warning(
                "The newest row of the ledger could not be kept (%s), so that going back to an older copy of the run "
                "folder will not be noticed. Name a folder that can be written: %s.", error.strerror, STATE_VARIABLE,
            )  # fmt: skip


def _thinned(marks: Sequence[LedgerHead]) -> tuple[LedgerHead, ...]:
    """Return the newest row and, of the others, evenly many over the whole ledger: every one while it is short."""
    newest, every = marks[-1], 1
    while newest.seq // every > _MAX_MARKS - 2:
        every *= 2
    return (*(mark for mark in marks[:-1] if mark.seq % every == 0), newest)
