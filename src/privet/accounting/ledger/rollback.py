"""Ledgers that were rolled back: noticed when they are read, and the way out, which charges what a newer copy had."""

from __future__ import annotations

from pathlib import Path

from privet.accounting.ledger import Ledger
from privet.accounting.ledger.heads import KeptHead, UserHeads
from privet.accounting.ledger.rows import MAX_ROW_BYTES, CodedEvent
from privet.accounting.ledger.store import PosixFileSystem, reading
from privet.accounting.ledger.tally import Tally
from privet.accounting.ledger.views import LedgerView


def read_newest(path: Path, *, where: Path) -> LedgerView:
    """Check every row of a ledger file, and refuse one that is older than this machine knows it to be.

    Raises:
        LedgerCorrupt: the chain is broken, or the ledger was rolled back.
    """
    view = Ledger.read(path)
    kept = UserHeads().find(view.run)
    if kept is not None and not view.contains(kept.head):
        # a run that goes on has grown since: it writes its rows first, and keeps their head afterwards
        view = Ledger.read(path)
        kept.check(view, where)
    return view


def accept_roll_back(path: Path) -> int:
    """Charge the rounds that a newer copy of a ledger had charged, as far as this machine knows; return their number.

    Guarantee:
        Afterwards the ledger charges at least what both copies released together. Both have all rows up to the newest
        one that is kept and that this ledger has too; whatever the newer copy charged after that row is added, and
        nothing of it can be given back.
    Edge cases: a ledger that was not rolled back is left as it is; if the process ends on the way, the ledger stays
    refused, and accepting again charges again.

    Raises:
        LedgerError: the ledger cannot be read, is in use, or its disk refuses.
    """
    heads, view = UserHeads(), Ledger.read(path)
    kept = heads.find(view.run)
    if kept is None or view.contains(kept.head):
        return 0
    with Ledger.open(path, plan_hash=view.plan_hash) as ledger:
        missing = _missing(path, view, kept)
        for coded, rounds in missing:
            ledger.reserve(coded.event, rounds)
        heads.begin_anew(kept, ledger)
        ledger.abandon()  # a clean end would give back rounds that were not run here
    return sum(rounds for _, rounds in missing)


def _missing(path: Path, view: LedgerView, kept: KeptHead) -> list[tuple[CodedEvent, int]]:
    """Return the charges of the newer copy after the last row that is known to be in both."""
    common, tally = kept.last_common(view), Tally()
    if common is not None:
        with reading(path, files=PosixFileSystem()) as reader:
            for _ in range(common.seq + 1):
                tally.take(reader.readline(MAX_ROW_BYTES + 1))
    shared = {CodedEvent.of(event).key: rounds for event, rounds in tally.charged}
    found = [(coded, rounds - shared.get(coded.key, 0)) for coded, rounds in kept.charged]
    return [(coded, rounds) for coded, rounds in found if rounds > 0]
