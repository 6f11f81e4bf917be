"""Rows of a ledger that tell of programs which no rule proved to keep examples apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from privet.accounting.ledger.changes import MAX_REASON
from privet.errors import ArgumentError


def _checked(words: object) -> None:
    if not isinstance(words, str) or not words.isprintable() or not 3 <= len(words) <= MAX_REASON:
        raise ArgumentError(f"A reason must be 3 to {MAX_REASON} printable characters, got {words!r}.")


@dataclass(frozen=True, kw_only=True)
class _Reasoned:
    """A row about one thing that has no rule.

    Attributes:
        reason: An operation and the line that asked for it. It names the program, not the data.
    """

    kind: ClassVar[str]
    reason: str

    def __post_init__(self) -> None:
        """Refuse words that are not there, too long, or not printable."""
        _checked(self.reason)

    def body(self) -> dict[str, Any]:
        return {"reason": self.reason}

    @classmethod
    def read(cls, body: dict[str, Any]) -> Self:
        return cls(reason=body["reason"])


@dataclass(frozen=True, kw_only=True)
class Tried(_Reasoned):
    """Experiments, and no proof, say that the examples of some batches were kept apart."""

    kind: ClassVar[str] = "tried"


@dataclass(frozen=True, kw_only=True)
class Settled(_Reasoned):
    """What was tried only was proven later."""

    kind: ClassVar[str] = "settled"


@dataclass(frozen=True, kw_only=True)
class Vouched:
    """A check could not be held, and the user answers for it.

    Attributes:
        assumption: Which check, and the user's own words.
    """

    kind: ClassVar[str] = "vouched"
    assumption: str

    def __post_init__(self) -> None:
        """Refuse words that are not there, too long, or not printable."""
        _checked(self.assumption)

    def body(self) -> dict[str, Any]:
        return {"assumption": self.assumption}

    @classmethod
    def read(cls, body: dict[str, Any]) -> Vouched:
        return cls(assumption=body["assumption"])
