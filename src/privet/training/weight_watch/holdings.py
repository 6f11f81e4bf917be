"""The tensors that a model and its optimizer hold: their places in memory and torch's counters of changes in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.gradients.sharding.local import local_part
from privet.training.weight_watch.fingerprints import plain_parts

# Attributes of optimizers that hold settings, or that are read by themselves.
_PUBLIC = ("state", "param_groups", "defaults")

Place: TypeAlias = tuple[Any, ...]
"""Identity, counter of changes, address and layout of one tensor."""

_VERSION, _ADDRESS = attrgetter("_version"), Tensor.data_ptr
# Facts about a tensor besides its identity and counter, and about one whose numbers lie at regular distances.
_FACTS = (_ADDRESS, attrgetter("dtype"), attrgetter("device"), Tensor.is_neg, Tensor.is_conj)
_STRIDED = (attrgetter("shape"), Tensor.stride)
# By this method a wrapper names the tensors that hold its numbers.
_FLATTEN = "__tensor_flatten__"


@dataclass(frozen=True, slots=True)
class Held:
    """The tensors of a model and its optimizer at one time, fact by fact, so that two times are compared quickly.

    Attributes:
        names: Of the tensors.
        versions: Identities and counters of changes in place.
        wheres: Addresses and layouts: each item holds one fact of all tensors.
    """

    names: Sequence[str]
    versions: Sequence[Sequence[int]]
    wheres: Sequence[Sequence[Any]]

    def places(self) -> dict[str, Place]:
        """Return the facts tensor by tensor."""
        return dict(zip(self.names, zip(*self.versions, *self.wheres, strict=True), strict=True))


class Holdings:
    """The tensors of a model and its optimizer; they are walked again only when a container holds another object.

    Attributes:
        parameters: The parameters of the model, by name.
        tensors: The parameters and buffers of the model, by name.
        everything: The same and the state of the optimizer, as ``held`` found them last.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, gathered: Mapping[int, nn.Parameter] = MappingProxyType({})
    ) -> None:
        """Walk through the model and its optimizer.

        Args:
            model: Its parameters may be sharded; the parts of this rank are held then.
            optimizer: Likewise its state.
            gathered: The shard that a model holds in place of a whole parameter, by the identity of the latter: modules
                hold the whole ones while they are gathered, which is no change.
        """
        self._model, self._optimizer, self._gathered = model, optimizer, gathered
        self._owners: dict[int, str] = {}
        self._items_of = self._whole_items_of if gathered else chain.from_iterable
        self._walk()

    def _walk(self) -> None:
        modules = list(self._model.modules())
        # live views: each shows what its container holds now
        own = [held.values() for m in modules for held in (m._parameters, m._buffers, m._modules)]
        named = self._model.named_parameters()
        self.parameters = {name: self._gathered.get(id(value), value) for name, value in named}
        # a parameter that was replaced keeps its name: the optimizer still holds it
        self._owners |= {id(value): name for name, value in self.parameters.items()}
        # one tensor may be held under several names, and one of them may be given another
        self.tensors = _local(dict(self._model.named_buffers()) | self.parameters)
        found, containers = _of_optimizer(self._optimizer, self._owners)
        self.everything: dict[str, Tensor] = self.tensors | _local(found)
        self._names, self._all = tuple(self.everything), tuple(self.everything.values())
        self._has_wrappers = any(hasattr(tensor, _FLATTEN) for tensor in self._all)
        self._own, self._containers = own, [*own, *containers]
        # the items are kept, so that no other object can take the identity of one of them
        self._items = list(self._items_of(self._containers))
        self._ids = list(map(id, self._items))
        self._counted = list(self.tensors.values())

    def held(self) -> Held:
        """Return the tensors that are held now, the optimizer's state included."""
        if list(map(id, self._items_of(self._containers))) != self._ids:
            self._walk()
        with torch._C.DisableTorchFunction():
            identities = list(map(id, self._all))
            try:
                versions = (identities, list(map(_VERSION, self._all)))
                wheres = [list(map(fact, self._all)) for fact in (*_FACTS, *_STRIDED)]
            except (RuntimeError, NotImplementedError):
                numbers, wheres = _one_by_one(self._all)
                versions = (identities, numbers)
            if self._has_wrappers:
                wheres.append([_inside(tensor) if hasattr(tensor, _FLATTEN) else None for tensor in self._all])
        return Held(self._names, versions, wheres)

    def counters(self) -> tuple[list[int], ...]:
        """Return the identities of the objects that the modules hold, and the counter and address of each tensor."""
        with torch._C.DisableTorchFunction():
            try:
                found = list(map(_VERSION, self._counted)), list(map(_ADDRESS, self._counted))
            except (RuntimeError, NotImplementedError):
                numbers, wheres = _one_by_one(self._counted)
                found = numbers, wheres[0]
        return list(map(id, self._items_of(self._own))), *found

    def _whole_items_of(self, containers: Iterable[Iterable[Any]]) -> Iterable[Any]:
        """Return the objects in some containers; shards stand in the places of parameters that are gathered."""
        return (self._gathered.get(id(item), item) for item in chain.from_iterable(containers))


