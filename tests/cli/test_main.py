from __future__ import annotations

import importlib.metadata
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from privet import __version__
from privet.cli.main import _VERBS, ENTRY_POINTS
from tests.cli.conftest import Ask

SOURCE = Path(__file__).resolve().parents[2] / "src"


def in_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )


def loaded_by(*args: str) -> set[str]:
    code = (
        "import sys\nfrom privet.cli.console import run\nfrom privet.cli.main import privet\n"
        f"code = run(privet, {list(args)!r})\n"
        "print('MODULES', *sorted({name.partition('.')[0] for name in sys.modules}))\nsys.exit(code)"
    )
    found = in_process(code)
    assert found.returncode == 0, found.stderr
    return set(found.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("plan", "-h"), ("train", "-h"), ("report", "-h")])
def test_help_loads_nothing_heavy(args: tuple[str, ...]) -> None:
    assert loaded_by(*args) & {"numpy", "scipy", "torch", "dp_accounting", "pydantic", "matplotlib"} == set()


def test_planning_loads_no_torch_and_answers_in_time() -> None:
    # processor time: on a busy machine the clock on the wall tells of its other work
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "torch" not in loaded_by("plan", "demo")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 6


@pytest.mark.parametrize(
    "args", [("recipes", "ls"), ("account", "--rate=0.1", "--steps=5", "--epsilon=1", "--delta=1e-5")]
)
def test_accounting_and_listing_load_no_torch(args: tuple[str, ...]) -> None:
    assert "torch" not in loaded_by(*args)


@pytest.mark.parametrize(
    "path", [(), *[(verb,) for verb in _VERBS], *[("recipes", verb) for verb in ("ls", "show", "copy")]]
)
def test_every_help_page_fits_a_terminal_and_shows_how_to_begin(ask: Ask, path: tuple[str, ...]) -> None:
    for option in ("-h", "--help"):
        answer = ask(*path, option)
        assert answer.code == 0
        assert max(len(line) for line in answer.out.splitlines()) <= 80
        assert "Example" in answer.out or "Begin with" in answer.out
        assert "\b" not in answer.out


def test_the_version_is_the_package_s(ask: Ask) -> None:
    assert __version__ in ask("--version").out


def test_an_unknown_verb_is_wrong_usage_and_the_nearest_is_named(ask: Ask) -> None:
    answer = ask("trian")
    assert answer.code == 2
    assert "Did you mean 'train'?" in answer.err
    assert answer.out == ""


def test_an_unknown_option_is_wrong_usage(ask: Ask) -> None:
    assert ask("plan", "demo", "--fast").code == 2


def test_errors_are_one_line_without_a_trace(ask: Ask) -> None:
    answer = ask("plan", "no_such_recipe")
    assert answer.code == 2
    assert answer.err.startswith("error: There is no recipe 'no_such_recipe'.")
    assert "Traceback" not in answer.err


def test_debug_shows_the_trace(ask: Ask) -> None:
    answer = ask("--debug", "plan", "no_such_recipe")
    assert answer.code == 2
    assert "Traceback" in answer.err


def test_output_that_is_no_terminal_has_no_colours(ask: Ask) -> None:
    assert "\x1b" not in ask("recipes", "ls").out


def test_a_reader_that_goes_away_causes_no_complaint() -> None:
    code = "from privet.cli.main import main; import sys; sys.argv = ['privet', 'plan', 'demo']; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=30) in (0, 1)
    assert error == ""


@pytest.mark.parametrize("verb", ["study", "reproduce"])
@pytest.mark.parametrize("words", [(), ("clipping-clusters", "--quick", "-o", "folder")], ids=["alone", "arguments"])
def test_a_verb_of_a_missing_distribution_says_how_to_install_it(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, verb: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    answer = ask(verb, *words)
    assert answer.code == 1
    assert answer.out == ""
    assert f"'privet {verb}' is part of privet-research, which is not installed." in answer.err
    assert "pip install --editable research" in answer.err


def test_a_verb_of_an_installed_distribution_is_found_through_its_entry_point(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metadata = tmp_path / "laboratory-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: laboratory\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nstudy = laboratory_of_a_test:study\n")
    (tmp_path / "laboratory_of_a_test.py").write_text(
        "import click\n\n@click.command()\n@click.argument('name')\n"
        "def study(name):\n    click.echo(f'studied {name}')\n    return 7\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    answer = ask("study", "noise")
    assert (answer.code, answer.out) == (7, "studied noise\n")


def test_the_verbs_of_other_distributions_are_in_the_help_and_in_suggestions(ask: Ask) -> None:
    assert "privet-research" in ask("--help").out
    assert "Did you mean 'study'?" in ask("stduy").err
