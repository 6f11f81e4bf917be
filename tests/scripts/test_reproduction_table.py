from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "reproduction_table.py"


def test_the_pages_have_the_entries_and_the_verdicts_of_the_kept_rows() -> None:
    spec = importlib.util.spec_from_file_location("reproduction_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path, text in module.pages().items():
        assert path.read_text("utf-8") == text, f"{path.name}: run python scripts/reproduction_table.py"
