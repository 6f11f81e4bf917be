"""Pre-training on public data, optionally rotated, before a private run."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.runs.building import build_model, loss_function, on_device
from privet.runs.recipes.pretraining_settings import PretrainingSettings
from privet.runs.recipes.recipe import Recipe


def turned(images: Tensor, degrees: float) -> Tensor:
    """Return images rotated counter-clockwise about their centre; pixels from outside the image are zero."""
    angle = math.radians(degrees)
    matrix = images.new_tensor(
        [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]
    ).expand(len(images), 2, 3)
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def starting_model(recipe: Recipe, device: torch.device) -> nn.Module:
    """Return the initial network of a private run: fresh, or pre-trained if the recipe asks for it.

    Guarantee: it depends on public data and random numbers only; see :meth:`PretrainingSettings.check`.
    """
    model = build_model(recipe, device)
    if recipe.pretraining is not None:
        _pretrain(model, recipe, recipe.pretraining, device)
    return model


def _pretrain(model: nn.Module, recipe: Recipe, settings: PretrainingSettings, device: torch.device) -> None:
    public = on_device(public_data(settings.dataset, settings.rotation, recipe.normalisation), device)
    losses = loss_function(recipe.info, model)
    optimizer = SGD(model.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
    # The order of public records is not secret. A fixed one gives a resumed run the same initial weights.
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(settings.epochs):
        for chosen in torch.split(torch.randperm(len(public), generator=generator), settings.batch_size):
            features, labels = public.take(chosen)
            optimizer.zero_grad()
            torch.autograd.backward(losses(features, labels).mean())
            optimizer.step()
    optimizer.zero_grad()


def public_data(name: str, rotation: float, normalisation: str | None) -> ArrayDataset:
    """Return the training records of public data, rotated by an angle in degrees."""
    found = load(name, normalisation=normalisation).train
    if not rotation:
        return found
    return ArrayDataset(features=turned(found.features, rotation), labels=found.labels)
