from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from benchmarks import versions

SOURCE = Path(versions.__file__).parents[1] / "src"


class Scripted:
    """A worker whose steps take a time that is known."""

    def __init__(self, name: str, seconds: float, asked: list[str]) -> None:
        self._name, self._seconds, self._asked = name, seconds, asked

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        self._asked.append(self._name)
        return {"seconds": self._seconds}


def test_each_version_is_first_in_every_second_round_and_the_first_round_is_not_counted() -> None:
    asked: list[str] = []
    old, new = Scripted("old", 2.0, asked), Scripted("new", 4.0, asked)
    assert versions.take_turns(old, new, rounds=3, seconds=1.0) == [(2.0, 4.0)] * 3  # type: ignore[arg-type]
    assert asked == ["new", "old", "old", "new", "new", "old", "old", "new"]


def test_the_ratio_is_of_speeds() -> None:
    row = versions._row("mlp", [(2.0, 4.0), (3.0, 3.0), (2.0, 8.0)])
    assert (row["median"], row["ratios"], row["fastest"]) == (0.5, [0.25, 0.5, 1.0], 2.0 / 3.0)


def test_two_processes_train_with_the_packages_of_the_folders_they_are_given(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    arguments = ["--before", str(SOURCE), "--after", str(SOURCE), "--models", "mlp", "--device", "cpu"]
    arguments += ["--scale", "tiny", "--rounds", "2", "--seconds", "0.01", "--json-file", str(file)]
    result = CliRunner().invoke(versions.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert "failure" not in row
    assert len(row["pairs"]) == 2


def test_a_version_that_cannot_be_loaded_is_a_row_with_the_reason(tmp_path: Path) -> None:
    broken, file = tmp_path / "old", tmp_path / "rows.json"
    (broken / "privet").mkdir(parents=True)
    (broken / "privet" / "__init__.py").write_text("raise RuntimeError('an old wound')\n", encoding="utf-8")
    arguments = ["--before", str(broken), "--after", str(SOURCE), "--models", "mlp", "--device", "cpu"]
    result = CliRunner().invoke(versions.main, [*arguments, "--scale", "tiny", "--json-file", str(file)])
    assert result.exit_code == 0, result.output
    assert "an old wound" in json.loads(file.read_text(encoding="utf-8"))["rows"][0]["failure"]
