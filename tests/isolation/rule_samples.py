"""Calls of operations on which their rules are tried: guessed from signatures where that will do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tests.isolation.rule_check import Sample

aten = torch.ops.aten


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def whole(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def overloads(name: str) -> list[OpOverload]:
    packet = getattr(aten, name, None)
    return [] if packet is None else [getattr(packet, kind) for kind in packet.overloads()]


_SHAPE = (4, 6)
_PLAIN: dict[str, Any] = {"int": 1, "SymInt": 1, "float": 0.5, "number": 2, "Scalar": 2, "bool": False}
_ABSENT = ("Optional[Tensor]", "Optional[Generator]")
_AXES = ("dim", "dims")
_FIXED: dict[str, Any] = {"reduction": 0, "keepdim": False}
_KINDS: dict[str, Callable[[int], Tensor]] = {
    "real": lambda number: floats(*_SHAPE, seed=number).abs() * 0.4 + 0.1,
    "whole": lambda number: whole(5, *_SHAPE, seed=number),
    "truth": lambda number: whole(2, *_SHAPE, seed=number).bool(),
    "complex": lambda number: torch.complex(floats(*_SHAPE, seed=number), floats(*_SHAPE, seed=number + 9)),
}


def _value(name: str, kind: str, tensors: Callable[[int], Tensor], number: int, axis: int) -> Any:
    if name in _AXES:
        return [axis] if "List" in kind else axis
    if name in _FIXED:
        return _FIXED[name]
    if kind == "Tensor":
        return tensors(number)
    if kind in ("List[int]", "List[SymInt]"):
        return list(_SHAPE)
    return _PLAIN.get(kind)


def _filled(operation: OpOverload, tensors: Callable[[int], Tensor], axis: int) -> Sample:
    """Fill the arguments of a call in by their names and types."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for number, argument in enumerate(operation._schema.arguments):
        value = argument.default_value
        if not argument.has_default_value() or argument.name in (*_AXES, *_FIXED):
            value = _value(argument.name, str(argument.type), tensors, number, axis)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return Sample(operation=operation, args=tuple(args), kwargs=kwargs)


def guessed(name: str) -> Iterator[Sample]:
    """Yield calls whose arguments follow from the operation's signature, for every overload the first that runs."""
    for operation in overloads(name):
        arguments = operation._schema.arguments
        if any(argument.is_out for argument in arguments) or "Dimname" in str(operation._schema):
            continue
        has_axes = any(argument.name in _AXES for argument in arguments)
        for axis in (0, 1) if has_axes else (0,):
            yield from _first_that_runs([_filled(operation, tensors, axis) for tensors in _KINDS.values()])


def _first_that_runs(samples: list[Sample]) -> Iterator[Sample]:
    for sample in samples:
        try:
            sample.run(sample.tensors)
        except (RuntimeError, TypeError, NotImplementedError, IndexError, ValueError):
            continue
        yield sample
        return
