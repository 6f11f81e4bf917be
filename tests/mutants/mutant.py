"""What a mutant is: a small exact change of the library's own source that breaks a promise, and who must notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src") / "privet"


class StaleMutant(Exception):
    """The text that a mutant changes is no longer there, or not there once."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One exact substitution.

    Attributes:
        file: Below ``src/privet``.
        old: Text that occurs exactly once in the file.
        new: What stands there instead.
    """

    file: str
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1:
            raise StaleMutant(f"{self.file}: the text to change occurs {found} times: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong library.

    Attributes:
        name: Unique; words joined by hyphens.
        breaks: What is no longer true, in words.
        edits: The substitutions that make it.
        killed_by: Tests, named as pytest names them, of which at least one must fail.
    """

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    killed_by: tuple[str, ...]

    def files(self, root: Path = ROOT) -> Mapping[Path, str]:
        """Return the changed files' contents by their path below ``root``.

        Raises:
            StaleMutant: a text to be changed does not occur exactly once.
        """
        changed: dict[Path, str] = {}
        for edit in self.edits:
            path = PACKAGE / edit.file
            before = changed[path] if path in changed else (root / path).read_text(encoding="utf-8")
            changed[path] = edit.applied_to(before)
        return changed


def one(name: str, breaks: str, file: str, old: str, new: str, *killed_by: str) -> Mutant:
    """Return a mutant of a single substitution."""
    edit = Edit(file=file, old=old, new=new)
    return Mutant(name=name, breaks=breaks, edits=(edit,), killed_by=killed_by)
