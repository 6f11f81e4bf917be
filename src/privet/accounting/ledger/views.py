"""The figures and words that a ledger gives to its readers: the same for one that is held and one that is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privet.accounting.ledger.tally import LedgerHead, Tally
from privet.mechanism.events import DpEvent, compose


class LedgerFacts:
    """The facts that follow from the rows of a ledger, for one that is held and one that is read."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    @property
    def run(self) -> str:
        """The word that names the run, from its first row."""
        return self._tally.run

    @property
    def plan_hash(self) -> str:
        """The hash of the plan that every row names."""
        return self._tally.plan_hash.decode()

    @property
    def is_seeded(self) -> bool:
        """Whether the first row says that the user chose the seed of the random streams: the run is not private."""
        return self._tally.is_seeded

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What rows say that the guarantee rests on besides the plan: the first one, and those of public changes."""
        return self._tally.assumptions

    @property
    def why_not_private(self) -> tuple[str, ...]:
        """Why nothing is promised for what was charged, besides a seed."""
        return self._tally.why_not_private

    @property
    def tried(self) -> tuple[str, ...]:
        """Why experiments, and no proof, say that examples were kept apart; empty where it was proven."""
        return self._tally.tried

    @property
    def is_complete(self) -> bool:
        """Whether a row says that the plan was carried out to its end, and nothing was charged after it."""
        return self._tally.is_complete

    @property
    def charged(self) -> list[tuple[DpEvent, int]]:
        """Every charged event with its number of rounds, in the order in which each was first charged."""
        return self._tally.charged

    @property
    def charged_rounds(self) -> int:
        """How many rounds are charged in all."""
        return self._tally.charged_rounds

    @property
    def event(self) -> DpEvent:
        """Everything charged, as one event for an accountant."""
        return compose(self._tally.charged)

    @property
    def head(self) -> LedgerHead:
        """The newest complete row, for a checkpoint to carry."""
        return self._tally.head

    def contains(self, head: LedgerHead) -> bool:
        """Say whether the row named by ``head`` is in this ledger; if not, it was rolled back or is another run's."""
        return self._tally.contains(head)


class LedgerView(LedgerFacts):
    """A ledger as it was when it was read. Looking at it changes nothing, neither here nor on disk.

    Attributes:
        has_unfinished_row: Whether a row lies at the end that was never acknowledged.
    """

    def __init__(self, *, tally: Tally, has_unfinished_row: bool) -> None:
        super().__init__(tally)
        self.has_unfinished_row = has_unfinished_row

    @property
    def plan(self) -> Mapping[str, Any]:
        """The public plan of the first row."""
        return self._tally.plan

    @property
    def num_rows(self) -> int:
        """How many complete rows there are."""
        return self._tally.num_rows

    @property
    def num_voids(self) -> int:
        """How many charged rounds were given up."""
        return self._tally.num_voids

    @property
    def num_mismatches(self) -> int:
        """How many rounds ran as something else than was reserved."""
        return self._tally.num_mismatches

    def verify(self, segments: Sequence[tuple[DpEvent, int]]) -> None:
        """Raise ``LedgerMismatch`` unless everything charged is in the plan, at most as often as planned."""
        self._tally.verify(segments)
