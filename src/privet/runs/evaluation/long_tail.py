"""The pictures that a run's model finds easiest and hardest: a look at the long tail (Feldman and Zhang, 2020).

Pictures are records. They are shown for public data only, and from the test split only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from privet.effects.fairness import long_tail
from privet.errors import RecipeError
from privet.runs.building import choose_device, load_tested
from privet.runs.resuming import classifier_recipe
from privet.runs.run_files import RunFiles
from privet.runs.runner import stored_model
from privet.training.predictions import predict


@dataclass(frozen=True, kw_only=True, eq=False)
class TailPictures:
    """Public test pictures at both ends of the loss.

    Attributes:
        easiest: Pictures of the smallest losses ``[picture, channel, height, width]`` from 0 to 1.
        hardest: Those of the largest losses.
        easiest_losses: Their losses, smallest first.
        hardest_losses: Their losses, largest first.
        num_right_among_hardest: How many of the hardest are still classified correctly.
    """

    easiest: Tensor
    hardest: Tensor
    easiest_losses: tuple[float, ...]
    hardest_losses: tuple[float, ...]
    num_right_among_hardest: int


def examine_long_tail(folder: str | Path, *, device: str = "auto", num_shown: int = 10) -> TailPictures:
    """Return the test pictures that a run's model finds easiest and hardest.

    Raises:
        RecipeError: the records are not public, are no pictures, or the model predicts numbers.
    """
    files = RunFiles(folder=Path(folder))
    recipe = classifier_recipe(files)
    if not recipe.is_public:
        raise RecipeError(
            "The long tail shows records as they are, and these are not public. It is for public test data only: set "
            "data_is_public = true in the recipe if they are."
        )
    if len(recipe.info.input_shape) != 3:
        raise RecipeError(f"The records of {recipe.dataset!r} are no pictures, so there is nothing to look at.")
    test = load_tested(recipe).test
    predictions = predict(stored_model(files, recipe, choose_device(device)), test.features, test.labels)
    found = long_tail(predictions, num_shown=num_shown)
    normalisation = recipe.info.normalisation(recipe.normalisation)
    shift, scale = (
        test.features.new_tensor(v).reshape(1, -1, 1, 1) for v in (normalisation.shift, normalisation.scale)
    )

    def stored(places: tuple[int, ...]) -> Tensor:
        return (test.features[list(places)] * scale + shift).clamp(0, 1)

    return TailPictures(
        easiest=stored(found.easiest),
        hardest=stored(found.hardest),
        easiest_losses=tuple(float(predictions.losses[place]) for place in found.easiest),
        hardest_losses=tuple(float(predictions.losses[place]) for place in found.hardest),
        num_right_among_hardest=found.num_right_among_hardest,
    )