def _local(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: local_part(tensor) for name, tensor in tensors.items()}


def _one_by_one(tensors: Sequence[Tensor]) -> tuple[list[int], list[list[Any]]]:
    """Return counters and facts where some of the tensors cannot tell all of them."""
    versions: list[int] = []
    wheres: list[list[Any]] = [[] for _ in (*_FACTS, *_STRIDED)]
    for tensor in tensors:
        versions.append(_or_zero(_VERSION, tensor))  # those made in inference mode are not counted
        is_strided = tensor.layout is torch.strided
        facts = [_or_zero(_ADDRESS, tensor), *(fact(tensor) for fact in _FACTS[1:])]
        facts += [fact(tensor) if is_strided else tensor.layout for fact in _STRIDED]
        for column, fact in zip(wheres, facts, strict=True):
            column.append(fact)
    return versions, wheres


def _or_zero(fact: Callable[[Tensor], int], tensor: Tensor) -> int:
    try:
        return fact(tensor)
    except RuntimeError:
        return 0


def _inside(wrapper: Tensor) -> list[list[Any]]:
    """Return where the tensors in a wrapper lie: it keeps its own place when they are replaced or moved."""
    return _one_by_one(plain_parts(wrapper))[1]


def _of_optimizer(optimizer: Optimizer, owners: Mapping[int, str]) -> tuple[dict[str, Tensor], list[Iterable[Any]]]:
    """Return the tensors that an optimizer keeps from step to step, and all containers that lead to them.

    Its settings are public and left out.
    """
    left: list[tuple[str, Any, int]] = []
    containers: list[Iterable[Any]] = [optimizer.state.values(), vars(optimizer).values()]
    for owner, kept in optimizer.state.items():
        name = owners.get(id(owner), f"no parameter of the model {len(left)}")
        left.append((f"the optimizer's state of {name}", kept, 3))
    for key, value in vars(optimizer).items():
        if key not in _PUBLIC:
            left.append((f"the optimizer: {key}", value, 3))
    found: dict[str, Tensor] = {}
    for name, value, depth in left:  # grows while it is walked through
        if isinstance(value, Tensor):
            found[name] = value
        elif depth and isinstance(value, dict):
            containers.append(value.values())
            for place, (key, item) in enumerate(value.items()):
                left.append((f"{name}: {key if isinstance(key, str) else f'item {place}'}", item, depth - 1))
        elif depth and isinstance(value, list | tuple):
            containers.append(value)
            for place, item in enumerate(value):
                left.append((f"{name} {place}", item, depth - 1))
        elif depth and isinstance(value, Optimizer):
            containers += [value.state.values(), vars(value).values()]
            for place, kept in enumerate(value.state.values()):
                left.append((f"{name}: state {place}", kept, depth - 1))
            left.append((name, {key: item for key, item in vars(value).items() if key not in _PUBLIC}, depth))
    return found, containers


def changes_between(before: Held, now: Held) -> dict[str, str]:
    """Name the tensors that were replaced, moved or counted as changed, each with the kind of change."""
    then, later = before.places(), now.places()
    return {
        name: _how(then.get(name), later.get(name)) for name in later.keys() | then if later.get(name) != then.get(name)
    }


def _how(before: Place | None, now: Place | None) -> str:
    if before is None or now is None or before[0] != now[0]:
        return "the object"
    return "its place" if before[2:] != now[2:] else "its version"


def likely_cause(changes: Mapping[str, str], parameters: Mapping[str, nn.Parameter]) -> str:
    """Name the usual cause of such changes."""
    kinds, trained = set(changes.values()), {name for name, p in parameters.items() if p.requires_grad}
    if "the object" in kinds:
        return (
            "Tensors were added, removed or replaced: likely by assigning a parameter, parametrizing or merging a "
            "layer, or loading the optimizer's state."
        )
    if "its place" in kinds:
        return "Tensors lie elsewhere or otherwise: likely p.data = ..., set_(), model.to() or model.half()."
    if "its bits" in kinds:
        return (
            "It was written past torch's counters: likely through .data, a numpy array that shares its memory, or a "
            "library of its own."
        )
    if trained <= changes.keys():
        return (
            "Every trained parameter changed: likely the step of another optimizer (trainers such as those of "
            "transformers and Lightning make one of their own), load_state_dict(), or averages that were swapped in."
        )
    if not changes.keys() & parameters.keys():
        return "Only buffers or optimizer state changed: likely a forward pass outside the step, or load_state_dict()."
    return "Likely an assignment in place, another optimizer's step, or load_state_dict()."


def listed(names: Iterable[str]) -> str:
    """Return the first names of a list, for an error message."""
    names = sorted(names)
    shown = ", ".join(repr(name) for name in names[:8])
    return f"[{shown}]" if len(names) <= 8 else f"[{shown} and {len(names) - 8} more]"
