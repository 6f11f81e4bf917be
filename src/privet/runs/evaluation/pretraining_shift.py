"""Feature shift between public data and a run's data: pre-training on shifted features can harm."""

from __future__ import annotations

from pathlib import Path

from privet.datasets.arrays import ArrayDataset
from privet.effects.feature_shift import FeatureShift, feature_shift
from privet.errors import RecipeError
from privet.runs.building import load_tested
from privet.runs.pretraining import public_data
from privet.runs.recipes.pretraining_settings import public_info
from privet.runs.resuming import classifier_recipe
from privet.runs.run_files import RunFiles

_MOST_COMPARED = 10_000


def examine_pretraining(
    folder: str | Path, *, public: str | None = None, test: ArrayDataset | None = None
) -> FeatureShift:
    """Estimate how far the features of public data lie from those of a run's test split (Proposition 4.4).

    Nothing is trained. Not covered by the guarantee: the figures are exact functions of the test data.

    Args:
        folder: The run's folder.
        public: Name of the public data; None takes those that the run was pre-trained on.
        test: Other test data; None is the run's own test split.

    Raises:
        RecipeError: the run was not pre-trained and no public data are named, or they do not fit it.
        DataError: the data do not determine a shift.
    """
    recipe = classifier_recipe(RunFiles(folder=Path(folder)))
    settings = recipe.pretraining
    if public is None and settings is None:
        raise RecipeError(
            "This run was not pre-trained, so there is nothing to compare. Name the public data you think of with "
            "--public-data, or give the recipe a [pretraining] table."
        )
    name = settings.dataset if public is None and settings is not None else str(public)
    public_info(name, recipe.info)
    rotation = settings.rotation if settings is not None and name == settings.dataset else 0.0
    before = public_data(name, rotation, recipe.normalisation)
    after = load_tested(recipe).test if test is None else test
    sides = [
        (part.features[:_MOST_COMPARED].double().numpy(), part.labels[:_MOST_COMPARED].numpy())
        for part in (before, after)
    ]
    return feature_shift(sides[0], sides[1], class_names=recipe.info.class_names)
