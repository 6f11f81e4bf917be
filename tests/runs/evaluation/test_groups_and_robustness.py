from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.columns import ADULT, ADULT_FEATURES, WINE_RED
from privet.datasets.own.own_table import load_own_csv
from privet.datasets.tables import CategoryColumn
from privet.effects.groups import FairnessReport
from privet.effects.radii import RobustnessReport
from privet.effects.robustness import weight_length
from privet.errors import DataError, RecipeError
from privet.runs import building, resuming, runner
from privet.runs.evaluation.groups_and_robustness import (
    TABLE_RADII,
    examine_fairness,
    examine_robustness,
    group_attribute,
    own_test_data,
)
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.run_files import RunFiles

ADULT_RUN = (
    "privacy.sampling={kind='poisson', dataset_size=32_561, batch_size=64, steps=5}",
    "training.device=cpu",
    "training.optimizer.momentum=0.0",
)


def people(path: Path, num_people: int = 60) -> Path:
    """A user's own file: Adult's columns among others, in another order."""
    names = [*(column.name for column in reversed(ADULT_FEATURES)), "income", "remark"]
    plain = {
        column.name: column.default if isinstance(column, CategoryColumn) else f"{column.low + 1:g}"
        for column in ADULT_FEATURES
    }
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="none")
        writer.writeheader()
        for number in range(num_people):
            changed = {
                "age": str((80 if number % 5 == 0 else 20) + number % 7),
                "sex": ("Female", "Male")[number % 2],
                "race": ("White", "Black", "Other")[number % 3],
                "income": ("<=50K", ">50K")[number % 5 == 0],
            }
            writer.writerow({**plain, **changed})
    return path


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five steps on made-up people, in place of the official files."""
    folder = tmp_path_factory.mktemp("adult")
    people(folder / "train.csv", 300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "load", lambda name, normalisation=None: _split(folder))
        runner.train(load_recipe("adult", ADULT_RUN), folder / "run")
    return folder


def _split(folder: Path) -> Split:
    made = load_own_csv(folder / "train.csv", ADULT, ADULT.normalisation())
    return Split(train=made, test=made, info=ADULT)


@pytest.fixture
def adult_run(trained_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may add files to."""
    monkeypatch.setattr(building, "load", lambda name, normalisation=None: _split(trained_once))
    return Path(shutil.copytree(trained_once / "run", tmp_path / "run"))


def test_groups_are_measured_and_kept_for_the_report(adult_run: Path) -> None:
    pytest.importorskip("fairlearn")
    report = examine_fairness(adult_run, ["sex", "race"], device="cpu")
    assert [found.attribute for found in report.attributes] == ["class", "sex", "race"]
    assert [group.name for group in report.attributes[1].groups] == ["Female", "Male"]
    assert "Amer-Indian-Eskimo" in report.attributes[2].empty_groups
    assert [one.attribute for one in report.decisions] == ["sex", "race"]
    assert {row.attribute for row in report.sources} == {"sex", "race"}
    kept = json.loads(RunFiles(folder=adult_run).fairness.read_text())
    assert FairnessReport.from_dict(kept) == report


def test_accuracy_under_attack_is_measured_and_kept_with_the_length_of_the_weights(adult_run: Path) -> None:
    found = examine_robustness(adult_run, device="cpu", num_attacked=40)
    assert found.report.num_examples == 40
    assert [point.radius for point in found.report.points] == [0.0, *TABLE_RADII]
    model = runner.stored_model(RunFiles(folder=adult_run), load_recipe(adult_run / "recipe.toml"), torch.device("cpu"))
    assert found.growth is not None
    assert found.growth.measured == weight_length(model)
    kept = json.loads(RunFiles(folder=adult_run).robustness.read_text())
    assert RobustnessReport.from_dict(kept["report"]) == found.report


def test_a_users_own_file_is_measured_and_nothing_of_it_is_kept(adult_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("fairlearn")
    own = own_test_data(adult_run, people(tmp_path / "own.csv"))
    assert len(own) == 60
    assert examine_fairness(adult_run, ["sex"], device="cpu", test=own).num_examples == 60
    assert examine_robustness(adult_run, device="cpu", test=own).report.num_examples == 60
    files = RunFiles(folder=adult_run)
    assert not files.fairness.exists()
    assert not files.robustness.exists()


def test_columns_that_name_no_groups_are_refused_with_those_that_do(adult_run: Path) -> None:
    for name, said in (("colour", "is not a column"), ("age", "is a column of numbers")):
        with pytest.raises(DataError, match=f"{said}.*sex"):
            examine_fairness(adult_run, [name], device="cpu")


def test_a_group_of_one_class_and_a_single_group_are_refused(adult_run: Path, tmp_path: Path) -> None:
    own = own_test_data(adult_run, people(tmp_path / "own.csv"))
    is_male = group_attribute(ADULT, own.features, "sex").codes == 1
    one_class = torch.where(torch.from_numpy(is_male), 0, own.labels)
    with pytest.raises(DataError, match="'Male' holds examples of one class only"):
        examine_fairness(adult_run, ["sex"], device="cpu", test=ArrayDataset(features=own.features, labels=one_class))
    women = ArrayDataset(features=own.features[~is_male], labels=own.labels[~is_male])
    with pytest.raises(DataError, match="one group of 'sex'"):
        examine_fairness(adult_run, ["sex"], device="cpu", test=women)


def test_images_have_classes_and_no_groups_and_are_attacked_in_pixels(
    tiny: Callable[..., Recipe], run_folder: Path
) -> None:
    runner.train(tiny("normalisation=standardized"), run_folder)
    report = examine_fairness(run_folder, device="cpu")
    assert len(report.attributes[0].groups) == 10
    assert report.sources == ()
    with pytest.raises(DataError, match="none: its examples are not rows of a table"):
        examine_fairness(run_folder, ["sex"], device="cpu")
    found = examine_robustness(run_folder, device="cpu", radii=[4 / 255, 16 / 255], num_attacked=60)
    accuracies = [point.accuracy.value for point in found.report.points]
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[-1] < accuracies[0]
    outputs = runner.evaluate(run_folder, device="cpu", test=_first(60))
    assert outputs.measures[0].value == accuracies[0]


def _first(count: int) -> ArrayDataset:
    test = building.load("fashion_mnist_small", normalisation="standardized").test
    return ArrayDataset(features=test.features[:count], labels=test.labels[:count])


def test_figures_of_private_data_are_returned_and_not_kept(tiny: Callable[..., Recipe], run_folder: Path) -> None:
    runner.train(tiny("data_is_public=false", "training.evaluate_every="), run_folder)
    examine_fairness(run_folder, device="cpu")
    examine_robustness(run_folder, device="cpu", num_attacked=10)
    files = RunFiles(folder=run_folder)
    assert not files.fairness.exists()
    assert not files.robustness.exists()


def test_a_regression_has_no_groups_to_compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    regression = SimpleNamespace(dataset="wine_red", info=WINE_RED)
    monkeypatch.setattr(resuming, "stored_recipe", lambda files: regression)
    with pytest.raises(RecipeError, match="regression"):
        examine_fairness(tmp_path)


@pytest.mark.skipif("PRIVET_DATA" not in os.environ, reason="needs the folder named by PRIVET_DATA")
def test_groups_of_the_official_table_have_the_published_sizes() -> None:
    test = load("adult").test
    sexes = group_attribute(ADULT, test.features, "sex")
    assert {name: int((sexes.codes == code).sum()) for code, name in enumerate(sexes.group_names)} == {
        "Female": 5_421,
        "Male": 10_860,
    }
