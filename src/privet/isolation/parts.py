"""The parts of a batch: how the containers that hold its tensors are taken apart and made again.

Whoever moves, cuts, marks or makes up a batch goes through this module, so all of them see the same tensors. Known are
lists, tuples, named tuples, dictionaries, every other mapping (``UserDict`` and what is made of it), dataclasses, and
classes that are registered with torch's pytree.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import numbers
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from privet.errors import DataError

# What hides no tensor, and may stand beside the tensors of a batch.
_PLAIN = (
    *(str, bytes, numbers.Number, np.generic, type(None), Enum, os.PathLike),
    *(datetime.date, datetime.time, datetime.timedelta, torch.dtype, torch.device),
)


class Container(Protocol):
    """How containers of one kind are taken apart and made again."""

    @staticmethod
    def opens(value: object) -> bool:
        """Tell whether a value is such a container."""
        ...

    @staticmethod
    def parts(value: Any) -> Iterable[Any]:
        """Return what the value contains."""
        ...

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return what is needed to make such a value again; nothing of its parts is kept.

        Raises:
            TypeError: the class does not let itself be made again.
        """
        ...

    def made(self, parts: Sequence[Any]) -> Any:
        """Return a value like the one taken apart, with these parts."""
        ...


@dataclass(frozen=True, slots=True)
class _Sequences:
    kind: Any

    @staticmethod
    def opens(value: object) -> bool:
        return type(value) in (list, tuple)

    @staticmethod
    def parts(value: Any) -> Iterable[Any]:
        return list(value)

    @classmethod
    def of(cls, value: Any) -> Self:
        return cls(type(value))

    def made(self, parts: Sequence[Any]) -> Any:
        return self.kind(parts)


@dataclass(frozen=True, slots=True)
class _Named(_Sequences):
    @staticmethod
    def opens(value: object) -> bool:
        return isinstance(value, tuple) and hasattr(type(value), "_fields") and hasattr(type(value), "_make")

    def made(self, parts: Sequence[Any]) -> Any:
        return self.kind._make(parts)


@dataclass(frozen=True, slots=True)
class _Dictionaries:
    kind: type[Any]
    keys: tuple[Any, ...]

    @staticmethod
    def opens(value: object) -> bool:
        return type(value) in (dict, OrderedDict)

    @staticmethod
    def parts(value: Any) -> Iterable[Any]:
        return list(value.values())

    @classmethod
    def of(cls, value: Any) -> Self:
        return cls(type(value), tuple(value))

    def made(self, parts: Sequence[Any]) -> Any:
        return self.kind(zip(self.keys, parts, strict=True))


@dataclass(frozen=True, slots=True)
class _Registered:
    """A class whose owner told torch's pytree how to take it apart."""

    kind: Any
    context: Any = field(hash=False)

    @staticmethod
    def opens(value: object) -> bool:
        return type(value) in pytree.SUPPORTED_NODES

    @staticmethod
    def parts(value: Any) -> Iterable[Any]:
        return list(pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0])

    @classmethod
    def of(cls, value: Any) -> Self:
        return cls(type(value), pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[1])

    def made(self, parts: Sequence[Any]) -> Any:
        return pytree.SUPPORTED_NODES[self.kind].unflatten_fn(list(parts), self.context)


@dataclass(frozen=True, slots=True)
class _Mappings:
    """Any other mapping, by what all of them can do: ``keys``, ``[]``, and to be copied.

    Guarantee:
        Only items are carried over. Whatever else the object holds (the encodings of a tokenizer, counts) is None in
        what is made again: it could bring numbers of one example to another without being seen.
    """

    kind: type[Any]
    keys: tuple[Any, ...]
    blank: Any = field(compare=False)

    @staticmethod
    def opens(value: object) -> bool:
        return isinstance(value, Mapping)

    @staticmethod
    def parts(value: Any) -> Iterable[Any]:
        return [value[key] for key in value]

    @classmethod
    def of(cls, value: Any) -> Self:
        keys = tuple(value)
        blank = _copied(value, keys)
        for name, held in _attributes(blank).items():
            if not _are_items(held, keys):
                _attributes(blank)[name] = None
        _fill(blank, keys, (None,) * len(keys))
        return cls(type(value), keys, blank)

    def made(self, parts: Sequence[Any]) -> Any:
        again = _copied(self.blank, self.keys)
        try:
            _fill(again, self.keys, parts)
        except TypeError as error:
            raise _closed([self.kind.__name__]) from error
        return again


def _attributes(value: object) -> dict[str, Any]:
    return vars(value) if hasattr(value, "__dict__") else {}


def _are_items(held: object, keys: Sequence[Any]) -> bool:
    """Tell whether an attribute is where a mapping keeps its items, as ``UserDict.data`` is."""
    return isinstance(held, Mapping) and tuple(held) == tuple(keys)


