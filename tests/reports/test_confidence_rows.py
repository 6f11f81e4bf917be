from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from privet.attacks.membership import MembershipScores
from privet.attacks.membership_verdict import AttackLimit, MembershipReport, membership_report
from privet.effects.confidence import calibration_report
from privet.effects.reliability import CalibrationReport
from privet.errors import CheckpointError
from privet.reports.confidence_plots import reliability_plot, roc_plot
from privet.reports.confidence_rows import confidence_rows, membership_rows
from privet.reports.content import gather, read_calibration, read_membership
from privet.reports.run_report import render
from privet.runs.run_files import RunFiles
from privet.training.predictions import Predictions
from privet.vocabulary import Adjacency
from tests.reports.conftest import MakeRun

EVENT = GaussianDpEvent(1.0)


@pytest.fixture(scope="module")
def calibration() -> CalibrationReport:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(400, 4)) * 3
    labels = np.where(generator.random(400) < 0.5, logits.argmax(1), 0)
    return calibration_report(Predictions.from_logits(logits, labels), num_resamples=20)


def attack(name: str, mu: float) -> MembershipReport:
    generator = np.random.default_rng(1)
    scores = MembershipScores(
        attack=name, members=generator.normal(size=2000) + mu, non_members=generator.normal(size=2000)
    )
    return membership_report(scores, AttackLimit(event=EVENT, adjacency=Adjacency.ADD_REMOVE))


def with_files(run: Path, folder: Path, calibration: CalibrationReport, reports: list[MembershipReport]) -> Path:
    shutil.copytree(run, folder)
    files = RunFiles(folder=folder)
    files.calibration.write_text(json.dumps(calibration.to_dict()))
    files.membership.write_text(json.dumps({"attacks": [report.to_dict() for report in reports]}))
    return folder


def test_a_report_shows_confidence_and_attacks_when_the_folder_holds_them(
    make_run: MakeRun, tmp_path: Path, calibration: CalibrationReport
) -> None:
    hostile = "<script>alert(1)</script>"
    content = gather(with_files(make_run(), tmp_path / "run", calibration, [attack(hostile, 0.0)]))
    page = render(content)
    assert 'id="examination"' in page
    assert "expected calibration error, 15 bins of equal width" in page
    assert "members found at 0.1 % false alarms" in page
    assert page.count("<h3>Membership attacks, on logarithmic axes</h3>") == 1
    # A name from a file is escaped in the table, and never drawn.
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "attack 1" in page
    assert 'id="examination"' not in render(replace(content, calibration=None, membership=()))


@pytest.mark.parametrize("content", ["{}", "[]", '{"attacks": [{}]}', "not json"], ids=["empty", "list", "row", "text"])
def test_damaged_files_are_named(tmp_path: Path, content: str) -> None:
    files = RunFiles(folder=tmp_path)
    for path, read in ((files.calibration, read_calibration), (files.membership, read_membership)):
        path.write_text(content)
        with pytest.raises(CheckpointError, match=path.name):
            read(files)


def test_the_reliability_diagram_marks_both_kinds_of_error_and_keeps_its_numbers(
    calibration: CalibrationReport,
) -> None:
    plot = reliability_plot(calibration)
    for word in ("over-confident", "under-confident", "accuracy", "calibrated"):
        assert f">{word}<" in plot.svg
    assert len(plot.rows) == 15
    assert plot.svg == reliability_plot(calibration).svg


def test_pictures_take_their_colours_from_the_page_and_share_no_names(calibration: CalibrationReport) -> None:
    pictures = [
        reliability_plot(calibration).svg,
        roc_plot([attack("loss threshold", 0.5)], EVENT, Adjacency.ADD_REMOVE).svg,
    ]
    names = [set(re.findall(r'id="([^"]+)"', picture)) for picture in pictures]
    assert not names[0] & names[1]
    for picture in pictures:
        assert "currentColor" in picture
        assert set(re.findall(r"url\(#([^)]+)\)", picture)) <= set(re.findall(r'id="([^"]+)"', picture))


def test_the_curve_of_an_attack_is_drawn_beside_its_limit() -> None:
    plot = roc_plot([attack("loss threshold", 0.5), attack("of my own", 0.2)], EVENT, Adjacency.ADD_REMOVE)
    for words in ("limit of every attack", "1: loss threshold", "attack 2", "guessing"):
        assert f">{words}<" in plot.svg
    assert {row[0] for row in plot.rows} == {0.0, 1.0, 2.0}


def test_rows_say_what_exceeds_its_limit() -> None:
    assert not any(row.exceeds for row in membership_rows(attack("fair", 0.5)))
    assert all(row.exceeds for row in membership_rows(attack("too good", 3.0)))


def test_a_limit_that_nothing_can_exceed_is_not_called_kept() -> None:
    found = attack("fair", 0.5)
    assert all(row.has_limit for row in membership_rows(found))
    boundless = replace(found, area_limit=1.0, points=tuple(replace(point, limit=1.0) for point in found.points))
    assert not any(row.has_limit for row in membership_rows(boundless))


def test_rows_of_confidence_hold_every_figure_with_its_interval(calibration: CalibrationReport) -> None:
    rows = confidence_rows(calibration)
    assert [row[0] for row in rows] == [
        "accuracy",
        "expected calibration error, 15 bins of equal width",
        "of this, over-confident",
        "of this, under-confident",
        "largest calibration error of a bin",
        "Brier score",
        "negative log-likelihood",
    ]
    assert all(" to " in row[2] for row in rows)
    assert [int(row[3]) for row in rows if row[0] != "largest calibration error of a bin"] == [400] * 6
    assert int(rows[4][3]) == calibration.reliability.worst_bin_size
    assert rows[1][1] == f"{100 * calibration.expected_error.value:.2f} %"


def test_a_figure_that_was_measured_already_has_one_interval(calibration: CalibrationReport) -> None:
    rows = confidence_rows(calibration, measured=["accuracy", "cross entropy"])
    assert len(rows) == 5
    assert not {"accuracy", "negative log-likelihood"} & {row[0] for row in rows}
    assert rows == confidence_rows(calibration)[1:-1]
