"""The ledger of a run of several ranks: rank 0 charges, and no rank reads data before the charge is durable."""

from __future__ import annotations

from dataclasses import dataclass

from privet.accounting.ledger.further_ledger import ForwardingLedger
from privet.mechanism.events import DpEvent, encode_event
from privet.training.distributed.ranks import Point, Ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedLedger(ForwardingLedger):
    """The ledger of one rank: on rank 0 the run's, on the others a copy in memory that follows it.

    Guarantee:
        ``reserve`` returns on a rank only after the row of rank 0 is durable, and only if all ranks charge the same
        rounds of the same event. If rank 0 cannot write, every rank raises its error, and none has rounds at hand.
        What ran is compared with the charge on every rank.
    """

    ranks: Ranks

    def reserve(self, event: DpEvent, count: int = 1) -> None:
        """Charge rounds; see the guarantee of the class."""
        facts = {"charged event": encode_event(event), "charged rounds": count}
        facts["rounds charged before"] = self.ledger.charged_rounds
        if self.ranks.is_first:
            self.ledger.reserve(event, count)
        self.ranks.meet(Point.CHARGING, facts)
        if not self.ranks.is_first:
            self.ledger.reserve(event, count)
