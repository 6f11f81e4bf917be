from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from privet.datasets.columns import WINE_RED
from privet.effects.reliability import Binning, CalibrationReport
from privet.errors import CheckpointError, RecipeError
from privet.runs import resuming, runner
from privet.runs.evaluation.confidence_and_membership import examine_calibration, examine_membership
from privet.runs.recipes.recipe import Recipe
from privet.runs.run_files import RunFiles


def test_calibration_is_that_of_the_stored_model_and_is_kept_for_the_report(
    tiny: Callable[..., Recipe], run_folder: Path
) -> None:
    outcome = runner.train(tiny(), run_folder)
    report = examine_calibration(run_folder, device="cpu", num_bins=10, binning=Binning.EQUAL_MASS)
    assert outcome.metrics is not None
    accuracy, loss = outcome.metrics.measures
    assert report.accuracy.value == accuracy.value
    assert report.negative_log_likelihood.value == pytest.approx(loss.value, rel=1e-4)
    assert len(report.reliability.bins) == 10
    kept = json.loads(RunFiles(folder=run_folder).calibration.read_text())
    assert CalibrationReport.from_dict(kept) == report


def test_attacks_are_held_against_what_the_ledger_allows(tiny: Callable[..., Recipe], run_folder: Path) -> None:
    runner.train(tiny(), run_folder)
    reports = examine_membership(run_folder, device="cpu")
    assert [report.attack.split(",")[0] for report in reports] == 2 * ["loss threshold", "logistic regression"]
    assert ["never trained" in report.attack for report in reports] == [False, False, True, True]
    for report in reports:
        assert 0.5 < report.area_limit < 1
        assert report.area.low < report.area_limit
        assert not any(point.exceeds_limit for point in report.points)
    assert len(json.loads(RunFiles(folder=run_folder).membership.read_text())["attacks"]) == 4


def test_figures_of_private_data_are_returned_and_not_kept(tiny: Callable[..., Recipe], run_folder: Path) -> None:
    runner.train(tiny("data_is_public=false", "training.evaluate_every="), run_folder)
    examine_calibration(run_folder, device="cpu")
    examine_membership(run_folder, device="cpu")
    files = RunFiles(folder=run_folder)
    assert not files.calibration.exists()
    assert not files.membership.exists()


def test_a_regression_has_no_confidence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    regression = SimpleNamespace(dataset="wine_red", info=WINE_RED)
    monkeypatch.setattr(resuming, "stored_recipe", lambda files: regression)
    for examine in (examine_calibration, examine_membership):
        with pytest.raises(RecipeError, match="regression"):
            examine(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        examine_calibration(tmp_path)
