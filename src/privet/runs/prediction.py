"""Predictions of a run's model for new records in a file or a folder, and the model itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from privet.datasets.own.new_records import Gaps, read_new_records
from privet.datasets.own.own_images import read_unlabelled_images
from privet.datasets.own.own_table import OWN_TABLES
from privet.errors import DataError, RecipeError
from privet.runs.building import choose_device
from privet.runs.evaluated import stored_temperature
from privet.runs.recipes.recipe import Recipe
from privet.runs.resuming import stored_recipe
from privet.runs.run_files import RunFiles
from privet.runs.runner import stored_model
from privet.training.predictions import outputs_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Decisions:
    """Decisions of a model on records without labels.

    Attributes:
        names: The number of each record from 1, or the path of each image.
        columns: The columns of a file of predictions: of a classifier the class and the probability of each, otherwise
            the predicted numbers by the names of the targets.
        class_names: The classes of a classifier; empty otherwise.
        gaps: Columns with empty cells, and the values used in their place.
    """

    names: tuple[str, ...]
    columns: Mapping[str, NDArray[Any]]
    class_names: tuple[str, ...] = ()
    gaps: tuple[Gaps, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The decided class of each record."""
        return tuple(self._of_classifier()["class"])

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """One row per record, one column per class."""
        found = self._of_classifier()
        return np.stack([found[f"probability of {name}"] for name in self.class_names], axis=1)

    def _of_classifier(self) -> Mapping[str, NDArray[Any]]:
        if not self.class_names:
            raise RecipeError(f"The model predicts {', '.join(self.columns)} and no classes. Read columns instead.")
        return self.columns


def model_of(folder: str | os.PathLike[str], *, device: str = "auto") -> nn.Module:
    """Return the model of a run in evaluation mode: the final one, or the newest checkpoint of an unfinished run.

    Guarantee: the run's, however the model is used: every computation with it is post-processing.

    Raises:
        CheckpointError: there is no model, or it cannot be read.
    """
    files = RunFiles(folder=Path(folder))
    return stored_model(files, stored_recipe(files), choose_device(device)).eval()


def predict_new(folder: str | os.PathLike[str], path: str | os.PathLike[str], *, device: str = "auto") -> Decisions:
    """Return the predictions of a run's model on the records of a CSV file, or on the images of a folder.

    Guarantee: as :func:`model_of` for the training records. The new records are not protected: the decision on one
    is an exact function of it. An empty cell is replaced as in training, and counted in ``gaps``.

    Raises:
        DataError: the run was not trained on a table or a folder of images, or a record does not fit the declaration.
    """
    recipe = stored_recipe(RunFiles(folder=Path(folder)))
    names, features, gaps = _records(recipe, path)
    task = recipe.info.task
    outputs = outputs_of(model_of(folder, device=device), features)
    columns = task.decisions(outputs)
    temperature = stored_temperature(RunFiles(folder=Path(folder)))
    if task.class_names and temperature != 1:
        # decisions stay those of the model; its probabilities are made to fit
        columns = {**task.decisions(outputs / temperature), "class": columns["class"]}
    return Decisions(names=names, columns=columns, class_names=task.class_names, gaps=gaps)


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
