"""Data sets of persons: who says that one item is one person, and where that is held against the plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from privet.errors import DataError
from privet.mechanism.owners import Owners
from privet.plan import Plan
from privet.training.batching import MapDataset, check_dataset
from privet.training.persons import HasOwners
from privet.vocabulary import OneItem, Unit, one_item_of


@dataclass(frozen=True, kw_only=True, eq=False)
class OneItemPerPerson:
    """A data set of which each item holds everything about one person, as its owner declares.

    Guarantee:
        With ``persons`` it is checked that nobody has two items. Without, the declaration is taken as it is. In both
        cases it stands among the assumptions of the guarantee.

    Attributes:
        dataset: The data set itself.
        persons: Who each item is about, in the order of the items; any names. None declares that all differ.
    """

    dataset: MapDataset
    persons: Iterable[object] | None = None

    def __post_init__(self) -> None:
        """Refuse names that are missing or there twice, without a word about whose they are."""
        check_dataset(self.dataset)
        if self.persons is None:
            return
        names = list(self.persons)
        if len(names) != len(self.dataset):
            raise DataError("persons must hold one name per item of the data set, and their numbers differ.")
        check_persons(names)

    @property
    def one_item(self) -> OneItem:
        """One person each."""
        return OneItem(
            units=(Unit.PERSON,),
            explanation="That is what OneItemPerPerson declares: pass the data set itself to protect its records.",
        )

    def __len__(self) -> int:
        """Return the number of persons."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """Return everything about one person."""
        return self.dataset[index]


def declared_rows(dataset: MapDataset, *, one_per_person: bool) -> MapDataset:
    """Return the data set, as one of persons if its owner declares so."""
    return OneItemPerPerson(dataset=dataset) if one_per_person else dataset


def check_persons(names: list[object]) -> None:
    """Refuse a list in which a name is missing, stands twice, or may be another name of somebody.

    Raises:
        DataError: without a word about whose name it is.
    """
    if Owners.of(names).num_persons != len(names):
        raise DataError(
            "Somebody has several items, and noise is made for one. Join each person's items into one, keep one of "
            "them, or protect records: Unit.RECORD."
        )


def check_unit(dataset: MapDataset, plan: Plan) -> MapDataset:
    """Return the data set that a plan may train on; refuse one whose items are something else.

    Raises:
        DataError: saying what the items are, and the way out.
    """
    if plan.sampling.contribution is not None:
        # Ask the class, as for the unit of an item: a wrapper that forwards attributes knows nothing of its own items.
        if not all(hasattr(type(dataset), name) for name in ("owners", "records")):
            raise DataError(
                f"{type(plan.sampling).__name__} bounds the records of each person, and the data set does not say "
                "whose they are. Pass pv.PersonRecords(dataset=..., persons=...) or (..., person_of=...)."
            )
        return dataset
    one_item_of(dataset).check(plan.unit)
    if isinstance(dataset, HasOwners):
        return dataset.records
    return dataset.dataset if isinstance(dataset, OneItemPerPerson) else dataset
