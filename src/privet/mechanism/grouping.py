"""Groupings of parameters that share one norm: the whole model, layers, tensors, or named parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from privet.errors import ArgumentError, PlanError


@runtime_checkable
class Grouping(Protocol):
    """Assigns every trainable parameter to exactly one group.

    Attributes:
        is_flat: Whether all parameters share one norm (flat clipping).
    """

    @property
    def is_flat(self) -> bool: ...

    def groups_of(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the group index of each parameter; indices run from 0 without gaps."""
        ...


def _number(names: Sequence[str], key: Callable[[str], str]) -> tuple[int, ...]:
    order: dict[str, int] = {}
    return tuple(order.setdefault(key(name), len(order)) for name in names)


@dataclass(frozen=True, kw_only=True)
class OneGroup:
    """Flat clipping: one norm over all parameters."""

    is_flat: ClassVar[bool] = True

    def groups_of(self, names: Sequence[str]) -> tuple[int, ...]:
        return (0,) * len(names)


@dataclass(frozen=True, kw_only=True)
class PerLayer:
    """One norm per module: a layer's weight and bias are clipped together."""

    is_flat: ClassVar[bool] = False

    def groups_of(self, names: Sequence[str]) -> tuple[int, ...]:
        return _number(names, lambda name: name.rpartition(".")[0])


@dataclass(frozen=True, kw_only=True)
class PerParameter:
    """One norm per parameter tensor."""

    is_flat: ClassVar[bool] = False

    def groups_of(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(range(len(names)))


@dataclass(frozen=True, kw_only=True)
class ByName:
    """One norm per named part: each entry of ``parts`` is a tuple of name prefixes that form one group.

    A prefix matches whole dotted components: ``"head"`` matches ``head.weight`` but not ``header.weight``.
    """

    parts: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        given: Any = self.parts
        groups = isinstance(given, list | tuple) and all(isinstance(part, list | tuple) for part in given)
        if not groups or not all(isinstance(prefix, str) for part in self.parts for prefix in part):
            raise ArgumentError(
                f'parts must be groups of name prefixes, such as (("body",), ("head",)); got {self.parts!r}.'
            )
        object.__setattr__(self, "parts", tuple(tuple(part) for part in self.parts))
        flat = [prefix for part in self.parts for prefix in part]
        if not self.parts or any(not part for part in self.parts) or any(not prefix for prefix in flat):
            raise ArgumentError("parts must hold at least one group, each with at least one non-empty name prefix.")
        if len(set(flat)) != len(flat):
            raise ArgumentError("parts names the same prefix twice; each prefix belongs to one group.")

    is_flat: ClassVar[bool] = False

    def groups_of(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the part of each parameter; a parameter that matches no part or several is refused."""
        return tuple(self._part_of(name) for name in names)

    def _part_of(self, name: str) -> int:
        found = [
            index
            for index, part in enumerate(self.parts)
            if any(name == prefix or name.startswith(prefix + ".") for prefix in part)
        ]
        if len(found) != 1:
            what = "no group" if not found else f"groups {found}"
            raise PlanError(
                f"Parameter '{name}' belongs to {what} of ByName(parts={self.parts}). "
                "Name a prefix for every trainable parameter in exactly one part, or freeze the parameter."
            )
        return found[0]
