"""The page on transformers: both of its scripts run, and few lines lie between them."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_blocks import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transformers.md"
FILES = {block.file: block.code for block in blocks(PAGE) if block.file is not None}


def test_at_most_six_lines_change() -> None:
    lines = {name: [line for line in FILES[name].splitlines() if line.strip()] for name in ("before.py", "after.py")}
    parts = difflib.SequenceMatcher(None, lines["before.py"], lines["after.py"]).get_opcodes()
    assert sum(max(b - a, d - c) for kind, a, b, c, d in parts if kind != "equal") <= 6
    shown = PAGE.read_text(encoding="utf-8").split("```diff\n")[1].split("```")[0].splitlines()
    removed, added = ([line[1:] for line in shown if line[0] == sign] for sign in "-+")
    assert [line for line in lines["before.py"] if line not in lines["after.py"]] == removed
    assert sorted(line for line in lines["after.py"] if line not in lines["before.py"]) == sorted(added)


@pytest.mark.parametrize("name", [pytest.param("before.py", marks=pytest.mark.slow), "after.py"])
def test_the_scripts_of_the_page_run(name: str, tmp_path: Path) -> None:
    for file, code in FILES.items():
        (tmp_path / file).write_text(code, encoding="utf-8")
    paths = [str(PAGE.parents[1] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    told = subprocess.run(
        [sys.executable, name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-2000:]
    assert (tmp_path / "tuned" / "model.safetensors").is_file()