def _copied(value: Any, keys: Sequence[Any]) -> Any:
    """Return a copy that keeps its items in a place of its own."""
    again = copy.copy(value)
    if again is value or type(again) is not type(value):
        raise TypeError("its copy is no copy")
    for name, held in _attributes(again).items():
        if held is _attributes(value).get(name) and _are_items(held, keys):
            _attributes(again)[name] = copy.copy(held)
    return again


def _fill(value: Any, keys: Sequence[Any], parts: Sequence[Any]) -> None:
    """Put parts under keys, and see that they are there."""
    place = value
    if not hasattr(value, "__setitem__"):
        places = [held for held in _attributes(value).values() if _are_items(held, keys)]
        if len(places) != 1:
            raise TypeError("its items cannot be set")
        (place,) = places
    for key, part in zip(keys, parts, strict=True):
        place[key] = part
    if tuple(value) != tuple(keys) or any(value[key] is not part for key, part in zip(keys, parts, strict=True)):
        raise TypeError("it changes what is put in")


@dataclass(frozen=True, slots=True)
class _Dataclasses:
    """A dataclass, by its fields; what else an instance holds is not carried over."""

    kind: Any
    names: tuple[str, ...]

    @staticmethod
    def opens(value: object) -> bool:
        return dataclasses.is_dataclass(value) and not isinstance(value, type)

    @staticmethod
    def parts(value: Any) -> Iterable[Any]:
        return [getattr(value, each.name) for each in dataclasses.fields(value) if hasattr(value, each.name)]

    @classmethod
    def of(cls, value: Any) -> Self:
        return cls(type(value), tuple(each.name for each in dataclasses.fields(value) if hasattr(value, each.name)))

    def made(self, parts: Sequence[Any]) -> Any:
        again = self.kind.__new__(self.kind)
        for name, part in zip(self.names, parts, strict=True):
            object.__setattr__(again, name, part)
        return again


# The first that opens a value is its way.
_CONTAINERS: tuple[type[Container], ...] = (_Sequences, _Dictionaries, _Registered, _Named, _Mappings, _Dataclasses)


def _container_of(value: object) -> type[Container] | None:
    if isinstance(value, Tensor) or type(value) in (str, int, float, bool, type(None)):
        return None
    return next((container for container in _CONTAINERS if container.opens(value)), None)


@dataclass(frozen=True, slots=True)
class Structure:
    """The containers of a batch without what is in them. It can be compared, hashed, and sent to another process.

    Attributes:
        container: How the outermost container is made; None for a single part.
        inner: The structures of what is in it.
    """

    container: Container | None = None
    inner: tuple[Structure, ...] = ()

    def filled(self, leaves: Iterable[Any]) -> Any:
        """Return a batch of this structure with these parts, in the order of ``flattened``."""
        return self._made(iter(leaves))

    def _made(self, leaves: Any) -> Any:
        if self.container is None:
            return next(leaves)
        return self.container.made([part._made(leaves) for part in self.inner])


_LEAF = Structure()


def flattened(batch: Any) -> tuple[list[Any], Structure]:
    """Return the parts of a batch that are no containers, in order, and the structure that holds them.

    Raises:
        DataError: a container of a class that cannot be made again, by its name.
    """
    leaves: list[Any] = []
    return leaves, _taken_apart(batch, leaves)


def _taken_apart(value: Any, leaves: list[Any]) -> Structure:
    container = _container_of(value)
    if container is None:
        leaves.append(value)
        return _LEAF
    try:
        made = container.of(value)
    except Exception as error:  # a class may refuse a copy in any words
        raise _closed([type(value).__name__]) from error
    return Structure(made, tuple(_taken_apart(part, leaves) for part in container.parts(value)))


def leaves_of(batch: Any) -> list[Any]:
    """Return the parts of a batch that are no containers, in the order of ``flattened``."""
    container = _container_of(batch)
    return [batch] if container is None else [leaf for part in container.parts(batch) for leaf in leaves_of(part)]


def tensors_of(batch: Any) -> Sequence[Tensor]:
    """Return the tensors of a batch, whatever containers they are in."""
    leaves = batch if type(batch) is list else leaves_of(batch)
    if all(map(torch.is_tensor, leaves)):
        return leaves
    return [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor)]


def with_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch with every tensor changed, in the same containers; the given one stays as it is."""
    leaves, structure = flattened(batch)
    return structure.filled([change(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])


def check_leaves(leaves: Iterable[Any]) -> None:
    """Refuse parts in which tensors may be hidden: they would not be known as examples.

    Raises:
        DataError: naming their classes.
    """
    closed = {type(leaf).__name__ for leaf in leaves if not isinstance(leaf, (Tensor, *_PLAIN))}
    if closed:
        raise _closed(sorted(closed))


def _closed(names: Sequence[str]) -> DataError:
    return DataError(
        f"A batch holds {', '.join(names)}, which cannot be looked into, so its tensors would not be known as "
        "examples. Let the data set or the collate function return tensors in tuples, lists, dictionaries (any "
        "mapping that can be copied), named tuples or dataclasses, or register the class with "
        "torch.utils._pytree.register_pytree_node."
    )
