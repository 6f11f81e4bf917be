"""The stored table of mutants: which there are, and which test noticed each when it was last tried."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant

RECORD = ROOT / "results" / "trust" / "mutants.md"
_HEAD = """# Mutants: the library broken on purpose

Each row is one small change of the library's source that breaks a promise, and the test that failed when it was made.
Written by `make mutants`, which tries all of them; `make mutants ONLY=words` tries some and replaces their rows.

{num_killed} of {num_mutants} killed.

| name of the mutant | what is no longer true | fate | noticed by |
|---|---|---|---|
"""
_ROW = re.compile(r"^\| (?P<name>[\w.-]+) \| .* \| (?P<fate>\w+) \| `(?P<killer>[^`|]*)` \|$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What became of one mutant, and which test noticed it."""

    fate: str
    killer: str


def read_record(path: Path = RECORD) -> dict[str, Entry]:
    """Return the stored rows by the mutants' names; none if nothing is stored."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {found["name"]: Entry(fate=found["fate"], killer=found["killer"].strip()) for found in _ROW.finditer(text)}


def write_record(mutants: Sequence[Mutant], entries: Mapping[str, Entry], path: Path = RECORD) -> None:
    """Write the rows of all mutants that were ever tried, in the order of the mutants."""
    tried = [(mutant, entries[mutant.name]) for mutant in mutants if mutant.name in entries]
    num_killed = sum(entry.fate == "killed" for _, entry in tried)
    rows = [
        f"| {mutant.name} | {mutant.breaks.replace('|', '/')} | {entry.fate} | `{entry.killer}` |"
        for mutant, entry in tried
    ]
    path.write_text(
        _HEAD.format(num_killed=num_killed, num_mutants=len(mutants)) + "\n".join(rows) + "\n", encoding="utf-8"
    )


def name_of_test(killer: str) -> str:
    """Return the test's name without its parameters, whose words may hold anything."""
    return killer.removeprefix("tests/").partition("[")[0].replace("`", "").replace("|", "/")
