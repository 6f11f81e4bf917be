"""Every snippet of the README is run as it stands."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from privet.cli.main import privet

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CONSOLE = "".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL))
COMMANDS = [line.split("#")[0].split() for line in re.findall(r"^privet .*$", CONSOLE, re.MULTILINE)]


def test_python_snippets_run_in_order_and_print_guarantees(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for snippet in PYTHON:
        exec(compile(snippet, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.count("-DP") == 5
    before, after = printed.splitlines()[:2]
    assert before == after
    assert before in README
    assert "NOT PRIVATE" not in printed


# What keeps a command short here without changing what it does.
SHORTER = {
    "train": ["--quiet"],
    "audit": ["--canaries", "200", "--rounds", "3"],
}
SHORT_RUN = ["--set", "privacy.sampling.epochs=1", "--set", "training.evaluate_every=5"]


def test_shown_commands_run_in_the_order_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) == 6
    for words in COMMANDS:
        arguments = words[1:]
        arguments += SHORTER.get(arguments[0], []) + (SHORT_RUN if arguments[:2] == ["train", "demo"] else [])
        result = CliRunner().invoke(privet, arguments)
        assert result.exit_code == 0, (words, result.output)
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 10_000


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
    assert README.count("](docs/images/") == 1


def test_the_bars_of_the_picture_are_in_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    rows = importlib.import_module("front_picture").speeds()
    assert len(rows) == 8
    assert all(0 < rival < best and 0 < eager <= best for _, rival, eager, best in rows)


def test_every_extra_of_the_package_is_explained() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "install.md").read_text().split("## ")[0]
    told = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert told == set(extras)


def test_make_targets_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_linked_files_exist() -> None:
    files = r"`((?:examples|docs|research|results|scripts)/[^` ]*|[A-Z]+\.md)`"
    for link in re.findall(r"\]\((?!http)([^)]+)\)", README) + re.findall(files, README):
        assert (ROOT / link).exists(), link


def test_example_from_scratch_keeps_its_promise() -> None:
    script = ROOT / "examples" / "dpsgd_from_scratch.py"
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300)
    before, after, accuracy = result.stdout.splitlines()
    assert before.split(": ", 1)[1].strip() == after.split(": ", 1)[1].strip()
    assert float(accuracy.split()[-1].rstrip("%")) > 80
    assert len(script.read_text().splitlines()) <= 130
