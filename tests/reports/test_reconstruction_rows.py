from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privet.errors import CheckpointError
from privet.reports.content import RunContent, gather
from privet.reports.reconstruction_rows import read_rebuilt, rebuilt_note, rebuilt_rows
from privet.reports.run_report import render
from privet.runs.run_files import RunFiles
from tests.reports.conftest import MakeRun
from tests.reports.examined import examined
from tests.reports.test_run_report import Page


@pytest.fixture(scope="module")
def folder(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return examined(make_run(), tmp_path_factory.mktemp("rebuilt") / "run")


@pytest.fixture(scope="module")
def content(folder: Path) -> RunContent:
    return gather(folder)


def test_the_report_shows_the_pictures_and_every_figure_with_interval_and_count(content: RunContent) -> None:
    text = render(content)
    assert text.count('src="data:image/png;base64,') == 2
    words = Page(text).words
    assert "Pictures rebuilt from gradients" in words
    assert content.rebuilt is not None
    rows = rebuilt_rows(content.rebuilt)
    assert [row[1] for row in rows] == ["mean squared error", "PSNR, dB", "SSIM"] * 2
    assert all(" to " in row[3] and row[4] == "6" for row in rows)


def test_a_run_that_hides_nothing_says_so(content: RunContent) -> None:
    assert content.rebuilt is not None
    assert "noise of standard deviation 0.1 on every coordinate and a mask of rate 0.5" in rebuilt_note(content.rebuilt)
    assert "neither clips nor adds noise" in rebuilt_note(replace(content.rebuilt, noise_std=None))


def test_pictures_of_records_that_are_not_public_are_never_shown(
    make_run: MakeRun, tmp_path: Path, folder: Path
) -> None:
    private = examined(make_run("data_is_public=false", "training.evaluate_every="), tmp_path / "private")
    found = gather(private)
    assert found.rebuilt is None
    assert found.rebuilt_pictures is None
    assert "data:image/png" not in render(found)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    files = RunFiles(folder=tmp_path)
    assert read_rebuilt(files) is None
    files.reconstruction.write_text('{"rows": []}')
    with pytest.raises(CheckpointError, match=r"reconstruction\.json cannot be read"):
        read_rebuilt(files)
