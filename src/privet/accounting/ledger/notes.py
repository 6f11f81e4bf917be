"""The rows of a ledger that charge nothing: public changes of the weights, and evidence besides proof."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from privet.accounting.ledger.changes import Changed
from privet.accounting.ledger.evidence import Settled, Tried, Vouched
from privet.accounting.ledger.rows import Entry
from privet.accounting.ledger.views import LedgerFacts


class LedgerNotes(LedgerFacts, ABC):
    """The part of a ledger that takes notes; :class:`privet.accounting.ledger.ledger.Ledger` has the charges."""

    @abstractmethod
    def _write(self, entries: Iterable[Entry]) -> None:
        """Write one row for each entry, durably, each before the next one is asked for."""

    def note_public_change(self, reason: str, *, step: int) -> None:
        """Record that the user is about to change the weights without private data; durable before this returns.

        Args:
            reason: The user's own words; they stand in every guarantee computed from this ledger.
            step: Steps in the model now.
        """
        self._write([Changed(reason=reason, step=step)])

    def note_evidence(self, *, tried: Sequence[str], settled: Sequence[str], vouched: Sequence[str]) -> None:
        """Record the evidence for isolation of examples besides proof, each reason once; durable before this returns.

        Args:
            tried: Properties that experiments tested, in words about the program.
            settled: Those that are proven by now, in the same words.
            vouched: Properties that the user answers for.
        """
        self._write(self._news(tried, settled, vouched))

    def _news(self, tried: Sequence[str], settled: Sequence[str], vouched: Sequence[str]) -> Iterator[Entry]:
        for reason in settled:
            if reason in self._tally.tried:
                yield Settled(reason=reason)
        for reason in tried:
            if reason not in self._tally.tried:
                yield Tried(reason=reason)
        for assumption in vouched:
            if assumption not in self._tally.vouched:
                yield Vouched(assumption=assumption)
