"""Test pictures of lowest and highest loss: the long tail of a run's model (Feldman and Zhang, 2020).

Pictures are records. They are shown for public data only, and from the test split only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from privet.effects.fairness import long_tail
from privet.runs.building import choose_device
from privet.runs.evaluation.public_pictures import pixels, public_test_pictures
from privet.runs.resuming import classifier_recipe
from privet.runs.run_files import RunFiles
from privet.runs.runner import stored_model
from privet.training.predictions import predict


@dataclass(frozen=True, kw_only=True, eq=False)
class TailPictures:
    """Public test pictures of lowest and highest loss.

    Attributes:
        easiest: Pictures of the smallest losses ``[picture, channel, height, width]`` from 0 to 1.
        hardest: Those of the largest losses.
        easiest_losses: Their losses, smallest first.
        hardest_losses: Their losses, largest first.
        num_right_among_hardest: Number of the hardest that are classified correctly.
    """

    easiest: Tensor
    hardest: Tensor
    easiest_losses: tuple[float, ...]
    hardest_losses: tuple[float, ...]
    num_right_among_hardest: int


def examine_long_tail(folder: str | Path, *, device: str = "auto", num_shown: int = 10) -> TailPictures:
    """Return the test pictures on which a run's model has the lowest and the highest loss.

    Raises:
        RecipeError: the records are not public or not pictures, or the model predicts numbers.
    """
    files = RunFiles(folder=Path(folder))
    recipe = classifier_recipe(files)
    test = public_test_pictures(recipe, purpose="The long tail")
    predictions = predict(stored_model(files, recipe, choose_device(device)), test.features, test.labels)
    found = long_tail(predictions, num_shown=num_shown)
    return TailPictures(
        easiest=pixels(recipe, test.features[list(found.easiest)]),
        hardest=pixels(recipe, test.features[list(found.hardest)]),
        easiest_losses=tuple(float(predictions.losses[place]) for place in found.easiest),
        hardest_losses=tuple(float(predictions.losses[place]) for place in found.hardest),
        num_right_among_hardest=found.num_right_among_hardest,
    )
