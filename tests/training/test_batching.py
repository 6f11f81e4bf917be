"""From indices to tensors: every road to a batch leads to the same batch."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import default_collate

from privet.errors import ArgumentError, DataError
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.isolation.parts import tensors_of
from privet.training.batching import cut_in_two, split
from privet.training.loading import fetch
from privet.training.performance import Performance
from privet.training.start import privatize
from tests.training.tools import CPU, examples, flat, full_batch, losses_of, network, plain_sgd, poisson, run


class Batched:
    """Hands out many items at once, and refuses to be asked for one."""

    def __init__(self) -> None:
        self.inputs, self.labels = examples().tensors
        self.takes = 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("items were asked for one by one")

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        self.takes += 1
        return self.inputs[indices], self.labels[indices]


@pytest.mark.parametrize("physical_batch_size", [1, 3, 256])
def test_taking_many_at_once_equals_taking_one_by_one(physical_batch_size: int) -> None:
    by_items, at_once, data = network(), network(), Batched()
    for model, dataset in ((by_items, examples()), (at_once, data)):
        session = privatize(
            model,
            plain_sgd(model),
            dataset,
            poisson(6),
            performance=Performance(physical_batch_size=physical_batch_size),
            seed=1,
        )
        with session:
            run(session, model)
    assert data.takes > 0
    assert torch.equal(flat(by_items), flat(at_once))


def test_a_collate_function_is_used_even_where_many_could_be_taken_at_once() -> None:
    class Both(Batched):
        def __getitem__(self, index: int) -> Any:
            return self.inputs[index], self.labels[index]

    def doubled(items: list[Any]) -> dict[str, Tensor]:
        return {"inputs": 2 * torch.stack([x for x, _ in items]), "labels": torch.stack([y for _, y in items])}

    model, data = network(), Both()
    seen: list[Tensor] = []
    with privatize(model, plain_sgd(model), data, full_batch(1), collate=doubled) as session:
        for step in session.steps():
            for batch in step.microbatches():
                seen.append(batch["inputs"].detach())
                step.backward(losses_of(model)(batch["inputs"], batch["labels"]))
            step.update()
    assert torch.equal(torch.cat(seen), 2 * data.inputs)
    assert data.takes == 0


def test_accumulate_hands_a_batch_that_is_one_tensor_to_the_loss_whole() -> None:
    model = nn.Linear(3, 1)
    shapes = []

    def losses(batch: Tensor) -> Tensor:
        shapes.append(tuple(batch.shape))
        return model(batch).square().squeeze(1)

    with privatize(model, plain_sgd(model), list(torch.randn(8, 3)), full_batch(2)) as session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()
    assert shapes[-1] == (8, 3)
    assert {len(shape) for shape in shapes} == {2}, "the pre-flight hands its batches over in the same way"


@settings(deadline=None, max_examples=50)
@given(num=st.integers(0, 40), size=st.integers(1, 50))
def test_splitting_keeps_every_index_once_and_in_order(num: int, size: int) -> None:
    indices = np.arange(num, dtype=np.int64)
    parts = list(split(indices, size))
    assert [index for part in parts for index in part] == list(range(num))
    assert all(0 < len(part) <= size for part in parts)
    assert len(parts) == -(-num // size)


def test_fetched_examples_are_the_asked_ones_in_the_asked_order() -> None:
    inputs, labels = fetch(examples(), np.array([5, 0, 3]), None, CPU)
    assert torch.equal(inputs, examples().tensors[0][[5, 0, 3]])
    assert torch.equal(labels, examples().tensors[1][[5, 0, 3]])


def test_all_tensors_of_a_batch_are_found_in_any_container() -> None:
    a, b, c = torch.zeros(1), torch.ones(2), torch.ones(3)
    found = tensors_of({"a": a, "rest": [b, ("text", c, 3)]})
    assert [id(tensor) for tensor in found] == [id(a), id(b), id(c)]


@pytest.mark.parametrize("failing", ["item", "collate"])
def test_data_that_cannot_be_read_ends_the_step_charged_and_changes_nothing(failing: str) -> None:
    def fail(*_: object) -> Any:
        raise OSError("unreadable")

    class Broken:
        def __len__(self) -> int:
            return 8

        __getitem__ = fail

    model = network()
    before = flat(model)
    dataset = Broken() if failing == "item" else examples()
    session = privatize(model, plain_sgd(model), dataset, full_batch(2), collate=fail if failing == "collate" else None)
    with pytest.raises(OSError, match="unreadable"), session:
        run(session, model)
    assert session.ledger.charged_rounds == 1
    assert torch.equal(flat(model), before)


class Hidden:
    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs


@pytest.mark.parametrize(
    "hide",
    [Hidden, lambda inputs: {inputs}, lambda inputs: inputs.numpy(), lambda inputs: MappingProxyType({"x": inputs})],
    ids=["Hidden", "set", "ndarray", "mappingproxy"],
)
def test_a_batch_that_cannot_be_looked_into_is_named(
    hide: Callable[[Tensor], Any], request: pytest.FixtureRequest
) -> None:
    def collate(items: list[Any]) -> Any:
        return {"hidden": hide(torch.stack([x for x, _ in items]))}

    with pytest.raises(DataError, match=rf"holds {request.node.callspec.id}, which cannot be looked into"):
        fetch(examples(), np.arange(3), collate, CPU)


@dataclass(frozen=True)
class Pair:
    inputs: Tensor
    labels: Tensor


class PairOfNames(NamedTuple):
    inputs: Tensor
    labels: Tensor


class Encoded(UserDict[str, Any]):
    """What a tokenizer gives: items, and beside them an object that knows every example."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        super().__init__({"inputs": inputs, "labels": labels})
        self.encodings: Any = [f"example {label}" for label in labels.tolist()]


