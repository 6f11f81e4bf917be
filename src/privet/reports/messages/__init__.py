"""The sentences of a report's first page, one catalogue per language. All have the messages of the English one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from privet.errors import ArgumentError

LANGUAGES = ("en", "de", "fr", "es")


@dataclass(frozen=True, kw_only=True)
class Messages:
    """The messages of one language.

    Attributes:
        language: Its code, such as ``en``.
        texts: The messages by name, with places for values in braces.
    """

    language: str
    texts: Mapping[str, str]

    @classmethod
    def of(cls, language: str) -> Messages:
        """Read the catalogue of a language.

        Raises:
            ArgumentError: there is none.
        """
        if language not in LANGUAGES:
            raise ArgumentError(f"There is no first page in {language!r}. Languages: {', '.join(LANGUAGES)}.")
        text = (resources.files(__package__) / f"{language}.json").read_text("utf-8")
        return cls(language=language, texts=json.loads(text))

    def __call__(self, name: str, /, **values: str) -> str:
        """Return a message with its values."""
        return self.texts[name].format(**values).replace(" %", "\u00a0%")
