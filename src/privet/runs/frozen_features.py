"""Features of a frozen body, computed once before a head is trained on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privet.datasets.arrays import ArrayDataset
from privet.errors import PrivetError
from privet.isolation import prove_isolation
from privet.isolation.place import Cause
from privet.isolation.prove import follow
from privet.runs.recipes.recipe import Recipe
from privet.training.preflight.preflight import preflight

# Every call has so many rows, so that the arithmetic for a record is the same however many others there are.
_CHUNK = 64
_TRIED = 6


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
        A feature is a function of its own record and of public values: the rules prove of every call that the body
        kept records apart, experiments find no memory from call to call and no randomness, and all calls have the same
        number of rows. Training on features is then training of the network on the records, with a frozen body in
        evaluation mode. Where any of this is not so, or the loss sees several views of a record, nothing is computed
        beforehand. Features are kept in memory and nowhere else.
    """
    whole = Trained(part=model, dataset=dataset)
    if recipe.network is None or recipe.training.augmentation is not None:
        return whole
    name = _trained_module(model)
    if name is None or not _is_apart(model, name):
        return whole
    body, was_training = _Body(model, model.get_submodule(name)), model.training
    model.eval()
    try:
        if not _is_function_of_each(model, body, dataset):
            return whole
        features = _all_features(body, dataset.features)
    except _NotAHead:
        return whole
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
        """Return the head's input.

        Raises:
            _NotAHead: the head is not called once, on one tensor with a row for each record, at the very end.
        """
        calls: list[tuple[tuple[Any, ...], Any]] = []
        with self.head.register_forward_hook(lambda module, given, output: calls.append((given, output))):
            output = self._model(records)
        if len(calls) != 1 or calls[0][1] is not output or len(calls[0][0]) != 1:
            raise _NotAHead
        (features,) = calls[0][0]
        if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != len(records):
            raise _NotAHead
        return features


class _NotAHead(Exception):
    """The trained part is not the end of the network, or what lies below it mixes records."""


def _is_function_of_each(model: nn.Module, body: _Body, dataset: ArrayDataset) -> bool:
    """Whether the body, in evaluation mode, maps each record by itself, without randomness or trained parameters.

    Made-up records of the same shape are used, and no record.
    """
    like = dataset.features
    generator = torch.Generator().manual_seed(0)
    made_up = torch.randn(_TRIED, *like.shape[1:], generator=generator).to(like)
    try:
        with torch.enable_grad():
            first = body(made_up)
        with torch.no_grad():
            is_repeated = torch.equal(first, body(made_up))
        if first.requires_grad or not first.is_floating_point() or not is_repeated:
            return False
        preflight(model, lambda records: model(records).flatten(1).sum(1), (made_up,))
        with torch.enable_grad():
            return prove_isolation(lambda records: body(records).flatten(1).sum(1), made_up).is_proven
    except (_NotAHead, PrivetError):
        return False


@torch.no_grad()
def _all_features(body: _Body, records: Tensor) -> Tensor:
    found = []
    for part in torch.split(records, _CHUNK):
        lacking = _CHUNK - len(part)
        filled = torch.cat([part, part.new_zeros(lacking, *part.shape[1:])]) if lacking else part
        found.append(_followed(body, filled)[: len(part)].clone())
    return torch.cat(found)


def _followed(body: _Body, records: Tensor) -> Tensor:
    """Return the features of a batch, of which the rules prove that this very call kept its records apart."""
    kept: list[Tensor] = []

    def sums(batch: Tensor) -> Tensor:
        kept.append(body(batch))
        return kept[-1].flatten(1).sum(1)

    proof = follow(sums, records)
    if isinstance(proof.losses, Cause) or proof.refused or len(kept) != 1:
        raise _NotAHead
    return kept[0]
