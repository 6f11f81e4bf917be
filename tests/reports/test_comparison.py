from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privet.attacks.membership_verdict import NEVER_TRAINED
from privet.errors import ArgumentError, CheckpointError
from privet.reports.audits import read_audit
from privet.reports.baseline import baseline_rows, group_prices, unequal_terms
from privet.reports.comparison import (
    described_differences,
    facet_plot,
    places_of,
    privacy_note,
    render_comparison,
    write_comparison,
)
from privet.reports.content import RunContent, gather
from privet.reports.differences import Figure, shown_numbers
from privet.reports.facets import Facet, facets_of
from privet.reports.run_report import render, stamps
from privet.runs.recipes.recipe import Recipe
from privet.runs.run_files import RunFiles
from tests.reports.conftest import MakeRun
from tests.reports.examined import examined
from tests.reports.test_run_report import Page

Runs = tuple[RunContent, RunContent]


@pytest.fixture(scope="module")
def runs(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("compared")
    return (
        gather(examined(make_run(), folder / "good")),
        gather(examined(make_run("privacy.epsilon=0.5"), folder / "bad", skill=0.5)),
    )


def figure(value: float, *, spread: float = 0.01) -> Figure:
    return Figure(value=value, low=value - spread, high=value + spread, num_examples=100)


def facet(*figures: Figure | None) -> Facet:
    return Facet(
        key="measure-1",
        name="test accuracy",
        axis="test accuracy",
        more="more accurate",
        less="less accurate",
        is_share=True,
        interval="Clopper-Pearson",
        figures=figures,
    )


def test_a_comparison_shows_privacy_and_every_kind_of_figure_with_interval_and_count(runs: Runs) -> None:
    words = Page(render_comparison(runs)).words
    for text in (
        "test accuracy",
        "expected calibration error",
        "gap in accuracy between best and worst, by class",
        "accuracy when inputs are changed by up to 0.1000",
        "area under the ROC curve: loss threshold",
        "they can be compared",
        "n = 2,000",
    ):
        assert text in words
    assert "Run 2 is easier to mislead than run 1: -20.0 points" in words
    assert "not measured" not in words


def test_differences_are_said_only_when_intervals_support_them() -> None:
    assert described_differences(facet(figure(0.8), figure(0.805))) == []
    assert described_differences(facet(figure(0.8), figure(0.7), figure(0.9))) == [
        "Run 2 is less accurate than run 1: -10.0 points (-11.4 to -8.6 points).",
        "Run 3 is more accurate than run 1: +10.0 points (+8.6 to +11.4 points).",
    ]
    assert described_differences(facet(None, figure(0.7))) == []
    assert described_differences(facet(figure(0.8), None)) == []


def test_runs_on_different_data_stand_side_by_side_and_nothing_is_said(runs: Runs) -> None:
    other = runs[1].recipe.model_copy(update={"dataset": "mnist"})
    words = Page(render_comparison([runs[0], replace(runs[1], recipe=other)])).words
    assert "The runs use different data" in words
    assert "than run 1" not in words


def test_runs_without_figures_are_not_said_to_be_alike(runs: Runs) -> None:
    bare = [
        replace(run, metrics=None, calibration=None, membership=(), fairness=None, robustness=None, rebuilt=None)
        for run in runs
    ]
    words = Page(render_comparison(bare)).words
    assert "Nothing can be compared" in words
    assert "chance" not in words


def test_figures_that_stand_together_have_equally_many_decimals() -> None:
    assert shown_numbers([1.07, 0.92634, 0.5]) == ("1.0700", "0.9263", "0.5000")
    assert shown_numbers([-0.02669, -0.05199, 0.0], sign="+") == ("-0.0267", "-0.0520", "+0.0000")
    assert shown_numbers([1.5e-5, 2e-6]) == ("1.5e-05", "2e-06")
    assert shown_numbers([]) == ()


def test_what_is_rounded_to_zero_has_no_minus() -> None:
    assert shown_numbers([0.4, -0.00001, 0.2]) == ("0.4000", "0.0000", "0.2000")
    assert shown_numbers([0.4, -0.00001], sign="+") == ("+0.4000", "+0.0000")
    assert shown_numbers([-0.00001]) == ("-1e-05",)


def test_epsilons_at_different_deltas_are_not_called_comparable(runs: Runs) -> None:
    spent = replace(runs[1].ledger.spent, delta=1e-6)
    other = replace(runs[1], ledger=replace(runs[1].ledger, spent=spent))
    assert privacy_note([runs[0], other]).endswith("the runs differ in delta.")


def test_a_figure_that_one_run_lacks_is_named_as_not_measured(runs: Runs) -> None:
    bare = replace(runs[1], rebuilt=None, calibration=None, membership=(), fairness=None, robustness=None, metrics=None)
    words = Page(render_comparison([runs[0], bare])).words
    assert words.count("not measured") == len(facets_of(runs))


def test_a_run_on_private_data_is_not_told_to_measure_what_would_not_be_kept(runs: Runs) -> None:
    bare = replace(runs[1], rebuilt=None, calibration=None, membership=(), fairness=None, robustness=None, metrics=None)
    private = replace(bare, recipe=runs[1].recipe.model_copy(update={"data_is_public": False}))
    words = Page(render_comparison([runs[0], private])).words
    assert "not measured" not in words
    assert words.count("not stored: the data are private") == len(facets_of(runs))
    assert "More can be added to run 1 with:" in words
    assert "Results of privet evaluate on private data are not stored" in words
    assert "More can be added to every run with:" in Page(render_comparison([*runs])).words


def test_only_data_that_everybody_knows_are_called_a_benchmark(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("plain", "benchmark data") in stamps(runs[0])
    own = replace(runs[0].recipe.info, public=False)
    monkeypatch.setattr(Recipe, "info", property(lambda recipe: own))
    declared = replace(runs[0], recipe=runs[0].recipe.model_copy(update={"data_is_public": True}))
    assert stamps(declared) == [("plain", "data declared public")]
    assert stamps(replace(declared, recipe=runs[0].recipe.model_copy(update={"data_is_public": False}))) == []


def test_runs_are_drawn_in_the_order_of_their_epsilon_and_listed_in_their_own(runs: Runs) -> None:
    assert places_of([3.0, 0.5, 3.0, float("inf")]) == pytest.approx([1.0, 0.0, 1.35, 2.35])
    plot = facet_plot(facet(figure(0.8), figure(0.7)), runs)
    assert [row[:3] for row in plot.rows] == [
        (1.0, runs[0].ledger.spent.epsilon, 0.8),
        (2.0, runs[1].ledger.spent.epsilon, 0.7),
    ]


def test_one_run_is_no_comparison_and_a_missing_folder_is_named(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="at least two runs"):
        render_comparison(runs[:1])
    with pytest.raises(CheckpointError, match="folder does not exist"):
        write_comparison(runs, tmp_path / "no" / "compare.html")


def test_a_baseline_stands_beside_the_run_with_the_difference(runs: Runs) -> None:
    assert unequal_terms(*runs) == []
    words = Page(render(runs[0], baseline=runs[1])).words
    assert "Comparison with a baseline" in words
    assert "equal compute" in words
    rows = baseline_rows(*runs)
    assert [row.cells[0] for row in rows][:3] == ["test accuracy", "test cross entropy", "expected calibration error"]
    assert "Price of privacy by class" in words
    assert all(" to " in row.cells[4] and row.cells[5] for row in rows)
    assert runs[0].metrics is not None
    worse = replace(runs[0].metrics.measures[0], value=0.01, low=0.005, high=0.02)
    far = replace(runs[1], metrics=replace(runs[0].metrics, measures=(worse,)))
    sentence = baseline_rows(runs[0], far)[0].sentence
    assert sentence is not None
    assert sentence.startswith("This run is more accurate than the baseline: +")
    assert baseline_rows(runs[0], runs[0])[0].sentence is None


def test_every_group_that_both_runs_know_is_priced_and_no_other(runs: Runs) -> None:
    (name, rows), *_ = group_prices(*runs)
    assert name == "class"
    assert runs[0].fairness is not None
    assert [row[0] for row in rows] == [group.name for group in runs[0].fairness.attributes[0].groups]
    mine, other, change = (float(cell.split()[0]) for cell in rows[0][1:4])
    assert change == pytest.approx(mine - other, abs=0.11)
    assert group_prices(runs[0], replace(runs[1], fairness=None)) == []


def test_a_baseline_without_privacy_is_called_so(runs: Runs) -> None:
    spent = replace(runs[1].ledger.spent, not_private_because=("no noise is added",))
    other = replace(runs[1], ledger=replace(runs[1].ledger, spent=spent))
    words = Page(render(runs[0], baseline=other)).words
    assert "The price of privacy" in words
    assert "NOT PRIVATE, sgd at learning rate 0.5" in words


def test_controls_that_were_never_trained_are_not_compared(runs: Runs) -> None:
    named = replace(runs[0].membership[0], attack=f"loss threshold{NEVER_TRAINED}")
    facets = facets_of([replace(run, membership=(named,)) for run in runs])
    assert not any("ROC" in facet.name for facet in facets)


def test_unequal_compute_is_named(runs: Runs, make_run: MakeRun) -> None:
    longer = "privacy.sampling={kind='poisson', dataset_size=10_000, batch_size=40, steps=5}"
    assert unequal_terms(runs[0], gather(make_run(longer))) == ["steps: 4 here, 5 in the baseline"]


def test_audits_are_shown_for_the_plan_they_are_about_and_no_other(runs: Runs) -> None:
    words = Page(render(runs[0])).words
    assert "Audits of the plan" in words
    assert "confidence 99.99 %" in words
    assert runs[0].audit is not None
    stale = replace(runs[0], audit=replace(runs[0].audit, plan_hash="0" * 64))
    assert "audits of another plan" in Page(render(stale)).words


def test_every_limit_for_attacks_on_the_page_is_the_same_number(runs: Runs) -> None:
    words = Page(render(runs[0])).words
    limits = words[words.index("members found, at most") :].split()
    row = next(
        words[place:].split("ok")[0]
        for place in range(len(words))
        if words.startswith("members found at 0.1 % false alarms", place)
    )
    assert limits[limits.index("0.1") + 2] + " %" in row


@pytest.mark.parametrize("text", ["{}", "[]", '{"plan": "a", "findings": [{}]}', '{"findings": [{"audit": 1}]}'])
def test_damaged_audits_are_named(tmp_path: Path, text: str) -> None:
    files = RunFiles(folder=tmp_path)
    assert read_audit(files) is None
    files.audit.write_text(text)
    with pytest.raises(CheckpointError, match=r"audit\.json"):
        read_audit(files)
