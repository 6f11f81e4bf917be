"""The training table of a recipe: every word builds what it names, and impossible ones are refused with their place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from privet.errors import RecipeError
from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import Automatic, KeepOrDrop, PerSampleAdaptive, Threshold
from privet.runs.building import build_optimizer, build_schedule, with_views
from privet.runs.recipes.recipe import Recipe
from privet.runs.runner import evaluate, train
from privet.training.augmentation import ShiftAndFlip, Views
from privet.training.checkpoint import load_checkpoint
from privet.training.optimizers import DPAdam, DPAdamW
from privet.training.schedules import CosineDecay, LinearDecay, StepDecay

MakeRecipe = Callable[..., Recipe]
OPTIMIZERS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "{kind='sgd', learning_rate=0.5, momentum=0.9}": (SGD, {"lr": 0.5, "momentum": 0.9}),
    "{kind='rmsprop', learning_rate=0.5, smoothing=0.9}": (RMSprop, {"lr": 0.5, "alpha": 0.9}),
    "{kind='adam', learning_rate=0.5}": (Adam, {"lr": 0.5, "weight_decay": 0.0}),
    "{kind='adamw', learning_rate=0.5, weight_decay=0.2}": (AdamW, {"lr": 0.5, "weight_decay": 0.2}),
    "{kind='dp_adam', learning_rate=0.5, guard=1e-3}": (DPAdam, {"lr": 0.5, "guard": 1e-3}),
    "{kind='dp_adamw', learning_rate=0.5}": (DPAdamW, {"lr": 0.5, "guard": 1e-8, "weight_decay": 0.01}),
}
SCHEDULES = {
    "{kind='linear', warm_up=0.1}": LinearDecay(warm_up=0.1),
    "{kind='cosine', final=0.2}": CosineDecay(final=0.2),
    "{kind='steps', drops=[0.5, 0.75]}": StepDecay(drops=(0.5, 0.75)),
}
TWO_PARTS = "{kind='threshold', norm=1.0}, {kind='automatic', norm=1.0}"
CLIPPINGS = {
    "{kind='keep_or_drop', norm=1.0, cutoff=9.0}": KeepOrDrop(norm=1.0, cutoff=9.0),
    "{kind='automatic', norm=1.0}": Automatic(norm=1.0),
    "{kind='per_sample_adaptive', norm=0.5, weakness=0.1}": PerSampleAdaptive(norm=0.5, weakness=0.1),
    "{kind='adaptive_quantile', norm=0.5, count_noise_std=4}": AdaptiveQuantile(norm=0.5, count_noise_std=4.0),
    f"{{kind='scheduled', switches=[0.95], parts=[{TWO_PARTS}]}}": Scheduled(
        parts=(Threshold(norm=1.0), Automatic(norm=1.0)), switches=(0.95,)
    ),
}


@pytest.mark.parametrize("words", OPTIMIZERS)
def test_an_optimizer_is_built_as_it_is_named(words: str, tiny: MakeRecipe) -> None:
    kind, numbers = OPTIMIZERS[words]
    optimizer = build_optimizer(tiny(f"training.optimizer={words}").training, nn.Linear(2, 2))
    assert type(optimizer) is kind
    assert {name: optimizer.param_groups[0][name] for name in numbers} == numbers


def test_a_part_of_the_network_has_the_rate_times_its_factor_and_every_parameter_one_group(tiny: MakeRecipe) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    settings = tiny("training.optimizer={kind='sgd', learning_rate=0.5}", 'training.rate_factors={"2"=4.0}').training
    first, head = build_optimizer(settings, model).param_groups
    assert (first["lr"], head["lr"]) == (0.5, 2.0)
    assert [id(value) for value in first["params"]] == [id(value) for value in model[1].parameters()]
    assert [id(value) for value in head["params"]] == [id(value) for value in model[2].parameters()]


def test_a_factor_for_a_part_that_is_not_trained_is_refused_with_the_parts_there_are(tiny: MakeRecipe) -> None:
    settings = tiny('training.rate_factors={"head"=4.0}').training
    with pytest.raises(RecipeError, match=r"'head'.*begin with bias, weight"):
        build_optimizer(settings, nn.Linear(2, 2))
    with pytest.raises(RecipeError, match="weight"):
        build_optimizer(tiny('training.rate_factors={"weight"=4.0}').training, nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize("words", SCHEDULES)
def test_a_schedule_is_built_as_it_is_named(words: str, tiny: MakeRecipe) -> None:
    assert build_schedule(tiny(f"training.schedule={words}").training.schedule) == SCHEDULES[words]


def test_without_a_schedule_the_rate_stays() -> None:
    assert [build_schedule(None).factor(progress) for progress in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("words", CLIPPINGS)
def test_a_clipping_rule_is_read_as_it_is_named_and_written_back(words: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(f"privacy.clipping={words}")
    assert recipe.plan().clipping == CLIPPINGS[words]
    assert Recipe.from_dict(recipe.to_dict()).plan() == recipe.plan()


def test_views_are_made_as_they_are_asked_for(tiny: MakeRecipe) -> None:
    settings = tiny("training.augmentation={num_views=3, max_shift=2, flip=false}").training.augmentation
    views = with_views(None, settings)  # type: ignore[arg-type]
    assert isinstance(views, Views)
    assert (views.num_views, views.transform) == (3, ShiftAndFlip(max_shift=2, flip=False))
    assert with_views(None, None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.optimizer={kind='dp_adam', learning_rate=0.5, guard=0.0}", r"training\.optimizer\.guard is 0\.0"),
        ("training.schedule={kind='linear', warm_up=1.0}", r"training\.schedule\.warm_up is 1\.0"),
        ("training.schedule={kind='line'}", r"training\.schedule\.kind is 'line'\. Did you mean 'linear'"),
        ("training.averaging={decay=1.0}", r"training\.averaging\.decay is 1\.0"),
        ("training.augmentation={num_views=0}", r"training\.augmentation\.num_views is 0"),
        ("privacy.clipping={kind='automatic', norm=-1.0}", r"privacy\.clipping \('automatic'\): norm must be"),
    ],
)
def test_impossible_words_are_refused_with_their_place(override: str, message: str, tiny: MakeRecipe) -> None:
    with pytest.raises(RecipeError, match=message):
        tiny(override).plan()


def test_views_of_records_that_are_no_images_are_refused(tiny: MakeRecipe) -> None:
    with pytest.raises(RecipeError, match="are not images"):
        tiny("training.augmentation={num_views=2}", "dataset=wine_red")


def test_a_run_with_everything_measures_and_releases_the_averaged_weights(tiny: MakeRecipe, run_folder: Path) -> None:
    recipe = tiny(
        "training.schedule={kind='cosine'}",
        "training.averaging={decay=0.5}",
        "training.augmentation={num_views=2}",
        "training.optimizer={kind='dp_adamw', learning_rate=0.01, guard=1e-4}",
        "privacy.clipping={kind='adaptive_quantile', norm=1.0, count_noise_std=2.0}",
        "training.seed=3",
    )
    outcome = train(recipe, run_folder)
    assert outcome.is_finished
    assert outcome.spent.epsilon == outcome.promised.epsilon
    released = load_file(run_folder / "model.safetensors")
    checkpoint = load_checkpoint(run_folder / "checkpoint.safetensors")
    assert checkpoint is not None
    assert all(torch.equal(released[name], value) for name, value in checkpoint.average.items())
    assert any(not torch.equal(released[name], checkpoint.tensors[f"model.{name}"]) for name in released)
    assert outcome.metrics is not None
    assert evaluate(run_folder, device="cpu").measures == outcome.metrics.measures
