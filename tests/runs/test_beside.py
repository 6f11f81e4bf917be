"""Files beside a named file: consent and fingerprint cover those that it imports, and no other is run."""

from __future__ import annotations

import py_compile
from pathlib import Path

import pytest

from privet.errors import RecipeError
from privet.runs.consent import Code
from privet.runs.user_models import build_from, build_referenced

MAIN = """
from torch import nn
import first
from parts import second

def build():
    import lazily
    return nn.Linear(first.WIDTH, second.WIDTH + lazily.WIDTH)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    for name, text in {
        "mine.py": MAIN,
        "first.py": "WIDTH = 5\n",
        "lazily.py": "WIDTH = 1\n",
        "other.py": "1 / 0\n",
        "parts/__init__.py": "",
        "parts/second.py": "from .deep import third\nfrom . import fourth\nWIDTH = third.WIDTH + fourth.WIDTH\n",
        "parts/deep/third.py": "import torch\nWIDTH = 1\n",
        "parts/fourth.py": "WIDTH = 1\n",
        "parts/unused.py": "1 / 0\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def code_of(folder: Path) -> Code:
    return Code.read(f"{folder / 'mine.py'}:build")


def test_files_that_are_imported_are_found_without_running_any(folder: Path) -> None:
    assert list(code_of(folder).beside) == [
        "first.py", "lazily.py", "parts/__init__.py", "parts/deep/third.py", "parts/fourth.py", "parts/second.py",
    ]  # fmt: skip
    model = build_from(code_of(folder), f"{folder / 'mine.py'}:build")
    assert [tuple(value.shape) for value in model.parameters()] == [(3, 5), (3,)]
    assert not list(folder.rglob("__pycache__"))


@pytest.mark.parametrize(
    "place", ["mine.py", "first.py", "lazily.py", "parts/__init__.py", "parts/fourth.py", "parts/deep/third.py"]
)
def test_consent_ends_where_a_file_that_is_imported_changes(folder: Path, place: str) -> None:
    before = code_of(folder)
    before.allow()
    (folder / "other.py").write_text("not imported\n")
    code_of(folder).refuse_strangers()
    with (folder / place).open("a") as file:
        file.write("\nCHANGED = 1\n")
    assert code_of(folder).sha256 != before.sha256
    with pytest.raises(RecipeError, match="It was not run"):
        code_of(folder).refuse_strangers()


def test_a_file_that_changes_after_it_was_read_runs_as_it_was_read(folder: Path) -> None:
    code = code_of(folder)
    for place in ("mine.py", "first.py", "lazily.py", "parts/fourth.py"):
        (folder / place).write_text("1 / 0\n")
    build_from(code, f"{folder / 'mine.py'}:build")


@pytest.mark.parametrize(
    "line",
    [
        "import importlib; importlib.import_module('other')",
        "__import__('parts.unused')",
        "__import__('compiled')",
        "try:\n    __import__('other')\nexcept ImportError:\n    pass",
    ],
)
def test_what_no_import_statement_names_is_not_run(folder: Path, line: str) -> None:
    (folder / "source").write_text("1 / 0\n")
    py_compile.compile(str(folder / "source"), cfile=str(folder / "compiled.pyc"))
    (folder / "mine.py").write_text(f"{MAIN}\n{line}\n")
    with pytest.raises(RecipeError, match="nobody has agreed to run"):
        build_referenced(f"{folder / 'mine.py'}:build")


def test_a_file_of_the_same_name_in_another_folder_is_another_file(folder: Path, tmp_path: Path) -> None:
    build_referenced(f"{folder / 'mine.py'}:build")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "first.py").write_text("WIDTH = 9\n")
    (tmp_path / "elsewhere" / "mine.py").write_text(
        "from torch import nn\nimport first\ndef build():\n    return nn.Linear(first.WIDTH, 1)\n"
    )
    assert build_referenced(f"{tmp_path / 'elsewhere' / 'mine.py'}:build").in_features == 9


def test_a_folder_named_like_an_installed_package_hides_nothing(folder: Path) -> None:
    (folder / "numpy").mkdir()
    (folder / "mine.py").write_text(f"import numpy\nimport numpy.linalg\n{MAIN}")
    build_referenced(f"{folder / 'mine.py'}:build")


def test_too_many_files_and_impossible_names_are_refused(folder: Path) -> None:
    (folder / "first.py").write_text(f"A = {'1' * 4_000_001!r}\n")
    with pytest.raises(RecipeError, match="Install them as a package"):
        code_of(folder)
    with pytest.raises(RecipeError, match="no file"):
        Code.read("a\0b.py:build")
