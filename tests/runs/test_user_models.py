"""Networks named by the function that builds them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from privet.errors import RecipeError
from privet.runs.user_models import build_referenced, is_reference

CODE = """
from torch import nn
import neighbour

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(neighbour.WIDTH, 2)

def build():
    return Small()

def wants(width):
    return nn.Linear(width, 2)

def other():
    return 3

number = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 5\n")
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize("name", ["build", "Small"])
def test_a_function_or_class_of_a_file_is_called(file: Path, name: str) -> None:
    before = list(sys.path)
    model = build_referenced(f"{file}:{name}")
    assert [tuple(value.shape) for value in model.parameters()] == [(2, 5), (2,)]
    assert sys.path == before


def test_a_function_of_an_installed_module_is_called() -> None:
    assert type(build_referenced("torch.nn:Identity")).__name__ == "Identity"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wants", "without arguments"),
        ("other", "returned int"),
        ("number", "no function or class"),
        ("missing", "no function or class"),
    ],
)
def test_what_does_not_build_a_network_is_refused_by_name(file: Path, name: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        build_referenced(f"{file}:{name}")


def test_code_that_is_not_there_or_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no file"):
        build_referenced(f"{tmp_path / 'absent.py'}:build")
    with pytest.raises(RecipeError, match="no module 'no_such_package'"):
        build_referenced("no_such_package.models:build")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(RecipeError, match="ZeroDivisionError"):
        build_referenced(f"{broken}:build")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.b:c", True), ("dir/a.py:c", True), ("C:\\a.py:c", True), ("dp_cnn", False), ("a:", False), (":c", False)],
    ids=["module", "file", "drive", "name", "no_function", "no_place"],
)
def test_a_reference_is_told_from_a_name(text: str, expected: bool) -> None:
    assert is_reference(text) is expected
