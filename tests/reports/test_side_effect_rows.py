from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from privet.effects.fairness import Attribute, fairness_report
from privet.effects.groups import AttributeReport, DecisionDisparity, FairnessReport, SourceRow
from privet.effects.radii import RadiusPoint, RobustnessReport, WeightGrowth, wilson_interval
from privet.effects.reliability import Interval
from privet.errors import CheckpointError
from privet.reports.content import gather, read_fairness, read_robustness
from privet.reports.run_report import render
from privet.reports.side_effect_plots import group_plot, radius_plot
from privet.reports.side_effect_rows import gap_rows, group_rows, growth_sentence, radius_rows, source_rows
from privet.runs.run_files import RunFiles
from privet.training.predictions import Predictions
from tests.reports.conftest import MakeRun

HOSTILE = "<script>alert(1)</script>"
GROWTH = WeightGrowth(measured=10.0, from_noise=5.0)
ROBUSTNESS = RobustnessReport(
    norm="largest change",
    num_examples=100,
    num_steps=20,
    num_restarts=2,
    points=tuple(
        RadiusPoint(radius=radius, accuracy=wilson_interval(right, 100)) for radius, right in ((0.0, 90), (0.1, 40))
    ),
)


@pytest.fixture(scope="module")
def fairness() -> FairnessReport:
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=200)
    predictions = Predictions.from_logits(np.eye(2)[labels] + generator.normal(size=(200, 2)), labels)
    attribute = Attribute(name="sex", group_names=("Female", HOSTILE, "nobody"), codes=np.tile([0, 1], 100))
    report = fairness_report(predictions, class_names=("no", "yes"), attributes=[attribute], num_resamples=20)
    return FairnessReport(
        num_examples=report.num_examples,
        attributes=report.attributes,
        decisions=(
            DecisionDisparity(
                attribute="sex",
                demographic_parity=0.2,
                equalized_odds=0.1,
                positive_class="yes",
                demographic_parity_interval=Interval(value=0.2, low=0.1, high=0.3),
            ),
        ),
        sources=(
            SourceRow(
                attribute="sex", name="Female", share=0.5, clip_factor=1.0, features=2.0, clipping=1.5, imbalance=1.0
            ),
        ),
    )


def with_files(run: Path, folder: Path, fairness: FairnessReport) -> Path:
    shutil.copytree(run, folder)
    files = RunFiles(folder=folder)
    files.fairness.write_text(json.dumps(fairness.to_dict()))
    growth = {"measured": 10.0, "from_noise": 5.0}
    files.robustness.write_text(json.dumps({"report": ROBUSTNESS.to_dict(), "growth": growth}))
    return folder


def test_a_report_shows_groups_and_attacks_when_the_folder_holds_them(
    make_run: MakeRun, tmp_path: Path, fairness: FairnessReport
) -> None:
    content = gather(with_files(make_run(), tmp_path / "run", fairness))
    assert content.growth == GROWTH
    page = render(content)
    assert 'id="side-effects"' in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for text in ("Accuracy under attack", "x 3.00", "25 % of the squared norm", "no examples"):
        assert text in page


def test_groups_are_drawn_by_name_only_if_the_data_set_declares_it(fairness: FairnessReport) -> None:
    found: AttributeReport = fairness.attributes[1]
    plot = group_plot(found, number=2, known_names={"sex", "Female"})
    assert plot.title == "Accuracy by sex"
    assert "Female" in plot.svg
    assert "group 2" in plot.svg
    assert "alert" not in plot.svg
    assert group_plot(found, number=2, known_names=()).title == "Accuracy by column 2"
    assert [row[2] for row in plot.rows] == [group.accuracy.value for group in found.groups]


def test_rows_say_value_interval_and_worst_group(fairness: FairnessReport) -> None:
    rows = group_rows(fairness.attributes[1])
    assert [row[1] for row in rows] == ["100", "100", "0"]
    gaps = gap_rows(fairness)
    assert gaps[3][0] == "accuracy, by sex"
    assert "% of resamples" in gaps[3][4]
    assert ("share decided 'yes', by sex", "20.0 %", "10.0 % to 30.0 %", "200", "") in gaps
    assert ("true or false positive rate, by sex", "10.0 %", "not computed", "200", "") in gaps
    assert all(" to " in row[7] for row in rows if row[1] != "0")
    assert source_rows(fairness) == [("sex", "Female", "x 2.00", "x 1.50", "x 1.00", "x 3.00")]
    assert radius_rows(ROBUSTNESS)[1][:2] == ("0.1000", "40.0 %")
    assert "norm 10.0" in growth_sentence(GROWTH)
    assert radius_plot(ROBUSTNESS).rows[0][:2] == (0.0, 0.9)


@pytest.mark.parametrize("text", ["{}", "[]", '{"report": 3}', '{"report": {}, "growth": {"measured": -1}}', "{"])
def test_damaged_files_are_refused(text: str, tmp_path: Path) -> None:
    files = RunFiles(folder=tmp_path)
    assert read_fairness(files) is None
    assert read_robustness(files) is None
    files.fairness.write_text(text)
    files.robustness.write_text(text)
    for read in (read_fairness, read_robustness):
        with pytest.raises(CheckpointError):
            read(files)
    files.robustness.write_text(json.dumps({"report": ROBUSTNESS.to_dict(), "growth": {}}))
    with pytest.raises(CheckpointError):
        read_robustness(files)
