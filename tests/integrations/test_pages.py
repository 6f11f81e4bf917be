"""The pages about other libraries run here, where those libraries are, and change as few lines as they say."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.docs_blocks import blocks
from tests.test_docs import DOCS, elsewhere, run_page

__all__ = ["elsewhere"]
MODULES = {"lightning": "lightning", "scikit-learn": "sklearn", "tracking": "tensorboard"}


@pytest.mark.filterwarnings("ignore")  # other libraries give advice by warnings
@pytest.mark.parametrize("page", MODULES)
def test_the_code_of_a_page_runs(page: str, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(MODULES[page])
    run_page(DOCS / f"{page}.md", capfd)


def changed_lines(before: str, after: str) -> tuple[int, int]:
    """Return how many lines are taken out and put in."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    return sum(line.startswith("-") for line in lines), sum(line.startswith("+") for line in lines)


def shown(page: Path) -> list[str]:
    """Return the Python blocks of a page, and the lines of its diffs."""
    return [block.code for block in blocks(page) if block.language == "python"]


def test_a_script_of_opacus_becomes_privets_by_the_lines_that_its_page_shows() -> None:
    page = DOCS / "from-opacus.md"
    before, after, *_ = shown(page)
    (diff,) = [block.code for block in blocks(page) if block.language == "diff"]
    found = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    assert diff.splitlines() == [line for line in found if line.startswith(("+", "-"))]
    assert changed_lines(before, after) == (3, 4)


def test_a_lightning_script_becomes_private_by_at_most_six_lines() -> None:
    before, after, *_ = shown(DOCS / "lightning.md")
    assert changed_lines(before, after) == (4, 6)
    (diff,) = [block.code for block in blocks(DOCS / "lightning.md") if block.language == "diff"]
    told = [line for line in diff.splitlines() if line.startswith(("+", "-"))]
    found = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    assert told == [line for line in found if line.startswith(("+", "-"))]
