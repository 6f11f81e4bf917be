"""The notebooks in docs/ hold no outputs and run from their first cell to their last."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["choosing-epsilon", "first-private-model", "lora"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    for cell in cells(path):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_last_lines_have_something_to_show(path: Path) -> None:
    pytest.importorskip("matplotlib")
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        for number, cell in enumerate(cells(path)):
            if cell["cell_type"] == "code":
                run_cell("".join(cell["source"]), names, f"{path.name}, cell {number}")


def run_cell(source: str, names: dict[str, Any], where: str) -> None:
    """Run a cell as a kernel does: its last expression is shown."""
    tree = ast.parse(source)
    last = tree.body[-1]
    shows = isinstance(last, ast.Expr)
    body = ast.Module(body=tree.body[:-1] if shows else tree.body, type_ignores=[])
    exec(compile(body, where, "exec"), names)
    if shows:
        assert isinstance(last, ast.Expr)
        value = eval(compile(ast.Expression(last.value), where, "eval"), names)
        assert value is None or hasattr(value, "_repr_html_") or repr(value)
