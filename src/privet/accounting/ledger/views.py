"""The figures and words that a ledger gives to its readers: the same for one that is held and one that is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NoReturn, TypeVar

from privet.accounting.ledger.tally import LedgerHead, Tally
from privet.html_tables import facts_table
from privet.mechanism.events import DpEvent, compose

T = TypeVar("T")


class _Fact(Generic[T]):
    """A read-only attribute of a ledger that is computed from the tally of its rows."""

    def __init__(self, read: Callable[[Tally], T]) -> None:
        self._read = read

    def __get__(self, ledger: LedgerFacts | None, kind: type) -> T:
        return self if ledger is None else self._read(ledger._tally)  # type: ignore[return-value]

    def __set__(self, ledger: LedgerFacts, value: object) -> NoReturn:
        raise AttributeError("The facts of a ledger cannot be set: they follow from its rows.")


class LedgerFacts:
    """The facts that follow from the rows of a ledger, for one that is held and one that is read."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    run = _Fact(lambda tally: tally.run)
    """The word that names the run, from its first row."""
    plan_hash = _Fact(lambda tally: tally.plan_hash.decode())
    """The hash of the plan that every row names."""
    is_seeded = _Fact(lambda tally: tally.is_seeded)
    """Whether the first row says that the user chose the seed of the random streams: the run is not private."""
    assumptions = _Fact(lambda tally: tally.assumptions)
    """The assumptions in the rows, besides those of the plan: of the first row, and of public changes."""
    tried = _Fact(lambda tally: tally.tried)
    """Why experiments, and no proof, say that examples were kept apart; empty where it was proven."""
    is_complete = _Fact(lambda tally: tally.is_complete)
    """Whether a row says that the plan was carried out to its end, and nothing was charged after it."""
    charged = _Fact(lambda tally: tally.charged)
    """Every charged event with its number of rounds, in the order in which each was first charged."""
    planned = _Fact(lambda tally: tally.planned)
    """The charges without the releases besides the plan."""
    further = _Fact(lambda tally: tuple(tally.further))
    """The releases besides the plan, such as private evaluations, in their order."""
    besides = _Fact(lambda tally: tuple((release.coded.event, 1) for release in tally.further))
    """The events of these releases."""
    charged_rounds = _Fact(lambda tally: tally.charged_rounds)
    """How many rounds of the plan are charged."""
    event = _Fact(lambda tally: compose(tally.charged))
    """Everything charged, as one event for an accountant."""
    head = _Fact(lambda tally: tally.head)
    """The newest complete row, for a checkpoint to carry."""

    @property
    def why_not_private(self) -> tuple[str, ...]:
        """Why nothing is promised for these charges, besides a seed."""
        return self._tally.why_not_private

    def _repr_html_(self) -> str:
        """Return the ledger's facts for a notebook; all of them are public."""
        facts = {
            "rounds charged": self.charged_rounds,
            "carried out to the plan's end": "yes" if self.is_complete else "not recorded",
            "seeded, therefore not private": "yes" if self.is_seeded else "no",
            "plan": self.plan_hash,
            "newest row": self.head.sha256,
        }
        notes = (*self.why_not_private, *self.assumptions, *self.tried)
        return facts_table(f"Ledger of the run {self.run}", facts, notes=notes)

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

    plan = _Fact(lambda tally: tally.plan)
    """The public plan of the first row."""
    num_rows = _Fact(lambda tally: tally.num_rows)
    """How many complete rows there are."""
    num_voids = _Fact(lambda tally: tally.num_voids)
    """How many charged rounds were given up."""
    num_mismatches = _Fact(lambda tally: tally.num_mismatches)
    """How many rounds ran as something else than was reserved."""

    def verify(self, segments: Sequence[tuple[DpEvent, int]]) -> None:
        """Raise ``LedgerMismatch`` unless everything charged is in the plan, at most as often as planned."""
        self._tally.verify(segments)
