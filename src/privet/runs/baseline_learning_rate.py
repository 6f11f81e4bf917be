"""Learning-rate search of the baseline without privacy.

A rate for clipped, noisy gradients need not suit plain gradients, and a baseline at a bad rate would make privacy look
cheap. So plain training tries a few rates, with a tenth of the training records held out. The choice reads the data, as
any run without privacy does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from privet.datasets.arrays import ArrayDataset
from privet.errors import RecipeError
from privet.runs.building import (
    build_optimizer,
    build_schedule,
    choose_device,
    load_data,
    loss_function,
    on_device,
)
from privet.runs.pretraining import starting_model
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.training_settings import DPAdamSettings, DPAdamWSettings
from privet.runs.resuming import stored_recipe
from privet.runs.run_files import RunFiles
from privet.training.schedules import LearningRate

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
_MOST_STEPS, _MOST_HELD_OUT = 400, 2_000
_CHUNK = 512

Losses = Callable[[Tensor, Tensor], Tensor]


def with_tuned_learning_rate(recipe: Recipe, files: RunFiles) -> Recipe:
    """Return a recipe without privacy with the learning rate of least mean loss on held-out training records.

    Every rate, from a tenth to ten times the recipe's, trains the recipe's network for a quarter of its steps and at
    most 400. A folder that holds a run keeps the run's rate. Optimizers that need a private session keep theirs.

    Guarantee: none; recipes that promise privacy are refused.

    Raises:
        RecipeError: the recipe promises privacy, which this search would break.
    """
    if not recipe.plan().not_private_because:
        raise RecipeError("Learning rates are tried on the data themselves, which a private recipe may not do.")
    optimizer = recipe.training.optimizer
    if files.is_run:
        began_with = stored_recipe(files).training.optimizer
        return with_rate(recipe, began_with.learning_rate) if type(began_with) is type(optimizer) else recipe
    if isinstance(optimizer, DPAdamSettings | DPAdamWSettings):
        return recipe
    device = choose_device(recipe.training.device)
    train, held_out = _split(on_device(load_data(recipe).train, device))
    start = starting_model(recipe, device)
    rates = [optimizer.learning_rate * factor for factor in FACTORS]
    losses = [_held_out_loss(with_rate(recipe, rate), copy.deepcopy(start), train, held_out) for rate in rates]
    return with_rate(recipe, rates[losses.index(min(losses))])


def with_rate(recipe: Recipe, rate: float) -> Recipe:
    """Return a recipe with another learning rate."""
    optimizer = recipe.training.optimizer.model_copy(update={"learning_rate": rate})
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"optimizer": optimizer})})


def _split(dataset: ArrayDataset) -> tuple[ArrayDataset, ArrayDataset]:
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).to(dataset.features.device)
    count = min(_MOST_HELD_OUT, len(dataset) // 10)
    return dataset.rows(order[count:]), dataset.rows(order[:count])


def _held_out_loss(recipe: Recipe, model: nn.Module, train: ArrayDataset, held_out: ArrayDataset) -> float:
    """Train without privacy and return the mean loss on the held-out records; infinite if training diverged."""
    plan, settings = recipe.plan(), recipe.training
    losses = loss_function(recipe.info, model)
    optimizer = build_optimizer(settings, model)
    num_steps = max(1, min(_MOST_STEPS, plan.num_steps // 4))
    rate = LearningRate(optimizer, build_schedule(settings.schedule), num_steps=num_steps)
    batch_size = max(1, min(len(train), round(plan.sampling.expected_batch_size)))
    generator = torch.Generator().manual_seed(settings.seed or 0)
    model.train()
    for step in range(num_steps):
        rate.set(step)
        rows = torch.randperm(len(train), generator=generator)[:batch_size].to(train.features.device)
        optimizer.zero_grad()
        for chunk in torch.split(rows, _CHUNK):
            torch.autograd.backward(losses(*train.take(chunk)).sum() / batch_size)
        optimizer.step()
    found = _mean_loss(model, losses, held_out)
    return found if math.isfinite(found) else math.inf


@torch.no_grad()
def _mean_loss(model: nn.Module, losses: Losses, part: ArrayDataset) -> float:
    model.eval()
    rows = torch.arange(len(part), device=part.features.device)
    total = sum(float(losses(*part.take(chunk)).sum()) for chunk in torch.split(rows, _CHUNK))
    return total / max(1, len(part))