class ReadOnly(Mapping[str, Tensor]):
    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._store = {"inputs": inputs, "labels": labels}

    def __getitem__(self, key: str) -> Tensor:
        return self._store[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._store)

    def __len__(self) -> int:
        return len(self._store)


def by_key(batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    return batch["inputs"], batch["labels"]


def by_attribute(batch: Any) -> tuple[Tensor, Tensor]:
    return batch.inputs, batch.labels


CONTAINERS: list[tuple[Callable[..., Any], Callable[..., tuple[Tensor, Tensor]]]] = [
    (lambda inputs, labels: {"inputs": inputs, "labels": labels}, by_key),
    (Encoded, by_key),
    (ReadOnly, by_key),
    (Pair, by_attribute),
    (PairOfNames, lambda inputs, labels: (inputs, labels)),
    (lambda inputs, labels: Pair(Encoded(inputs, labels), [labels]), lambda batch: by_key(batch.inputs)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("packed", "unpacked"), CONTAINERS, ids=["dict", "Encoded", "ReadOnly", "Pair", "Names", "in"])
@pytest.mark.parametrize("way", ["accumulate", "microbatches"])
@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
def test_the_class_of_a_batch_changes_no_release(
    packed: Callable[..., Any], unpacked: Callable[..., tuple[Tensor, Tensor]], way: str, engine: Engine
) -> None:
    """Cut in two, resized, made up, marked, moved: the tensors are found in any container."""

    def collate(items: list[Any]) -> Any:
        return packed(*default_collate(items))

    models = [network(), network()]
    for model, how in zip(models, (None, collate), strict=True):

        def losses(*batch: Any, model: nn.Module = model, how: Any = how) -> Tensor:
            return losses_of(model)(*(batch if how is None else unpacked(*batch)))

        performance = Performance(physical_batch_size=5, engine=engine)
        session = privatize(
            model, plain_sgd(model), examples(), poisson(5), collate_fn=how, performance=performance, seed=3
        )
        with session:
            for step in session.steps():
                if way == "accumulate":
                    step.accumulate(losses)
                else:
                    for batch in step.microbatches():
                        step.backward(losses(*(batch if isinstance(batch, tuple | list) else (batch,))))
                step.update()
        assert session.guarantee().epsilon > 0
    assert torch.equal(flat(models[0]), flat(models[1]))


class Takes(nn.Module):
    """A model that is given the whole batch."""

    def __init__(self, unpacked: Callable[[Any], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.inner, self.unpacked = network(), unpacked

    def forward(self, batch: Any) -> Tensor:
        return self.inner(self.unpacked(batch)[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("packed", "unpacked"), [(Encoded, by_key), (Pair, by_attribute)], ids=["Encoded", "Pair"])
@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
def test_a_model_may_be_given_the_whole_batch(
    packed: Callable[..., Any], unpacked: Callable[[Any], tuple[Tensor, Tensor]], engine: Engine
) -> None:
    whole, plain, performance = Takes(unpacked), network(), Performance(engine=engine)
    with privatize(
        whole, plain_sgd(whole), examples(), full_batch(2), seed=1, performance=performance,
        collate=lambda items: packed(*default_collate(items)),
    ) as session:  # fmt: skip
        for step in session.steps():
            step.accumulate(
                lambda batch: nn.functional.cross_entropy(whole(batch), unpacked(batch)[1], reduction="none")
            )
            step.update()
    with privatize(plain, plain_sgd(plain), examples(), full_batch(2), seed=1, performance=performance) as session:
        run(session, plain)
    assert torch.equal(flat(whole), flat(plain))


def test_what_a_batch_holds_beside_its_items_does_not_reach_the_loop() -> None:
    """A loss that reads it could carry one example to another, and nobody would see."""
    batch = fetch(examples(), np.arange(3), lambda items: Encoded(*default_collate(items)), CPU)
    assert isinstance(batch, Encoded)
    assert batch.encodings is None


def test_a_collate_function_has_two_names_and_one_value() -> None:
    model = network()
    with pytest.raises(ArgumentError, match="collate_fn"):
        privatize(
            model, plain_sgd(model), examples(), full_batch(), collate=default_collate, collate_fn=default_collate
        )


@pytest.mark.parametrize("size", range(5, 40))
def test_a_batch_is_cut_in_two_unequal_parts_that_are_not_as_long_as_an_example_where_that_can_be(size: int) -> None:
    batch = (torch.zeros(size, 16), torch.zeros(size))
    parts = list(cut_in_two(batch, size))
    lengths = [length for _, length in parts]
    assert [len(part[0]) for part, _ in parts] == lengths
    assert sum(lengths) == size
    assert lengths[0] != lengths[1]
    assert min(lengths) >= 2
    assert 16 not in lengths
