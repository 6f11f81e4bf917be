from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from privet.errors import DependencyError
from privet_research.reproduction.entry import entries
from privet_research.reproduction.points import counts_in_words, points
from privet_research.reproduction.publications import PUBLICATIONS
from privet_research.studies import mask_tasks, noise_problems, noise_shape
from tests.cli.conftest import Ask


def test_the_list_has_a_line_for_every_table_and_figure(ask: Ask) -> None:
    found = ask("reproduce", "--list")
    assert found.code == 0
    words = " ".join(found.out.split())
    lines = found.out.splitlines()
    for name, entry in entries().items():
        assert any(line.split()[:1] == [name] for line in lines)
        assert entry.unavailable is None or " ".join(entry.unavailable.split()) in words


def test_the_list_fits_eighty_columns_and_names_the_publications(ask: Ask) -> None:
    found = ask("reproduce", "--list")
    assert max(len(line) for line in found.out.splitlines()) <= 80
    words = " ".join(found.out.split())
    assert [words.count(publication) for publication in PUBLICATIONS.values()] == [1] * len(PUBLICATIONS)


def test_the_points_are_listed_with_what_shows_them_or_what_they_lack(ask: Ask) -> None:
    found = ask("reproduce", "--points")
    words = " ".join(found.out.split())
    assert found.out.splitlines()[-1] == counts_in_words(points())
    for point in points():
        assert f"{point.state.value}: {point.says}" in words
        assert point.lacks is None or " ".join(point.lacks.split()) in words


def test_an_unknown_name_is_refused_with_the_nearest(ask: Ask) -> None:
    found = ask("reproduce", "cliping-table-2")
    assert found.code == 2
    assert "clipping-table-2" in found.err


@pytest.mark.parametrize("words", [(), ("--all", "clipping-table-2")], ids=["nothing", "both"])
def test_names_or_all_is_asked_for_and_not_both(ask: Ask, words: tuple[str, ...]) -> None:
    found = ask("reproduce", *words)
    assert found.code == 2
    assert "--list" in found.err


def test_a_device_that_is_not_there_is_an_error_of_the_command(ask: Ask, tmp_path: Path) -> None:
    found = ask("reproduce", "hidden-state-waste", "--device", "cuda:99", "-o", tmp_path / "out")
    assert found.code == 2
    assert not (tmp_path / "out").exists()


def test_why_parts_were_not_run_is_said_in_full_once(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVET_DATA", raising=False)
    found = ask("reproduce", "clipping-table-3", "--quick", "--device", "cpu", "-o", tmp_path)
    assert found.err.count("export PRIVET_DATA=FOLDER") == 2  # of MNIST and of CIFAR-10
    assert found.err.count("not run, for the same reason") >= 2


def test_a_name_of_which_nothing_can_be_run_is_a_failure_and_says_so(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRIVET_DATA", raising=False)
    found = ask("reproduce", "feature-noise-figure-2b", "--quick", "--device", "cpu", "-o", tmp_path)
    assert found.code == 1
    assert "NOT RUN (needs mnist: not run)" in found.out
    assert "error: nothing of feature-noise-figure-2b could run" in " ".join(found.err.split())


def test_rows_that_are_not_below_the_named_folder_are_a_failure(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = ask("reproduce", "hidden-state-waste", "--from", tmp_path / "empty", "-o", tmp_path / "out")
    assert found.code == 1
    assert "has no rows for hidden-state-waste" in " ".join(found.err.split())


def test_everything_that_can_be_run_here_may_be_nothing(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRIVET_DATA", raising=False)
    without_data = {"feature-noise-figure-2b": entries()["feature-noise-figure-2b"]}
    monkeypatch.setattr("privet_research.reproduction.entry.entries", lambda: without_data)
    found = ask("reproduce", "--all", "--quick", "--device", "cpu", "-o", tmp_path)
    assert found.code == 0
    assert "NOT RUN (needs mnist: not run)" in found.out


@pytest.mark.parametrize(
    "load",
    [noise_shape._digits, noise_problems.read_digits, lambda: mask_tasks.DIGITS.load(torch.device("cpu"))],
    ids=["noise_shape", "noise_problems", "mask_tasks"],
)
def test_a_missing_package_is_named_as_a_shell_takes_it(
    load: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DependencyError, match=r"pip install 'privet\[effects\]'"):
        load()


def test_a_figure_is_run_judged_and_drawn_and_then_kept(ask: Ask, tmp_path: Path) -> None:
    words = ("reproduce", "hidden-state-waste", "--quick", "--device", "cpu", "-o", tmp_path)
    found = ask(*words)
    assert found.code == 0
    assert "HOLDS (all claims)" in found.out
    assert found.out.rstrip().endswith(str(tmp_path / "quick" / "hidden-state-waste"))
    names = {path.name for path in (tmp_path / "quick" / "hidden-state-waste").iterdir()}
    assert {"rows.csv", "rows.json", "table.md", "verdict.json", "figure.png", "figure.svg"} <= names
    again = ask(*words)
    assert again.out == found.out
    assert "1 of 1 parts are kept already" in again.err


def test_several_names_get_one_table_of_verdicts(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVET_DATA", raising=False)
    words = ("reproduce", "hidden-state-waste", "feature-noise-figure-2b", "--quick", "--device", "cpu", "-o", tmp_path)
    found = ask(*words)
    assert found.code == 0
    assert "HOLDS (all claims)" in found.out
    assert "NOT RUN (needs mnist: not run)" in found.out
    summary = (tmp_path / "quick" / "README.md").read_text()
    assert "[hidden-state-waste](hidden-state-waste/table.md)" in summary
