from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import versions


def test_processes_of_both_versions_alternate_and_the_ratio_is_of_speeds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    asked: list[str] = []

    def alone(version: Path, arguments: list[str]) -> float:
        asked.append(version.name)
        return 2.0 if version == old else 4.0

    monkeypatch.setattr(versions, "_alone", alone)
    path = tmp_path / "rows.json"
    arguments = ["--before", str(old), "--after", str(new), "--models", "mlp", "--device", "cpu", "--rounds", "3"]
    result = CliRunner().invoke(versions.main, [*arguments, "--json-file", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert asked == ["old", "new"] * 3
    assert json.loads(path.read_text(encoding="utf-8"))["rows"][0]["median"] == 0.5


def test_a_process_trains_with_the_package_of_the_folder_it_is_given() -> None:
    source = Path(versions.__file__).parents[1] / "src"
    arguments = ["--models", "mlp", "--device", "cpu", "--scale", "tiny", "--seconds", "0.01"]
    assert 0 < versions._alone(source, arguments) < 60
