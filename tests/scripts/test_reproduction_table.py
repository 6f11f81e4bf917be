from __future__ import annotations

import importlib.util
from pathlib import Path

from privet_research.reproduction.entry import entries

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "reproduction_table.py"


def test_the_page_lists_every_table_and_figure_as_it_is_now() -> None:
    spec = importlib.util.spec_from_file_location("reproduction_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text("utf-8")
    assert module.with_list(text) == text, "run: python scripts/reproduction_table.py"
    assert all(f"| `{name}` |" in text for name in entries())
