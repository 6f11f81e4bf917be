from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from privet_research.studies import catalogue
from privet_research.studies.arms import LOCAL
from tests.cli.conftest import Ask


def test_without_a_name_all_studies_are_listed(ask: Ask) -> None:
    found = ask("study")
    assert found.code == 0
    for name in catalogue.STUDIES:
        assert name in found.out


def test_an_unknown_study_is_refused_with_the_nearest_name(ask: Ask) -> None:
    found = ask("study", "clipping-mnits")
    assert found.code == 2
    assert "clipping-mnist" in found.err


def test_a_study_keeps_its_rows_and_its_table(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(seeds: range, device: object, quick: bool) -> Iterator[dict[str, object]]:
        asked.append((list(seeds), quick))
        for seed in seeds:
            yield {"arm": LOCAL, "seed": seed, "accuracy": 0.5}

    study = catalogue.Study(
        name="small", description="d", num_seeds=3, run=run, table=lambda rows: f"{len(rows)} rows\n"
    )
    monkeypatch.setattr(catalogue, "STUDIES", {"small": study})
    assert ask("study", "small", "-o", tmp_path / "out", "--first-seed", "4", "--device", "cpu").out == "3 rows\n"
    assert ask("study", "small", "--quick", "--device", "cpu").out == "1 rows\n"
    assert asked == [([4, 5, 6], False), ([0], True)]
    kept = json.loads((tmp_path / "out" / "small.json").read_text())
    assert [row["seed"] for row in kept["rows"]] == [4, 5, 6]
    assert "3 rows" in (tmp_path / "out" / "small.md").read_text()


def test_parts_made_side_by_side_are_merged_by_the_command(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(seeds: range, device: object, quick: bool) -> Iterator[dict[str, object]]:
        return iter([{"arm": LOCAL, "seed": seed, "accuracy": 0.5} for seed in seeds])

    study = catalogue.Study(
        name="small", description="d", num_seeds=1, run=run, table=lambda rows: f"{len(rows)} rows\n"
    )
    monkeypatch.setattr(catalogue, "STUDIES", {"small": study})
    for seed in ("0", "1"):
        found = ask("study", "small", "-o", tmp_path, "--part", f"s{seed}", "--first-seed", seed, "--device", "cpu")
        assert found.out == "1 rows\n"
    assert not (tmp_path / "small.json").exists()
    assert ask("study", "small", "-o", tmp_path, "--merge").out == "2 rows\n"
    assert len(json.loads((tmp_path / "small.json").read_text())["rows"]) == 2
    assert ask("study", "small", "--merge").code == 2


def test_changes_reach_a_study_that_takes_them_and_are_refused_by_one_that_does_not(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vary(changes: Sequence[str]) -> Callable[..., Iterator[dict[str, object]]]:
        return lambda seeds, device, quick: iter([{"arm": "+".join(changes), "seed": 0, "accuracy": 0.5}])

    def table(rows: Sequence[dict[str, object]]) -> str:
        return f"{[row['arm'] for row in rows]}\n"

    plain = catalogue.Study(name="plain", description="d", num_seeds=1, run=vary(["none"]), table=table)
    monkeypatch.setattr(catalogue, "STUDIES", {"plain": plain, "varied": replace(plain, name="varied", vary=vary)})
    changes = ("--set", "rank=8,16", "--set", "rate=1", "--device", "cpu")
    assert ask("study", "varied", *changes).out == "['rank=8,16+rate=1']\n"
    refused = ask("study", "plain", *changes)
    assert refused.code == 2
    assert "no settings that can be changed" in refused.err


def test_an_interrupted_study_goes_on_from_the_rows_it_kept(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(seeds: Sequence[int]) -> Iterator[dict[str, object]]:
        return iter([{"arm": LOCAL, "seed": seed, "accuracy": 0.5} for seed in seeds])

    def resume(earlier: Sequence[dict[str, object]]) -> Callable[..., Iterator[dict[str, object]]]:
        return lambda seeds, device, quick: iter([*earlier, *rows(list(seeds)[len(earlier) :])])

    def table(rows: Sequence[dict[str, object]]) -> str:
        return f"{[row['seed'] for row in rows]}\n"

    plain = catalogue.Study(
        name="small", description="d", num_seeds=3, run=lambda seeds, device, quick: rows([7]), table=table
    )
    monkeypatch.setattr(catalogue, "STUDIES", {"small": plain})
    assert ask("study", "small", "-o", tmp_path, "--device", "cpu").out == "[7]\n"
    assert "cannot go on" in ask("study", "small", "-o", tmp_path, "--resume", "--device", "cpu").err
    monkeypatch.setattr(catalogue, "STUDIES", {"small": replace(plain, resume=resume)})
    before = json.loads((tmp_path / "small.json").read_text())["cost"]["cpu"]
    assert ask("study", "small", "-o", tmp_path, "--resume", "--device", "cpu").out == "[7, 1, 2]\n"
    assert json.loads((tmp_path / "small.json").read_text())["cost"]["cpu"] >= before
    assert "no quick rows" in ask("study", "small", "-o", tmp_path, "--resume", "--quick", "--device", "cpu").err
    assert ask("study", "small", "--resume").code == 2
    assert ask("study", "small", "-o", tmp_path, "--resume", "--set", "a=1").code == 2
