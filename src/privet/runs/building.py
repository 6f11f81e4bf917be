"""Torch objects that a recipe names: data, model, loss, optimizer, schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.info import DatasetInfo
from privet.errors import DataError, RecipeError
from privet.isolation.parts import with_tensors
from privet.models import find_model
from privet.plan import Plan
from privet.runs.own_network import own_network
from privet.runs.own_records import own_records
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.training_settings import (
    AdamSettings,
    AdamWSettings,
    AugmentationSettings,
    CosineSettings,
    DPAdamSettings,
    DPAdamWSettings,
    LinearSettings,
    OptimizerSettings,
    RmspropSettings,
    ScheduleSettings,
    SgdSettings,
    StepsSettings,
    TrainingSettings,
)
from privet.runs.text_models import own_encoder
from privet.training.augmentation import ShiftAndFlip, Views
from privet.training.batching import MapDataset
from privet.training.last_iterate import ProvenLoss
from privet.training.loading import fetch
from privet.training.optimizers import DPAdam, DPAdamW
from privet.training.persons import PersonRecords
from privet.training.physical_batch import suggest_physical_batch
from privet.training.schedules import CosineDecay, LinearDecay, Schedule, StepDecay

_OPTIMIZERS: Mapping[type[OptimizerSettings], Callable[..., Optimizer]] = {
    SgdSettings: SGD,
    RmspropSettings: RMSprop,
    AdamSettings: Adam,
    AdamWSettings: AdamW,
    DPAdamSettings: DPAdam,
    DPAdamWSettings: DPAdamW,
}


def choose_device(name: str) -> torch.device:
    """Return the named device; ``auto`` is a GPU where one exists.

    A GPU with a number becomes torch's current device: CUDA graphs are recorded there only.

    Raises:
        RecipeError: this machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    found = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    if (device.index or 0) >= found[device.type]:
        raise RecipeError(f"training.device is '{name}', which this machine does not have. Use 'auto' or 'cpu'.")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def load_data(recipe: Recipe) -> Split:
    """Read the data that a recipe names or declares.

    Raises:
        DataError: a file is missing or malformed.
    """
    own = recipe.own_data
    # Records of a private evaluation are read once their release is charged, and never exactly.
    test = None if own is None or recipe.evaluation is not None else own.test
    return _loaded(recipe, train=None if own is None else own.train, test=test)


def held_out_data(recipe: Recipe, path: str | Path | None) -> ArrayDataset:
    """Read private records for a private evaluation, as training records are read: no cell can raise an error.

    Args:
        recipe: The recipe of the run.
        path: A file or folder of records; the recipe's test part by default.

    Raises:
        DataError: there is no such part, or the file cannot be read.
    """
    own = recipe.own_data
    if own is None:
        if path is not None:
            raise DataError(f"{recipe.dataset!r} has a test part of its own, which is used. Leave --data out.")
        return load(recipe.dataset, normalisation=recipe.normalisation).test
    wanted = own.test if path is None else path
    if wanted is None:
        raise DataError("The recipe names no held-out records. Name a file: privet evaluate RUN --data FILE.")
    return _loaded(recipe, train=wanted, test=None).train


def _loaded(recipe: Recipe, *, train: str | Path | None, test: str | Path | None) -> Split:
    own = own_records(recipe)
    if own is None or train is None:
        return load(recipe.dataset, normalisation=recipe.normalisation)
    return own.split(train=train, test=test)


def load_tested(recipe: Recipe) -> Split:
    """Read the data of a recipe for a measurement, which needs a test part.

    Raises:
        DataError: the recipe names no test data, or a file is missing or malformed.
    """
    if recipe.own_data is not None and recipe.own_data.test is None:
        raise DataError(
            "The run has no test data, so there is nothing to measure on. Give some: privet evaluate RUN --data TEST."
        )
    own = recipe.own_data
    return load_data(recipe) if own is None else _loaded(recipe, train=own.train, test=own.test)


def build_model(recipe: Recipe, device: torch.device) -> nn.Module:
    """Return the recipe's network, freshly initialised, from the recipe's seed if it has one.

    Raises:
        RecipeError: the recipe names a network of a user's own, which may not be run or is not the one that it was.
    """
    with torch.random.fork_rng(devices=[], enabled=recipe.training.seed is not None):
        if recipe.training.seed is not None:
            torch.manual_seed(recipe.training.seed)
        return _fresh(recipe).to(device)


def _fresh(recipe: Recipe) -> nn.Module:
    info = recipe.info
    if recipe.network is not None:
        return own_network(recipe.network, info).model
    if recipe.encoder is not None:
        return own_encoder(recipe.encoder, info)
    return find_model(recipe.model).build(info.input_shape, info.task.num_outputs)


