"""Laws of the mutants: each still changes the library, each is noticed, and nobody cries wolf."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, Edit, Mutant, StaleMutant
from tests.mutants.record import Entry, name_of_test, read_record, write_record
from tests.mutants.table import MUTANTS

NAMES = [mutant.name for mutant in MUTANTS]
each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
# One of each kind, whose tests take a moment.
QUICK = (
    "count-not-charged",
    "half-the-rate-charged",
    "facts-not-charged",
    "group-shares-not-normalised",
    "repeats-not-composed",
)


ENTRY = Entry(fate="killed", killer="somebody")


def functions_of(mutant: Mutant) -> list[str]:
    return [re.sub(r"\[.*\]$", "", name) for name in mutant.killed_by]


def try_out(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.mutants", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600, check=False)


def test_there_are_enough_mutants_of_different_names() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 45
    assert set(QUICK) <= set(NAMES)


@each_mutant
def test_a_mutant_still_changes_the_library_and_is_a_program(mutant: Mutant) -> None:
    for path, text in mutant.files().items():
        assert text != (ROOT / path).read_text(encoding="utf-8")
        ast.parse(text)


@each_mutant
def test_the_tests_that_must_notice_a_mutant_exist(mutant: Mutant) -> None:
    assert mutant.killed_by
    for name in functions_of(mutant):
        path, _, function = name.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not function or f"\ndef {function}(" in text, name


def test_a_text_that_is_gone_or_there_twice_makes_a_mutant_stale() -> None:
    edit = Edit(file="x.py", old="a = 1", new="a = 2")
    assert edit.applied_to("a = 1\n") == "a = 2\n"
    for text in ("a = 3\n", "a = 1\na = 1\n"):
        with pytest.raises(StaleMutant, match="occurs"):
            edit.applied_to(text)


def test_some_mutants_are_really_noticed() -> None:
    done = try_out(*QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(QUICK)} of {len(QUICK)} mutants killed" in done.stdout


def test_a_mutant_that_nobody_notices_is_reported() -> None:
    program = (
        "import sys\n"
        "from dataclasses import replace\n"
        "from tests.mutants import __main__ as command, table\n"
        "harmless = replace(table.MUTANTS[0], name='harmless', killed_by=('tests/test_vocabulary.py',))\n"
        "command.MUTANTS = (harmless,)\n"
        "sys.argv = ['mutants']\n"
        "sys.exit(command.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SURVIVED: harmless" in done.stdout


def test_the_stored_table_has_every_mutant_and_each_was_killed(
    record_property: Callable[[str, object], None],
) -> None:
    stored = read_record()
    assert set(stored) == set(NAMES), "run `make mutants`, or with ONLY=... for those that are new"
    assert [name for name, entry in stored.items() if entry.fate != "killed"] == []
    record_property("mutants killed", len(stored))
    record_property("mutants that survived", 0)


def test_a_stored_table_reads_as_it_was_written(tmp_path: Path) -> None:
    odd = replace(MUTANTS[0], name="odd-0.5", breaks="a | b")
    entries = {"odd-0.5": Entry(fate="killed", killer=name_of_test("tests/x.py::test_y[a|b`-3]")), "gone": ENTRY}
    write_record((odd, MUTANTS[1]), entries, tmp_path / "table.md")
    assert read_record(tmp_path / "table.md") == {"odd-0.5": Entry(fate="killed", killer="x.py::test_y")}
    assert "1 of 2 killed" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert read_record(tmp_path / "nothing.md") == {}


@pytest.mark.slow
def test_every_mutant_is_noticed() -> None:
    done = try_out()
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_tests_that_notice_mutants_are_silent_without_one() -> None:
    named = sorted({name for mutant in MUTANTS for name in mutant.killed_by})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *named]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
