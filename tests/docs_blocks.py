"""The code of the pages in docs/: found, and told apart by what a test can do with it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=ticks)[ ]*$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r":([\w-]+):[ ]*(.*)")
SHELLS = {"", "bash", "console", "sh", "shell"}
REASON = "Not run in tests, because "


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of code on a page.

    Attributes:
        language: As written behind the fence; of a ``code-block`` directive, its argument.
        caption: The visible line above it, or nothing.
        is_marked: Whether it bears the class ``not-run``.
        needs: Modules of optional packages that it needs, from classes such as ``needs-fairlearn``.
        code: Its lines.
        line: Where it begins.
    """

    language: str
    caption: str
    is_marked: bool
    needs: tuple[str, ...]
    code: str
    line: int

    @property
    def commands(self) -> list[list[str]]:
        """The lines that call privet, as words; a backslash at the end of a line joins it with the next."""
        if self.language not in SHELLS:
            return []
        joined = self.code.replace("\\\n", " ").splitlines()
        lines = [line.removeprefix("$ ") for line in joined]
        return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("privet ")]

    @property
    def file(self) -> str | None:
        """The name of the file that this block shows, if its caption is one."""
        return self.caption if re.fullmatch(r"[\w-]+\.(toml|csv|py)", self.caption) else None


def blocks(page: Path) -> list[Block]:
    """Return the blocks of code of a page, in order; other directives are left out."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        language, body, options = match["info"].strip(), match["body"], {}
        if language.startswith("{"):
            directive, _, language = language.partition(" ")
            if directive != "{code-block}":
                continue
            while option := _OPTION.match(body):
                options[option[1]] = option[2]
                body = body.partition("\n")[2]
        classes = options.get("class", "").split()
        found.append(
            Block(
                language=language.strip(),
                caption=options.get("caption", ""),
                is_marked="not-run" in classes,
                needs=tuple(word.removeprefix("needs-") for word in classes if word.startswith("needs-")),
                code=body.lstrip("\n"),
                line=line,
            )
        )
    return found
