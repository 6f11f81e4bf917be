"""What a ledger tells the accountant: everything on which a guarantee depends besides the plan, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from privet.mechanism.events import DpEvent


class Charges(Protocol):
    """A ledger, open or read from a file, as :meth:`privet.plan.Plan.account` sees it.

    Guarantee: whoever states a figure takes it from these answers and the plan, so that two statements about one
    ledger cannot differ.
    """

    @property
    def charged(self) -> Sequence[tuple[DpEvent, int]]:
        """Every charged event with its number of rounds."""
        ...

    @property
    def charged_rounds(self) -> int:
        """How many rounds are charged in all."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether a row says that the plan was carried out to its end."""
        ...

    @property
    def is_seeded(self) -> bool:
        """Whether the user chose the seed of the random streams."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee rests on besides what follows from the plan."""
        ...

    @property
    def why_not_private(self) -> tuple[str, ...]:
        """Why nothing is promised, besides a seed; empty where something is."""
        ...

    @property
    def tried(self) -> tuple[str, ...]:
        """Why experiments, and no proof, say that examples were kept apart; empty where it was proven."""
        ...


@dataclass(frozen=True, kw_only=True)
class HypotheticalCharges:
    """Charges that no ledger holds, for the cost of what might be run.

    Attributes:
        charged: Events with their numbers of rounds.
        is_complete: Whether the plan is supposed to be carried out to its end.
        is_seeded: Whether the user is supposed to choose the seed.
        assumptions: What the guarantee would rest on besides what follows from the plan.
        why_not_private: Why nothing would be promised.
        tried: What would be tried by experiment instead of proven.
    """

    charged: Sequence[tuple[DpEvent, int]]
    is_complete: bool = False
    is_seeded: bool = False
    assumptions: tuple[str, ...] = ()
    why_not_private: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()

    @property
    def charged_rounds(self) -> int:
        return sum(rounds for _, rounds in self.charged)
