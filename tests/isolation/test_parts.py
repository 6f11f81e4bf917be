"""A batch that is taken apart and made again is the same batch, whatever its containers are."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import Tensor

from privet.errors import DataError
from privet.isolation.parts import check_leaves, flattened, leaves_of, tensors_of, with_tensors
from privet.isolation.prove import prove

Point = namedtuple("Point", ["x", "y"])


class Mirrored(dict[str, Any]):
    """Keeps every item as an attribute, too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.__dict__[key] = value


class Counting(UserDict[str, Any]):
    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.num_tokens = 17


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Tensor
    y: Tensor


@dataclass
class Derived:
    x: Tensor
    twice: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.x


def sent(value: Any) -> Any:
    """Return what another process would get."""
    return ForkingPickler.loads(ForkingPickler.dumps(value))


def tensor(value: float) -> Tensor:
    return torch.full((3,), value)


def mirrored() -> Mirrored:
    found = Mirrored()
    found["x"] = tensor(1)
    return found


BATCHES: dict[str, Any] = {
    "tensor": tensor(0),
    "list": [tensor(0), tensor(1)],
    "tuple": (tensor(0), (tensor(1), "text", 3, None)),
    "dict": {"b": tensor(0), "a": [tensor(1)]},
    "OrderedDict": OrderedDict(b=tensor(0), a=tensor(1)),
    "defaultdict": defaultdict(list, a=tensor(1)),
    "deque": deque([tensor(0), tensor(1)]),
    "namedtuple": Point(tensor(0), [tensor(1)]),
    "UserDict": UserDict(x=tensor(0), y=[tensor(1)]),
    "subclass of UserDict": Counting(x=tensor(0)),
    "subclass of dict": mirrored(),
    "frozen dataclass": Frozen(tensor(0), tensor(1)),
    "dataclass": Derived(tensor(0)),
    "nested": [Frozen(tensor(0), tensor(1)), {"p": Point(tensor(2), UserDict(x=tensor(3)))}],
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=list(BATCHES))
def test_taken_apart_and_made_again_it_is_the_same_in_the_same_classes(batch: Any) -> None:
    leaves, structure = flattened(batch)
    again = structure.filled(leaves)
    assert type(again) is type(batch)
    assert [id(leaf) for leaf in leaves_of(again)] == [id(leaf) for leaf in leaves_of(batch)] == list(map(id, leaves))
    if isinstance(batch, dict | UserDict):
        assert list(again) == list(batch)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=list(BATCHES))
def test_a_change_leaves_the_given_batch_alone(batch: Any) -> None:
    before = [value.clone() for value in tensors_of(batch)]
    held = list(map(id, tensors_of(batch)))
    changed = with_tensors(batch, lambda value: value + 10)
    assert list(map(id, tensors_of(batch))) == held
    for old, now, new in zip(before, tensors_of(batch), tensors_of(changed), strict=True):
        assert torch.equal(old, now)
        assert torch.equal(old + 10, new)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=list(BATCHES))
def test_structures_compare_by_their_classes_and_keys_and_travel(batch: Any) -> None:
    structure, other = flattened(batch)[1], flattened(with_tensors(batch, torch.zeros_like))[1]
    assert structure == other
    assert hash(structure) == hash(other)
    assert sent(structure) == structure
    assert structure != flattened([batch])[1]


def test_structures_of_other_keys_or_classes_differ() -> None:
    one = flattened(UserDict(x=tensor(0)))[1]
    assert one != flattened(UserDict(y=tensor(0)))[1]
    assert one != flattened({"x": tensor(0)})[1]


def test_a_structure_keeps_nothing_of_the_batch() -> None:
    """Recordings keep structures for the length of a run."""
    _, structure = flattened(Counting(x=tensor(7)))
    assert structure.container is not None
    blank: Any = dataclasses.asdict(structure.container)["blank"]  # type: ignore[call-overload]
    assert dict(blank) == {"x": None}
    assert blank.num_tokens is None


def test_only_items_are_carried_over() -> None:
    counting = Counting(x=tensor(0))
    assert with_tensors(counting, torch.clone).num_tokens is None
    assert counting.num_tokens == 17
    changed = with_tensors(mirrored(), torch.neg)
    assert torch.equal(changed.x, tensor(-1)), "an attribute that mirrors an item follows it"


class Rounding(UserDict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value.round() if isinstance(value, Tensor) else value)


def test_a_mapping_that_changes_what_is_put_in_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="Rounding"):
        with_tensors(Rounding(x=tensor(0.4)), torch.clone)


def test_a_class_that_cannot_be_copied_is_refused_by_name() -> None:
    class Unique(UserDict[str, Any]):
        def __copy__(self) -> Any:
            raise RuntimeError("one of its kind")

    with pytest.raises(DataError, match="Unique"):
        flattened(Unique(x=tensor(0)))


@pytest.mark.parametrize("value", [object(), {1}, torch.nn.Linear(1, 1), iter(())])
def test_objects_that_may_hide_tensors_are_refused(value: Any) -> None:
    with pytest.raises(DataError, match=type(value).__name__):
        check_leaves(leaves_of({"x": [value, tensor(0)]}))


def test_a_program_on_such_a_batch_is_proven_and_one_that_mixes_is_not() -> None:
    batch = UserDict(x=torch.randn(4, 3), y=Frozen(torch.randn(4), torch.randn(4)))
    assert prove(lambda given: given["x"].sum(1) * given["y"].x, batch).is_proven
    assert not prove(lambda given: given["x"].sum(1) * given["y"].x.mean(), batch).is_proven
