from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from privet.errors import ArgumentError, DataError
from privet_research.reproduction import pieces, running, units
from privet_research.reproduction.entry import Entry, Profile, find_entry
from privet_research.reproduction.verdicts import Verdict
from privet_research.studies import catalogue
from privet_research.studies.study import Run, Study

ENTRY = Entry.model_validate(
    {
        "paper": "A (2020)",
        "title": "Table 1",
        "shows": "made-up rows",
        "studies": ["small"],
        "full_seeds": 4,
        "quick_seeds": 2,
        "claims": [{"says": "s", "measure": "accuracy", "at_least": 0.0, "quick": True}],
    }
)


class Runs:
    """A study that notes which seeds were run and may be interrupted."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.breaks_at: int | None = None
        self.error: type[BaseException] = KeyboardInterrupt

    def __call__(self, seeds: Sequence[int], device: object, quick: bool) -> Iterator[dict[str, Any]]:
        for seed in seeds:
            if seed == self.breaks_at:
                raise self.error("stop")
            self.seeds.append(seed)
            yield {"arm": "a", "seed": seed, "accuracy": 0.5 + seed / 100, "points": [[1, 2]], "quick": quick}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    study = Study(name="small", description="d", num_seeds=1, run=made, table=lambda rows: f"{len(rows)} rows\n")
    monkeypatch.setattr(catalogue, "STUDIES", {"small": study})
    return made


def choices(folder: Path, profile: Profile = Profile.FULL, **more: Any) -> running.Choices:
    return running.Choices(folder=folder, profile=profile, device="cpu", **more)


def silent(text: str) -> None:
    return None


def test_after_an_interruption_only_what_is_missing_runs(runs: Runs, tmp_path: Path) -> None:
    runs.breaks_at = 2
    with pytest.raises(KeyboardInterrupt):
        running.reproduce({"one": ENTRY}, choices(tmp_path), silent)
    assert runs.seeds == [0, 1]
    runs.breaks_at = None
    (made,) = running.reproduce({"one": ENTRY}, choices(tmp_path), silent)
    assert runs.seeds == [0, 1, 2, 3]
    assert [row["seed"] for row in made.rows] == [0, 1, 2, 3]
    running.reproduce({"one": ENTRY}, choices(tmp_path), silent)
    assert runs.seeds == [0, 1, 2, 3]


def test_a_part_that_can_go_on_loses_one_run_at_most(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resume(earlier: Sequence[dict[str, Any]]) -> Run:
        def run(seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[dict[str, Any]]:
            yield from earlier
            yield from runs(list(seeds)[len(earlier) :], device, quick)

        return run

    # Its first seed tunes for the others, so all seeds are one part.
    tuned = Study(
        name="small-tuned", description="d", num_seeds=1, run=resume([]), table=lambda rows: "t\n", resume=resume
    )
    monkeypatch.setattr(catalogue, "STUDIES", {"small-tuned": tuned})
    entry = ENTRY.model_copy(update={"studies": ["small-tuned"]})
    runs.breaks_at = 2
    with pytest.raises(KeyboardInterrupt):
        running.reproduce({"one": entry}, choices(tmp_path), silent)
    runs.breaks_at = 3
    with pytest.raises(KeyboardInterrupt):
        running.reproduce({"one": entry}, choices(tmp_path), silent)
    runs.breaks_at = None
    (made,) = running.reproduce({"one": entry}, choices(tmp_path), silent)
    assert runs.seeds == [0, 1, 2, 3]
    assert [row["seed"] for row in made.rows] == [0, 1, 2, 3]
    assert [path.name for path in (tmp_path / "full" / "rows" / "small-tuned").iterdir()] == ["seed-0-3.json"]


def test_more_seeds_later_keep_the_earlier_ones(runs: Runs, tmp_path: Path) -> None:
    running.reproduce({"one": ENTRY}, choices(tmp_path, num_seeds=1), silent)
    (made,) = running.reproduce({"one": ENTRY}, choices(tmp_path, num_seeds=3), silent)
    assert runs.seeds == [0, 1, 2]
    assert len(made.rows) == 3


def test_quick_and_full_rows_are_never_mixed(runs: Runs, tmp_path: Path) -> None:
    running.reproduce({"one": ENTRY}, choices(tmp_path, Profile.QUICK), silent)
    (made,) = running.reproduce({"one": ENTRY}, choices(tmp_path), silent)
    assert runs.seeds == [0, 1, 0, 1, 2, 3]
    assert {row["quick"] for row in made.rows} == {False}


def test_two_entries_share_the_units_of_one_study(runs: Runs, tmp_path: Path) -> None:
    other = ENTRY.model_copy(update={"where": {"seed": 1}})
    first, second = running.reproduce({"one": ENTRY, "two": other}, choices(tmp_path), silent)
    assert runs.seeds == [0, 1, 2, 3]
    assert (len(first.rows), len(second.rows)) == (4, 1)


def test_missing_data_is_a_reason_and_other_errors_are_errors(runs: Runs, tmp_path: Path) -> None:
    runs.breaks_at, runs.error = 0, DataError
    (made,) = running.reproduce({"one": ENTRY}, choices(tmp_path, num_seeds=1), silent)
    assert made.verdict == (Verdict.NOT_RUN, "stop")
    assert "Not run: stop" in (tmp_path / "full" / "one" / "table.md").read_text()
    runs.error = ArgumentError
    with pytest.raises(ArgumentError):
        running.reproduce({"one": ENTRY}, choices(tmp_path, num_seeds=1), silent)


def test_an_entry_without_studies_says_why(tmp_path: Path) -> None:
    entry = Entry(paper="p", title="t", shows="s", unavailable="the data are lost")
    (made,) = running.reproduce({"gone": entry}, choices(tmp_path), silent)
    assert made.line == "NOT RUN (the data are lost)"
    assert "the data are lost" in (tmp_path / "full" / "gone" / "table.md").read_text()


def test_files_hold_rows_table_verdict_commit_environment_and_time(runs: Runs, tmp_path: Path) -> None:
    running.reproduce({"one": ENTRY}, choices(tmp_path), silent)
    folder = tmp_path / "full" / "one"
    told = json.loads((folder / "verdict.json").read_text())
    assert (told["verdict"], told["commits"] != [], list(told["minutes"])) == ("HOLDS", True, ["cpu"])
    assert told["environments"][0]["device"] == "cpu"
    assert told["findings"][0]["num_seeds"] == 4
    assert len(json.loads((folder / "rows.json").read_text())["rows"]) == 4
    table = list(csv.DictReader(io.StringIO((folder / "rows.csv").read_text())))
    assert [row["seed"] for row in table] == ["0", "1", "2", "3"]
    assert "points" not in table[0]
    page = (folder / "table.md").read_text()
    assert "**HOLDS (all claims)**" in page
    assert "4 rows" in page


def test_a_file_of_other_rows_is_refused(runs: Runs, tmp_path: Path) -> None:
    running.reproduce({"one": ENTRY}, choices(tmp_path, num_seeds=1), silent)
    (path,) = (tmp_path / "full" / "rows" / "small").iterdir()
    path.write_text(path.read_text().replace('"full"', '"quick"'))
    with pytest.raises(DataError, match="does not hold the rows"):
        running.reproduce({"one": ENTRY}, choices(tmp_path, num_seeds=1), silent)


def test_a_study_that_tunes_on_its_first_seed_is_one_unit() -> None:
    (whole,) = units.units_of("sparsification-fashion-3", num_seeds=3, profile=Profile.FULL)
    assert whole.seeds == (0, 1, 2)
    assert len(units.units_of("feature-to-noise", num_seeds=3, profile=Profile.FULL)) == 3


def test_units_of_all_known_pieces_have_files_of_their_own(tmp_path: Path) -> None:
    for study in pieces._KNOWN:
        found = units.units_of(study, num_seeds=2, profile=Profile.FULL)
        assert len({unit.path(tmp_path) for unit in found}) == len(found) >= 2


@pytest.mark.slow
def test_workers_side_by_side_find_the_same_rows_as_one_alone(tmp_path: Path) -> None:
    chosen = {"clipping-table-2": find_entry("clipping-table-2")}
    alone, together = (
        running.reproduce(
            chosen, choices(tmp_path / str(workers), Profile.QUICK, num_seeds=2, num_workers=workers), silent
        )[0]
        for workers in (1, 2)
    )
    assert list(alone.rows) == list(together.rows)
    assert alone.verdict == together.verdict == (Verdict.HOLDS, "all claims")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("hidden-state-waste", "HOLDS (all claims)"),
        ("clipping-table-1", "UNDECIDED (9 HOLDS, 3 NOT RUN of 12 claims)"),
    ],
)
def test_the_quick_versions_of_exact_tables_hold(name: str, line: str, tmp_path: Path) -> None:
    (made,) = running.reproduce({name: find_entry(name)}, choices(tmp_path, Profile.QUICK), silent)
    assert made.line == line


def stored(folder: Path, quick: bool = False) -> None:
    folder.mkdir(parents=True)
    rows = [{"arm": "a", "seed": seed, "accuracy": 0.5} for seed in range(3)]
    (folder / "small.json").write_text(json.dumps({"study": "small", "quick": quick, "rows": rows}))


def test_rows_that_a_study_has_written_are_judged_without_a_run(runs: Runs, tmp_path: Path) -> None:
    stored(tmp_path / "results" / "a")
    chosen = choices(tmp_path / "out", source=tmp_path / "results")
    (made,) = running.reproduce({"one": ENTRY}, chosen, silent)
    assert runs.seeds == []
    assert (made.line, len(made.rows)) == ("HOLDS (all claims)", 3)
    assert "as `privet study` wrote them" in (tmp_path / "out" / "full" / "one" / "table.md").read_text()


def test_stored_rows_of_the_other_profile_do_not_count_and_doubled_ones_are_refused(runs: Runs, tmp_path: Path) -> None:
    stored(tmp_path / "results" / "a", quick=True)
    chosen = choices(tmp_path / "out", source=tmp_path / "results")
    (made,) = running.reproduce({"one": ENTRY}, chosen, silent)
    assert made.line == "NOT RUN (no rows for it)"
    for name in ("b", "c"):
        stored(tmp_path / "results" / name)
    with pytest.raises(DataError, match="same study"):
        running.reproduce({"one": ENTRY}, chosen, silent)
