"""A ledger that charges releases besides the rounds of its plan."""

from __future__ import annotations

from dataclasses import dataclass

from privet.accounting.ledger.ledger import Ledger
from privet.accounting.ledger.rows import Purpose, VoidReason
from privet.mechanism.events import DpEvent
from privet.mechanism.executed import ExecutedRound


@dataclass(frozen=True, kw_only=True, eq=False)
class FurtherLedger:
    """The ledger of a run, on which a release besides the plan is charged in the place of a round of it.

    Attributes:
        ledger: The ledger.
        purpose: The purpose of the releases.
        coordinates: How many numbers of each get noise.
    """

    ledger: Ledger
    purpose: Purpose
    coordinates: int

    def reserve(self, event: DpEvent, count: int = 1) -> None:
        for _ in range(count):
            self.ledger.reserve_further(event, purpose=self.purpose, coordinates=self.coordinates)

    def check(self, done: ExecutedRound) -> None:
        self.ledger.check(done)

    def check_within(self, done: ExecutedRound) -> None:
        self.ledger.check_within(done)

    def void(self, reason: VoidReason) -> None:
        self.ledger.void(reason)
