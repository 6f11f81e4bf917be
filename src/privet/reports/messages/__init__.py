"""The sentences of a report's first page, one catalogue per language. All have the messages of the English one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from privet.errors import ArgumentError

LANGUAGES = ("en", "de", "fr", "es")
_POINT = re.compile(r"(?<=[0-9])\.(?=[0-9])")


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
        """Return a message with its values, whose numbers have the decimal mark of the language."""
        told = {place: self.number(value) for place, value in values.items()}
        return self.texts[name].format(**told).replace(" %", "\u00a0%")

    def number(self, text: str) -> str:
        """Return a text with the decimal mark of the language in its numbers."""
        return _POINT.sub(self.texts["decimal"], text)

    def measure(self, name: str) -> str:
        """Return the name of a measure; one without an everyday name keeps its own."""
        return self.texts.get(f"measure_{name}", name)
