"""Predictions of a run's model for new records in a file or a folder, and the model itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from privet.datasets.own.new_records import Gaps
from privet.errors import RecipeError
from privet.runs.building import choose_device
from privet.runs.evaluated import stored_temperature
from privet.runs.own_records import new_records
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
    """Return the predictions of a run's model on the records of a table, or on the images of a folder.

    Guarantee: as :func:`model_of` for the training records. The new records are not protected: the decision on one
    is an exact function of it. An empty cell is replaced as in training, and counted in ``gaps``.

    Raises:
        DataError: the run was not trained on records of a user's own, or a record does not fit the declaration.
    """
    recipe = stored_recipe(RunFiles(folder=Path(folder)))
    new = new_records(recipe, path)
    task = recipe.info.task
    outputs = outputs_of(model_of(folder, device=device), new.features)
    columns = task.decisions(outputs)
    temperature = stored_temperature(RunFiles(folder=Path(folder)))
    if task.class_names and temperature != 1:
        # decisions stay those of the model; its probabilities are made to fit
        columns = {**task.decisions(outputs / temperature), "class": columns["class"]}
    return Decisions(names=new.names, columns=columns, class_names=task.class_names, gaps=new.gaps)
