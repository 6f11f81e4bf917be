"""Rows of a ledger that tell of programs which no rule proved to keep examples apart."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from privet.accounting.ledger.changes import MAX_REASON
from privet.errors import ArgumentError


def _checked(words: object) -> None:
    if not isinstance(words, str) or not words.isprintable() or not 3 <= len(words) <= MAX_REASON:
        raise ArgumentError(f"A reason must be 3 to {MAX_REASON} printable characters, got {words!r}.")


@dataclass(frozen=True, kw_only=True)
class _Worded:
    """A row that holds words only."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for words in vars(self).values():
            _checked(words)

    def body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, body: dict[str, Any]) -> Self:
        return cls(**{field.name: body[field.name] for field in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class _Reasoned(_Worded):
    """A row about an operation without a rule.

    Attributes:
        reason: The operation, and the line of the program that called it. It contains no data.
    """

    reason: str


@dataclass(frozen=True, kw_only=True)
class Tried(_Reasoned):
    """Experiments, and no proof, say that the examples of some batches were kept apart."""

    kind: ClassVar[str] = "tried"


@dataclass(frozen=True, kw_only=True)
class Settled(_Reasoned):
    """A program that was only tried before has been proven."""

    kind: ClassVar[str] = "settled"


@dataclass(frozen=True, kw_only=True)
class Vouched(_Worded):
    """A check could not be made, and the user vouches for its result.

    Attributes:
        assumption: The check, and the user's own words.
    """

    kind: ClassVar[str] = "vouched"
    assumption: str