def build_optimizer(training: TrainingSettings, model: nn.Module) -> Optimizer:
    """Return the optimizer that the settings describe, with a separate learning rate for each part they name.

    Raises:
        RecipeError: a part has no trained parameter, or two parts name the same one.
    """
    settings = training.optimizer
    parameters = _parts(model, training.rate_factors or {}, settings.learning_rate)
    options = settings.model_dump(exclude={"kind", "learning_rate"})
    if isinstance(settings, RmspropSettings):
        options["alpha"] = options.pop("smoothing")
    return _OPTIMIZERS[type(settings)](parameters, lr=settings.learning_rate, **options)


def _parts(model: nn.Module, factors: Mapping[str, float], learning_rate: float) -> list[dict[str, Any]]:
    """Return parameter groups. Parameters of no named part come first: the run reports the rate of the first group."""
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    groups: list[dict[str, Any]] = []
    for start, factor in factors.items():
        own = [name for name in named if name == start or name.startswith(f"{start}.")]
        if not own:
            raise RecipeError(
                f"training.rate_factors names {start!r}, and no remaining trained parameter has a name that begins "
                f"with it. Names begin with "
                f"{', '.join(sorted({name.rpartition('.')[0] or name for name in named})[:8])}."
            )
        groups.append({"params": [named.pop(name) for name in own], "lr": factor * learning_rate})
    return [{"params": list(named.values())}, *groups] if named else groups


def build_schedule(settings: ScheduleSettings | None) -> Schedule:
    """Return the learning-rate schedule that the settings describe; None gives a constant rate."""
    match settings:
        case None:
            return StepDecay(drops=())
        case LinearSettings():
            return LinearDecay(warm_up=settings.warm_up, final=settings.final)
        case CosineSettings():
            return CosineDecay(warm_up=settings.warm_up, final=settings.final)
        case StepsSettings():
            return StepDecay(drops=tuple(settings.drops), factor_per_drop=settings.factor_per_drop)


def with_views(dataset: ArrayDataset, settings: AugmentationSettings | None) -> MapDataset:
    """Return the data set with the augmented views of the settings; unchanged without settings."""
    if settings is None:
        return dataset
    transform = ShiftAndFlip(max_shift=settings.max_shift, flip=settings.flip)
    return Views(dataset=dataset, transform=transform, num_views=settings.num_views)


def with_owners(dataset: MapDataset, persons: tuple[str, ...] | None, plan: Plan) -> MapDataset:
    """Return the data set as records with owners, if the plan bounds the records of persons.

    Raises:
        DataError: nothing says whose the records are.
    """
    if plan.sampling.contribution is None:
        return dataset
    if persons is None:
        raise DataError(
            "privacy.sampling bounds the records of each person, and nothing says whose they are. Name the column of "
            "persons: person = 'COLUMN' in [table] or [texts], or --person COLUMN."
        )
    return PersonRecords(dataset=dataset, persons=persons)


@runtime_checkable
class LearnsStatistics(Protocol):
    """A model that also learns statistics of its inputs by the steps of the run."""

    def statistics_losses(self, features: Tensor) -> Tensor:
        """Return one loss per example, which is added to that of the task."""
        ...


def loss_function(info: DatasetInfo, model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function from a batch's features and labels to its losses: the model's own, if it carries one."""
    if isinstance(model, ProvenLoss):
        return model.losses
    if isinstance(model, LearnsStatistics):
        return lambda features, labels: info.task.losses(model(features), labels) + model.statistics_losses(features)
    return lambda features, labels: info.task.losses(model(features), labels)


def on_device(dataset: ArrayDataset, device: torch.device) -> ArrayDataset:
    """Return the data set on a device, where it stays for the whole run."""
    return dataset.to(device)


def find_physical_batch_size(
    model: nn.Module, losses: Callable[..., Tensor], dataset: MapDataset, plan: Plan, device: torch.device
) -> int:
    """Try sizes up to the expected logical batch on made-up examples of the data's shape.

    One record is read for its shape; its values are not used. The model is unchanged afterwards.
    """
    shape_of = fetch(dataset, np.zeros(1, dtype=np.int64), None, device)
    together = 1 if plan.sampling.contribution is None else plan.sampling.contribution.records_per_item
    limit = max(1, math.ceil(plan.sampling.expected_batch_size)) * together
    was_training = model.training
    model.train()
    try:
        found = suggest_physical_batch(model, losses, with_tensors(shape_of, _made_up), limit=limit)
        return max(found, together)  # the records of a person go through the model together
    finally:
        model.train(was_training)


def _made_up(tensor: Tensor) -> Tensor:
    """Return made-up values of the same shape and type: normal numbers, or zeros, a valid value of labels and ids."""
    if not tensor.is_floating_point():
        return torch.zeros_like(tensor)
    generator = torch.Generator(tensor.device).manual_seed(0)
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)
