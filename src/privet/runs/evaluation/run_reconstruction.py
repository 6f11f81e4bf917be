"""Reconstruction for a run: attack the gradients of public test pictures as the run would release them.

The attacked network is the recipe's before training, where gradients say most.
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
from privet.errors import RecipeError
from privet.runs.building import build_model, choose_device, load_tested
from privet.runs.resuming import classifier_recipe, stored_plan
from privet.runs.run_files import RunFiles, write_json


class _OfPixels(nn.Module):
    """A network that takes pixels from 0 to 1, as an attacker moves them."""

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
    """Attack the gradients of a few test pictures, bare and as the run releases them; the figures are kept with it.

    Args:
        folder: The run's folder.
        device: Where to attack.
        num_images: How many pictures, the first ones of the test split.
        num_steps: Of the attack.
        seed: Of the network's weights, the mask, the noise and the attack's starting points.

    Raises:
        RecipeError: the records are not public, are no pictures, or the run clips or adds noise in a manner for which
            this attack is not made.
    """
    files = RunFiles(folder=Path(folder))
    recipe, plan, where = classifier_recipe(files), stored_plan(files), choose_device(device)
    if not recipe.is_public:
        raise RecipeError(
            "Reconstruction shows records as they are, and these are not public. It is for public test data only: set "
            "data_is_public = true in the recipe if they are."
        )
    if len(recipe.info.input_shape) != 3:
        raise RecipeError(f"The records of {recipe.dataset!r} are no pictures, so there is nothing to rebuild.")
    check_plan(plan)
    normalisation = recipe.info.normalisation(recipe.normalisation)
    test = load_tested(recipe).test
    features, labels = test.features[:num_images].to(where), test.labels[:num_images].to(where)
    shift, scale = (features.new_tensor(v).reshape(1, -1, 1, 1) for v in (normalisation.shift, normalisation.scale))
    originals = (features * scale + shift).clamp(0, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _OfPixels(build_model(recipe, where), normalisation).eval()
    gradients = per_example_gradients(model, class_losses, originals, labels)
    found = rebuild_pictures(model, gradients, originals, labels, plan, num_steps=num_steps, seed=seed)
    write_json(files.reconstruction, found.report.to_dict())
    return found
