"""The benchmark of masks runs every arm and compares it with the step without a mask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from benchmarks import masks
from benchmarks.models import WORKLOADS, Images, Scale, Size


def test_every_arm_is_timed_beside_the_step_without_a_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Size(
        build=lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), data=Images(channels=3, side=8), batch_size=4
    )
    monkeypatch.setattr(masks, "_MODELS", {"small": small})
    file = tmp_path / "masks.json"
    found = CliRunner().invoke(masks.main, ["--rounds", "2", "--json-file", str(file)], catch_exceptions=False)
    assert found.exit_code == 0
    record = json.loads(file.read_text())
    arms = {row["arm"]: row["over_no_mask"] for row in record["rows"]}
    assert arms["no mask"] == 1.0
    assert {"rows, rate 0.9", "coordinates, rate 0.5", "the extra product alone"} <= set(arms)
    assert all(ratio > 0 for ratio in arms.values())
    assert record["command"].startswith("python -m benchmarks.masks")


def test_the_parts_of_a_mask_are_timed_alone_for_linear_maps_only() -> None:
    device = torch.device("cpu")
    assert masks._parts(WORKLOADS["vit_s"].sizes[Scale.TINY], device) == {}
    assert len(masks._parts(masks._MODELS["MLP 3072-1024-1024-10"], device)) == 2
