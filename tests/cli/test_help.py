"""Help of every verb and of every part of a verb: quick to print, narrow enough, and saying what it must."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from privet.cli.account import _PARTS
from privet.cli.main import privet
from tests.cli.conftest import Ask

SOURCE = Path(__file__).resolve().parents[2] / "src"
HEAVY = {"dp_accounting", "jinja2", "matplotlib", "numpy", "pydantic", "scipy", "torch"}
PROCESSOR_SECONDS = 1.0


def paths(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command below this one, itself first."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            yield from paths(below, (*words, word))


EVERY = [*paths(privet), *(("account", part) for part in _PARTS)]


def test_every_verb_has_been_found() -> None:
    assert {("plan",), ("train",), ("recipes", "ls"), ("account", "total")} <= set(EVERY)
    assert len(EVERY) > 15


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_takes_less_than_a_second_and_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom privet.cli.console import run\nfrom privet.cli.main import privet\n"
        f"code = run(privet, {[*words, '--help']!r})\n"
        "print('MODULES', *sorted({name.partition('.')[0] for name in sys.modules}))\nsys.exit(code)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    assert process.stdout is not None
    with process.stdout as stream:
        printed = stream.read()
    # processor time of this one process: on a busy machine the clock on the wall tells of its other work
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert set(printed.rpartition("MODULES")[2].split()) & HEAVY == set()
    assert used.ru_utime + used.ru_stime < PROCESSOR_SECONDS


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_reads_well_at_80_columns(ask: Ask, words: tuple[str, ...]) -> None:
    answer = ask(*words, "--help")
    lines = answer.out.splitlines()
    assert answer.code == 0
    assert answer.err == ""
    assert max(len(line) for line in lines) <= 80
    assert not any(line.endswith((" ", "...")) for line in lines[1:])  # nothing is cut off
    assert lines[0].startswith(f"Usage: {' '.join(['privet', *words])} ")
    assert lines[2].startswith("  ")
    assert len(lines[2].split()) > 2, "a sentence says what the command does"
    # an example is a command that exists, so that it can be typed as it stands
    known = set(EVERY)
    for example in re.findall(r"^ {4}privet (.+)$", answer.out, flags=re.MULTILINE):
        assert (example.split()[0],) in known, example
