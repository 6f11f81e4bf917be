"""The example scripts run, and say what they promise."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_the_example_of_changing_clipping_spends_what_it_planned(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("changing_clipping", EXAMPLES / "changing_clipping.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(steps=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[-1]
    assert lines[1] == "step 0: threshold 0.100"
    assert "averaged weights" in lines[-2]
