"""The benchmark of data loading trains in three ways on the same images."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import loading

SMALL = "--device cpu --crop 16 --width 16 --images 16 --logical 8 --physical 4 --workers 1 --steps 1 --rounds 1"


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def test_the_three_ways_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    arguments = [*SMALL.split(), "--delay", "0.001", "--json-file", str(path)]
    result = CliRunner().invoke(loading.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [row["way"] for row in rows] == ["in memory", "1 workers", "no workers"]
    assert rows[0]["share"] == 1.0
    assert all(row["images_per_second"] > 0 for row in rows)
    assert multiprocessing.active_children() == []


def test_images_in_memory_are_those_in_the_files(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    files = loading.write_jpegs(tmp_path, number=3, size=32)
    images = loading.Jpegs(files=files, crop=16)
    pixels, labels = loading.in_memory(images, torch.device("cpu")).tensors
    assert pixels.shape == (3, 3, 16, 16)
    assert labels.tolist() == [0, 1, 2]
    assert torch.equal(pixels[2], images[2][0])
    assert not torch.equal(pixels[1], pixels[2])


def test_without_pillow_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(loading.main, SMALL.split())
    assert result.exit_code == 1
    assert "Pillow" in result.output
