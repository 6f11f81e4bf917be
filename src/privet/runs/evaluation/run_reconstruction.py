"""Reconstruction attack on the gradients of public test pictures, clipped and noised as in a run.

The attacked network is the recipe's before training, where gradients reveal most.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from privet.attacks.reconstruction.released_gradients import (
    RebuiltPictures,
    check_plan,
    class_losses,
    rebuild_pictures,
)
from privet.datasets.info import Normalisation
from privet.effects.sparsification import per_example_gradients
from privet.runs.building import build_model, choose_device
from privet.runs.evaluation.public_pictures import pixels, public_test_pictures
from privet.runs.resuming import classifier_recipe, stored_plan
from privet.runs.run_files import RunFiles, write_json


class _OfPixels(nn.Module):
    """A network whose inputs are pixels from 0 to 1, the attacker's variables."""

    def __init__(self, network: nn.Module, normalisation: Normalisation) -> None:
        super().__init__()
        self.network, self.normalisation = network, normalisation

    def forward(self, pixels: Tensor) -> Tensor:
        shift, scale = (
            pixels.new_tensor(values).reshape(1, -1, 1, 1)
            for values in (self.normalisation.shift, self.normalisation.scale)
        )
        features = (pixels - shift) / scale
        bounds = self.normalisation.bounds
        result: Tensor = self.network(features if bounds is None else features.clamp(*bounds))
        return result


def examine_reconstruction(
    folder: str | Path, *, device: str = "auto", num_images: int = 8, num_steps: int = 300, seed: int = 0
) -> RebuiltPictures:
    """Attack the gradients of a few test pictures, bare and as the run releases them; the figures are stored with it.

    Args:
        folder: The run's folder.
        device: Name of the device.
        num_images: Number of pictures, the first ones of the test split.
        num_steps: Steps of the attack.
        seed: Seed of the network's weights, the mask, the noise and the attack's starting points.

    Raises:
        RecipeError: the records are not public or not pictures, or this attack does not support the run's clipping or
            noise.
    """
    files = RunFiles(folder=Path(folder))
    recipe, plan, where = classifier_recipe(files), stored_plan(files), choose_device(device)
    test = public_test_pictures(recipe, purpose="Reconstruction")
    check_plan(plan)
    normalisation = recipe.info.normalisation(recipe.normalisation)
    originals, labels = pixels(recipe, test.features[:num_images].to(where)), test.labels[:num_images].to(where)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _OfPixels(build_model(recipe, where), normalisation).eval()
    gradients = per_example_gradients(model, class_losses, originals, labels)
    found = rebuild_pictures(model, gradients, originals, labels, plan, num_steps=num_steps, seed=seed)
    write_json(files.reconstruction, found.report.to_dict())
    return found
