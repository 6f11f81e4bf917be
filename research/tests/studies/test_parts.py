from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privet.errors import DataError
from privet_research.studies.parts import StudyFiles
from privet_research.studies.study import Study


def _row(arm: str, seed: int, seconds: float = 1.0) -> dict[str, Any]:
    return {"arm": arm, "seed": seed, "accuracy": 0.5, "seconds": seconds}


def _files(folder: Path, name: str = "small") -> StudyFiles:
    study = Study(
        name=name,
        description="d",
        num_seeds=1,
        run=lambda seeds, device, quick: iter(()),
        table=lambda rows: f"{len(rows)} rows\n",
    )
    return StudyFiles(folder=folder, study=study)


def test_parts_of_processes_side_by_side_are_put_together_in_the_order_of_their_names(tmp_path: Path) -> None:
    files = _files(tmp_path)
    files.keep([_row("a", 1), _row("b", 1)], quick=False, cost={"cpu": 2.0}, part="second")
    files.keep([_row("a", 0)], quick=False, cost={"cpu": 2.0}, part="first")
    assert not (tmp_path / "small.json").exists()
    rows, quick = files.merge()
    assert [(row["arm"], row["seed"]) for row in rows] == [("a", 0), ("a", 1), ("b", 1)]
    assert not quick
    files.keep(rows, quick=quick, cost={"cpu": 2.0})
    assert json.loads((tmp_path / "small.json").read_text())["rows"] == rows
    assert "3 rows" in (tmp_path / "small.md").read_text()
    assert (files.merged_cost(), files.kept_cost()) == ({"cpu": 4.0}, {"cpu": 2.0})


def test_a_run_that_two_parts_hold_is_refused_however_long_it_took(tmp_path: Path) -> None:
    files = _files(tmp_path)
    files.keep([_row("a", 0, seconds=1.0)], quick=False, cost={"cpu": 2.0}, part="one")
    files.keep([_row("a", 0, seconds=2.0)], quick=False, cost={"cpu": 2.0}, part="two")
    with pytest.raises(DataError, match="the same run: a, seed 0"):
        files.merge()


def test_quick_and_full_parts_do_not_mix(tmp_path: Path) -> None:
    files = _files(tmp_path)
    files.keep([_row("a", 0)], quick=False, cost={"cpu": 2.0}, part="one")
    files.keep([_row("a", 1)], quick=True, cost={"cpu": 2.0}, part="two")
    with pytest.raises(DataError, match=r"two\.json is quick"):
        files.merge()


def test_parts_that_are_missing_or_foreign_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no parts"):
        _files(tmp_path).merge()
    _files(tmp_path).keep([_row("a", 0)], quick=False, cost={"cpu": 2.0}, part="one")
    (tmp_path / "other.parts").mkdir()
    (tmp_path / "small.parts" / "one.json").rename(tmp_path / "other.parts" / "one.json")
    with pytest.raises(DataError, match="not a part of the study 'other'"):
        _files(tmp_path, "other").merge()
    with pytest.raises(DataError, match="letters"):
        _files(tmp_path).keep([], quick=False, cost={"cpu": 2.0}, part="../up")
