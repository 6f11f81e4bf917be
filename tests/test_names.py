"""Every name that a message, a docstring or a page gives the reader exists."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import privet

ROOT = Path(__file__).resolve().parent.parent
TEXTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "src/privet/**/*.py",
        "src/privet/**/*.toml",
        "src/privet/**/*.j2",
        "examples/**/*.py",
        "scripts/*.py",
    )
    for path in ROOT.glob(pattern)
)
SHORT = re.compile(r"(?<![\w.])pv\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
ROLE = re.compile(r"(?::(?:class|func|meth|mod|data|attr):`~?|``)privet\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`")


def exists(dotted: str) -> bool:
    """Follow a name from the package on; modules that need packages which are not installed are looked up only."""
    found: object = privet
    path = "privet"
    for part in dotted.split("."):
        path += f".{part}"
        if hasattr(found, part):
            found = getattr(found, part)
        elif isinstance(found, ModuleType) and importlib.util.find_spec(path) is not None:
            found = importlib.import_module(path)
        else:
            return False
    return True


@pytest.mark.parametrize("pattern", [SHORT, ROLE], ids=["pv.NAME", "references"])
def test_every_name_that_a_text_gives_the_reader_exists(pattern: re.Pattern[str]) -> None:
    named = {(path, name) for path in TEXTS for name in pattern.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    known = {name: exists(name) for name in {name for _, name in named}}
    assert sorted(f"{path.relative_to(ROOT)}: {name}" for path, name in named if not known[name]) == []


def test_a_name_that_does_not_exist_is_noticed() -> None:
    assert not exists("NoSuchPiece")
    assert not exists("Poisson.no_such_method")
    assert exists("Poisson.for_dataset")
