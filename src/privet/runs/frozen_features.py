"""Features of a frozen body, computed once before a head is trained on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privet.datasets.arrays import ArrayDataset
from privet.errors import UnsupportedModel
from privet.runs.one_by_one import made_up_like, one_by_one, works_one_by_one
from privet.runs.recipes.recipe import Recipe
from privet.training.preflight.model_state import ModelState
from privet.training.preflight.preflight import preflight

# Every call has so many rows, so that the arithmetic for a record is the same however many others there are.
_CHUNK = 64
_TRIED = 6
_NOT_A_HEAD = "The trained part is not the end of the network."


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureDataset(ArrayDataset):
    """Features of records, in memory only; a resumed run is compared by the records themselves.

    Attributes:
        records: The records.
    """

    records: ArrayDataset

    def held_tensors(self) -> Iterator[Tensor]:
        yield from self.records.held_tensors()


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """The part of a network that the loss of a run goes through, and the data set it is given.

    Attributes:
        part: The network, or its head.
        dataset: The records, or their features.
    """

    part: nn.Module
    dataset: ArrayDataset

    def set_mode(self, model: nn.Module) -> None:
        """Put what is trained into training mode, and a body that is not run any more into evaluation mode."""
        model.train(model is self.part)
        self.part.train()


def trained_on(recipe: Recipe, model: nn.Module, dataset: ArrayDataset) -> Trained:
    """Return the head of a user's own network and the features of all records, or the network and the records.

    Guarantee:
        A feature is a function of its own record and of public values: see :func:`one_by_one`. Training on features is
        then training of the network on the records, with a frozen body in evaluation mode. Where made-up records show
        that any of this is not so, or the loss sees several views of a record, nothing is computed beforehand. Features
        are kept in memory and nowhere else, and the network is left as it was.

    Raises:
        UnsupportedModel: the body did otherwise with the records than with made-up ones.
    """
    whole = Trained(part=model, dataset=dataset)
    if recipe.network is None or recipe.training.augmentation is not None:
        return whole
    name = _trained_module(model)
    if name is None or not _is_apart(model, name):
        return whole
    body, was_training = _Body(model, model.get_submodule(name)), model.training
    state = ModelState(model)
    model.eval()
    try:
        if not _is_function_of_each(model, body, dataset):
            state.restore()
            return whole
        features = one_by_one(model, body, dataset.features, size=_CHUNK)
    finally:
        model.train(was_training)
    return Trained(
        part=body.head,
        dataset=FeatureDataset(
            features=features,
            labels=dataset.labels,
            one_item=dataset.one_item,
            persons=dataset.persons,
            records=dataset,
        ),
    )


def _trained_module(model: nn.Module) -> str | None:
    """Return the name of the smallest module that holds every trained parameter; None if that is the network."""
    names = [name.split(".")[:-1] for name, value in model.named_parameters() if value.requires_grad]
    if not names:
        return None
    common = names[0]
    for path in names[1:]:
        same = 0
        while same < min(len(common), len(path)) and common[same] == path[same]:
            same += 1
        common = common[:same]
    return ".".join(common) or None


def _is_apart(model: nn.Module, name: str) -> bool:
    """Whether no parameter of a module has another name outside of it."""
    inside = {id(value) for value in model.get_submodule(name).parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return all(id(value) not in inside or other.startswith(f"{name}.") for other, value in every)


class _Body:
    """The computation below the head: the network up to the only call of its head, whose result is the output."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        self._model, self.head = model, head

    def __call__(self, records: Tensor) -> Tensor:
        """Return the head's input, as the network gives it: before any hook of the head itself.

        Raises:
            UnsupportedModel: the head is not called once, on one tensor with a row for each record, at the very end.
        """
        given: list[tuple[Any, ...]] = []
        results: list[Any] = []
        with (
            self.head.register_forward_pre_hook(
                lambda module, args, named: given.append((*args, *named)), prepend=True, with_kwargs=True
            ),
            self.head.register_forward_hook(lambda module, args, output: results.append(output)),
        ):
            output = self._model(records)
        if len(given) != 1 or len(results) != 1 or results[0] is not output or len(given[0]) != 1:
            raise UnsupportedModel(_NOT_A_HEAD)
        (features,) = given[0]
        if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != len(records):
            raise UnsupportedModel(_NOT_A_HEAD)
        return features


def _is_function_of_each(model: nn.Module, body: _Body, dataset: ArrayDataset) -> bool:
    """Whether the body, in evaluation mode, maps each record by itself, and the head is given its features alone.

    Made-up records of the same shape are used, and no record.
    """
    like = dataset.features
    few, others = made_up_like(like, _TRIED), made_up_like(like, _TRIED, seed=1)
    try:
        with torch.enable_grad():
            first = body(few)
        if first.requires_grad or not first.is_floating_point():
            return False
        preflight(model, lambda records: model(records).flatten(1).sum(1), (few,))
    except Exception:  # noqa: BLE001 -- a user's code may raise anything, of made-up records
        return False
    return works_one_by_one(model, body, like, size=_CHUNK) and _is_all_that_the_head_gets(model, body, few, others)


@torch.no_grad()
def _is_all_that_the_head_gets(model: nn.Module, body: _Body, few: Tensor, others: Tensor) -> bool:
    """Whether head and body are linked by the features alone.

    The head must give for them what the network gives, also after the network has seen other records; and features
    must stay as they are when the head is trained.
    """
    state = ModelState(model)
    wanted, features = model(few), body(few)
    model(others)
    if not torch.equal(body.head(features), wanted):
        return False
    for value in body.head.parameters():
        if value.requires_grad:
            value.add_(1)
    is_same = torch.equal(body(few), features)
    state.restore()
    return is_same
