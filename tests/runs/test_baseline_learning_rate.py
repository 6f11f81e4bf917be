"""The learning rate of a baseline without privacy is found on held-out records, and never on private terms."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from privet.datasets.arrays import ArrayDataset
from privet.errors import RecipeError
from privet.runs import baseline_learning_rate
from privet.runs.baseline_learning_rate import FACTORS, with_tuned_learning_rate
from privet.runs.pretraining import starting_model
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.run_files import RunFiles
from privet.runs.runner import train

TINY = ("privacy.sampling={kind='poisson', dataset_size=10_000, batch_size=100, steps=8}",)


def open_recipe(*overrides: str) -> Recipe:
    return load_recipe("demo", [*TINY, *overrides]).without_privacy()


def test_the_rate_with_the_least_held_out_loss_is_taken_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = open_recipe()
    tried = []

    def loss(changed: Recipe, *_: object) -> float:
        tried.append(changed.training.optimizer.learning_rate)
        return math.inf if len(tried) == 5 else abs(len(tried) - 2.0)

    monkeypatch.setattr(baseline_learning_rate, "_held_out_loss", loss)
    found = with_tuned_learning_rate(recipe, RunFiles(folder=tmp_path / "run"))
    rate = recipe.training.optimizer.learning_rate
    assert tried == pytest.approx([rate * factor for factor in FACTORS])
    assert found.training.optimizer.learning_rate == pytest.approx(0.3 * rate)
    same = found.training.optimizer.model_copy(update={"learning_rate": rate})
    assert found.training.model_copy(update={"optimizer": same}) == recipe.training
    assert found.plan() == recipe.plan()


def test_a_trial_learns_and_a_wild_rate_counts_as_infinitely_bad() -> None:
    recipe, generator = open_recipe(), torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 10
    features = torch.rand(400, 1, 28, 28, generator=generator) * 0.1
    features[torch.arange(400), 0, 2 * labels] += 1.0
    parts = baseline_learning_rate._split(ArrayDataset(features=features, labels=labels))
    assert [len(part) for part in parts] == [360, 40]
    losses = []
    for rate in (1e-9, recipe.training.optimizer.learning_rate, 1e38):
        changed = baseline_learning_rate.with_rate(recipe, rate)
        model = starting_model(changed, torch.device("cpu"))
        losses.append(baseline_learning_rate._held_out_loss(changed, model, *parts))
    assert losses[1] < losses[0]
    assert losses[2] == math.inf


def test_a_run_that_is_there_keeps_the_rate_it_began_with(tmp_path: Path) -> None:
    recipe = open_recipe()
    files = RunFiles(folder=tmp_path / "run")
    train(baseline_learning_rate.with_rate(recipe, 0.0123), files.folder)
    assert with_tuned_learning_rate(recipe, files).training.optimizer.learning_rate == 0.0123


def test_a_private_recipe_is_refused_before_its_data_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline_learning_rate, "load_data", lambda recipe: pytest.fail("data were read"))
    with pytest.raises(RecipeError, match="private recipe"):
        with_tuned_learning_rate(load_recipe("demo", TINY), RunFiles(folder=tmp_path / "run"))


def test_optimizers_that_need_a_session_keep_their_rate(tmp_path: Path) -> None:
    recipe = open_recipe("training.optimizer={kind='dp_adam', learning_rate=0.01}")
    assert with_tuned_learning_rate(recipe, RunFiles(folder=tmp_path / "run")) == recipe
