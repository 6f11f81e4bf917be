"""Rows of a ledger that tell of weights which something else than a private step changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from privet import checks
from privet.errors import ArgumentError

MAX_REASON = 200


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The user changed the weights between two steps, and says how; this used no private data.

    Attributes:
        reason: The user's own words: printable, public, at most 200 characters.
        step: Steps in the model at that time.
    """

    kind: ClassVar[str] = "change"
    reason: str
    step: int

    def __post_init__(self) -> None:
        """Refuse words that are not there, too long, or not printable."""
        words: object = self.reason
        is_text = isinstance(words, str) and words.isprintable() and words.strip() == words
        if not is_text or not 3 <= len(self.reason) <= MAX_REASON:
            raise ArgumentError(
                f"reason must say in 3 to {MAX_REASON} printable characters how the weights are changed without "
                f"private data, such as 'loads public weights'; got {self.reason!r}."
            )
        checks.count("step", self.step, minimum=0)

    @property
    def assumption(self) -> str:
        """The assumption that it adds to a guarantee."""
        return f"the weights were changed after step {self.step} by: {self.reason}; this used no private data"

    def body(self) -> dict[str, Any]:
        return {"reason": self.reason, "step": self.step}

    @classmethod
    def read(cls, body: dict[str, Any]) -> Changed:
        return cls(reason=body["reason"], step=body["step"])


@dataclass(frozen=True, kw_only=True)
class Unexplained:
    """The weights were changed by something that was no private step. Nothing after it is private."""

    kind: ClassVar[str] = "unexplained"
    step: int

    def __post_init__(self) -> None:
        """Refuse a step that is no count."""
        checks.count("step", self.step, minimum=0)

    @property
    def why_not_private(self) -> str:
        """Why no promise is made, in words."""
        return f"its weights were changed after step {self.step} by something that was no private step"

    def body(self) -> dict[str, Any]:
        return {"step": self.step}

    @classmethod
    def read(cls, body: dict[str, Any]) -> Unexplained:
        return cls(step=body["step"])
