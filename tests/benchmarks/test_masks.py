"""The benchmark of masks runs every arm and compares it with the step without a mask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from torch import nn

from benchmarks import masks


def test_every_arm_is_timed_beside_the_step_without_a_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), 4)
    monkeypatch.setattr(masks, "_MODELS", {"small": small})
    file = tmp_path / "masks.json"
    found = CliRunner().invoke(masks.main, ["--rounds", "2", "--json-file", str(file)], catch_exceptions=False)
    assert found.exit_code == 0
    record = json.loads(file.read_text())
    arms = {row["arm"]: row["over_no_mask"] for row in record["rows"]}
    assert arms["no mask"] == 1.0
    assert {"rows, rate 0.9", "coordinates, rate 0.5"} <= set(arms)
    assert all(ratio > 0 for ratio in arms.values())
    assert record["command"].startswith("python -m benchmarks.masks")
