"""Public test pictures of a run, for evaluations that show records."""

from __future__ import annotations

from torch import Tensor

from privet.datasets.arrays import ArrayDataset
from privet.errors import RecipeError
from privet.runs.building import load_tested
from privet.runs.recipes.recipe import Recipe


def public_test_pictures(recipe: Recipe, *, purpose: str) -> ArrayDataset:
    """Return the test split of a recipe whose records are public pictures.

    Raises:
        RecipeError: the records are not public or not pictures; ``purpose`` begins the message.
    """
    if not recipe.is_public:
        raise RecipeError(
            f"{purpose} shows records, and these are not public. It is for public test data only: set data_is_public = "
            "true in the recipe if they are."
        )
    if len(recipe.info.input_shape) != 3:
        raise RecipeError(f"{purpose} needs pictures, and the records of {recipe.dataset!r} are not pictures.")
    return load_tested(recipe).test


def pixels(recipe: Recipe, features: Tensor) -> Tensor:
    """Return normalised pictures as pixels from 0 to 1."""
    normalisation = recipe.info.normalisation(recipe.normalisation)
    shift, scale = (features.new_tensor(v).reshape(1, -1, 1, 1) for v in (normalisation.shift, normalisation.scale))
    return (features * scale + shift).clamp(0, 1)
