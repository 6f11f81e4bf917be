"""Predictions of a run's model for new records in a file or a folder, and the model itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet.datasets.own.new_records import Gaps, read_new_records
from privet.datasets.own.own_images import read_unlabelled_images
from privet.datasets.own.own_table import OWN_TABLES
from privet.errors import DataError
from privet.runs.building import choose_device
from privet.runs.recipes.recipe import Recipe
from privet.runs.resuming import classifier_recipe, stored_recipe
from privet.runs.run_files import RunFiles
from privet.runs.runner import stored_model
from privet.training.predictions import predict


@dataclass(frozen=True, kw_only=True, eq=False)
class Decisions:
    """Decisions of a classifier on records without labels.

    Attributes:
        names: The number of each record from 1, or the path of each image.
        class_names: Of the columns of ``probabilities``.
        probabilities: One row per record, one column per class.
        gaps: Columns with empty cells, and the values used in their place.
    """

    names: tuple[str, ...]
    class_names: tuple[str, ...]
    probabilities: NDArray[np.float64]
    gaps: tuple[Gaps, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The likeliest class of each record."""
        return tuple(self.class_names[place] for place in self.probabilities.argmax(1))


def model_of(folder: str | os.PathLike[str], *, device: str = "auto") -> nn.Module:
    """Return the model of a run in evaluation mode: the final one, or the newest checkpoint of an unfinished run.

    Guarantee: the run's, however the model is used: every computation with it is post-processing.

    Raises:
        CheckpointError: there is no model, or it cannot be read.
    """
    files = RunFiles(folder=Path(folder))
    return stored_model(files, stored_recipe(files), choose_device(device)).eval()


def predict_new(folder: str | os.PathLike[str], path: str | os.PathLike[str], *, device: str = "auto") -> Decisions:
    """Return the decisions of a run's model on the records of a CSV file, or on the images of a folder.

    Guarantee: as :func:`model_of` for the training records. The new records are not protected: the decision on one
    is an exact function of it. An empty cell is replaced as in training, and counted in ``gaps``.

    Raises:
        DataError: the run was not trained on a table or a folder of images, or a record does not fit the declaration.
        RecipeError: the model predicts numbers.
    """
    recipe = classifier_recipe(RunFiles(folder=Path(folder)))
    names, features, gaps = _records(recipe, path)
    model = model_of(folder, device=device)
    found = predict(model, features, torch.zeros(len(features), dtype=torch.int64))
    return Decisions(
        names=names,
        class_names=tuple(recipe.info.class_names),
        probabilities=np.exp(found.log_probabilities),
        gaps=gaps,
    )


def _records(recipe: Recipe, path: str | os.PathLike[str]) -> tuple[tuple[str, ...], Tensor, tuple[Gaps, ...]]:
    normalisation = recipe.info.normalisation(recipe.normalisation)
    if recipe.images is not None:
        files, pixels = read_unlabelled_images(path, recipe.images.declared(), normalisation)
        return tuple(str(file) for file in files), pixels, ()
    table = OWN_TABLES.get(recipe.info.name) if recipe.table is None else recipe.table.declared()
    if table is None:
        raise DataError(
            f"The run was trained on {recipe.dataset!r}, which is neither a table nor a folder of images. Call its "
            "model in your own code: privet.runs.model_of(RUN)."
        )
    features, gaps = read_new_records(path, table, normalisation)
    return tuple(str(number + 1) for number in range(len(features))), features, gaps
