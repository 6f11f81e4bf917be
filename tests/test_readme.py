"""Every snippet of the README is run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from PIL import Image

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
    assert "NOT PRIVATE" not in printed


# What keeps a command short here without changing what it does.
SHORTER = {
    "train": ["--quiet"],
    "audit": ["--canaries", "200", "--rounds", "3"],
    "federated": ["--rounds", "1"],
}
SHORT_RUN = ["--set", "privacy.sampling.epochs=1", "--set", "training.evaluate_every=5"]
SCHEMA = """
train_size = 300
columns = [{ name = "age", low = 0, high = 100 }, { name = "y", categories = ["no", "yes"] }]
"""


def _own_data(folder: Path) -> None:
    rows = [f"{20 + place % 60},{'yes' if place % 60 > 30 else 'no'}" for place in range(300)]
    for name in ("my.csv", "test.csv"):
        (folder / name).write_text("\n".join(["age,y", *rows, ""]))
    (folder / "schema.toml").write_text(SCHEMA)
    for name, shade in (("dark", 20), ("light", 220)):
        (folder / "images" / name).mkdir(parents=True)
        for place in range(20):
            Image.new("L", (16, 16), shade + place).save(folder / "images" / name / f"{place}.png")


def test_shown_commands_run_in_the_order_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _own_data(tmp_path)
    assert len(COMMANDS) == 19
    for words in COMMANDS:
        arguments = words[1 : words.index(">") if ">" in words else None]
        arguments += SHORTER.get(arguments[0], []) + (SHORT_RUN if arguments[:2] == ["train", "demo"] else [])
        result = CliRunner().invoke(privet, arguments)
        asks_for_schema = words[1:3] == ["train", "my.csv"] and "--schema" not in words
        assert (result.exit_code != 0) == asks_for_schema, (words, result.output)
        assert not asks_for_schema or "must be declared" in str(result.exception)
        if ">" in words:
            (tmp_path / words[-1]).write_text(result.output)
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 10_000
    assert "[table]" in (tmp_path / "recipe.toml").read_text()


def test_every_extra_of_the_package_is_explained() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = README.split("## Install")[1].split("## ")[0]
    told = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert told == set(extras)


def test_make_targets_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_linked_files_exist() -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", README) + re.findall(
        r"`((?:examples|docs)/[^`]+|[A-Z]+\.md)`", README
    ):
        assert (ROOT / link).exists(), link


def test_example_from_scratch_keeps_its_promise() -> None:
    script = ROOT / "examples" / "dpsgd_from_scratch.py"
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=300)
    before, after, accuracy = result.stdout.splitlines()
    assert before.split(": ", 1)[1].strip() == after.split(": ", 1)[1].strip()
    assert float(accuracy.split()[-1].rstrip("%")) > 80
    assert len(script.read_text().splitlines()) <= 130
