"""Which arguments an operation changes, by its schema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch._ops import OpOverload


@lru_cache(maxsize=4096)
def writes_of(operation: OpOverload) -> tuple[tuple[int, str], ...]:
    """Return number and name of each argument that an operation changes."""
    return tuple(
        (number, argument.name)
        for number, argument in enumerate(operation._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written_among(writes: Sequence[tuple[int, str]], seen: list[Any], named: dict[str, Any]) -> list[Any]:
    """Return those that are changed among the arguments of a call."""
    return [seen[number] if number < len(seen) else named.get(name) for number, name in writes]


def argument_of(args: tuple[Any, ...], kwargs: dict[str, Any], number: int, name: str) -> Any:
    """Return an argument by its number or its name."""
    return args[number] if number < len(args) else kwargs.get(name)


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of an argument or a result."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [item for item in value if isinstance(item, Tensor)]
    return []
