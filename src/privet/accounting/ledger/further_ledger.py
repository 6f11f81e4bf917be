"""Ledgers that are charged in another way: for releases besides the plan, or together with other ranks."""

from __future__ import annotations

from dataclasses import dataclass

from privet.accounting.ledger.ledger import Ledger
from privet.accounting.ledger.rows import Purpose, VoidReason
from privet.mechanism.events import DpEvent
from privet.mechanism.executed import ExecutedRound


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardingLedger:
    """Compares and voids rounds on a ledger. A subclass writes ``reserve``.

    Attributes:
        ledger: The ledger.
    """

    ledger: Ledger

    def check(self, done: ExecutedRound) -> None:
        """Use up one reserved round, and refuse its release unless what was done is what was reserved."""
        self.ledger.check(done)

    def check_within(self, done: ExecutedRound) -> None:
        """Refuse a further release of a round that is charged already unless it is what was charged."""
        self.ledger.check_within(done)

    def void(self, reason: VoidReason) -> None:
        """Record that a round was begun and given up."""
        self.ledger.void(reason)


@dataclass(frozen=True, kw_only=True, eq=False)
class FurtherLedger(ForwardingLedger):
    """The ledger of a run, on which a release besides the plan is charged in the place of a round of it.

    Attributes:
        purpose: The purpose of the releases.
        coordinates: How many numbers of each get noise.
    """

    purpose: Purpose
    coordinates: int

    def reserve(self, event: DpEvent, count: int = 1) -> None:
        for _ in range(count):
            self.ledger.reserve_further(event, purpose=self.purpose, coordinates=self.coordinates)
