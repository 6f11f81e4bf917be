"""The importance of columns: how much worse a model becomes when a column says nothing about its record.

On public records a column is permuted among them. A private evaluation must not do that: a permuted record holds a
value of another one, so that one record would change what the model says about two. There a column is replaced by
public values instead, and what a record adds is a function of that record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet.datasets.arrays import ArrayDataset
from privet.datasets.encoding import FeatureGroup, feature_groups
from privet.datasets.own.own_table import OWN_TABLES
from privet.effects.importance import ImportanceReport, importance_of
from privet.errors import DataError, RecipeError
from privet.runs.building import choose_device, load_tested
from privet.runs.recipes.recipe import Recipe
from privet.runs.resuming import stored_recipe
from privet.runs.run_files import RunFiles, write_json
from privet.runs.runner import stored_model
from privet.training.predictions import outputs_of

NUM_PERMUTATIONS = 10
_SEED = 0  # public records: the same figures from one call to the next
_OWN_TEST, _GIVEN = "the test part of the run", "public records that were given"

Array = NDArray[np.float64]


def columns_of(recipe: Recipe) -> tuple[FeatureGroup, ...]:
    """Return the columns of a run's table, each with all of its encoded columns; stand-ins are normalised.

    Guarantee: a function of the declaration. No record is read.

    Raises:
        RecipeError: the data are no table of declared columns.
    """
    table = OWN_TABLES.get(recipe.info.name) if recipe.table is None else recipe.table.declared()
    if table is None:
        raise RecipeError(f"Importance is that of the declared columns of a table, and {recipe.info.name!r} has none.")
    return tuple(_normalised(group, recipe) for group in feature_groups(table.features))


def _normalised(group: FeatureGroup, recipe: Recipe) -> FeatureGroup:
    whole = np.zeros((len(group.stand_ins), *recipe.info.input_shape))
    whole[:, group.places] = group.stand_ins
    found = recipe.info.normalisation(recipe.normalisation).apply_(torch.from_numpy(whole)).numpy()
    return replace(group, stand_ins=found[:, group.places])


def drops_on_stand_ins(merits: Callable[[Tensor], Array], features: Tensor, groups: Sequence[FeatureGroup]) -> Array:
    """Return by how much the merit of each record falls, ``[records, columns]``, on average over public stand-ins.

    Args:
        merits: From features to one number from 0 to 1 per record, each a function of that record.
        features: The records.
        groups: The columns to replace.

    Guarantee:
        A row is a function of one record: in the place of a column stand declared values, the same for every record,
        never a value of another record.
    """
    own = merits(features)
    found = np.zeros((len(features), len(groups)))
    for number, group in enumerate(groups):
        changed = features.clone()
        for values in group.stand_ins:
            changed[:, list(group.places)] = torch.as_tensor(values, dtype=features.dtype, device=features.device)
            found[:, number] += (own - merits(changed)) / len(group.stand_ins)
    return found


def refuse_private_importance(folder: str | Path, *, is_own_test: bool, is_public: bool) -> None:
    """Refuse to permute private records. Reads no record.

    Args:
        folder: The run's folder.
        is_own_test: Whether the records are the run's own test part.
        is_public: Whether other records are public.

    Raises:
        DataError: the records are not public.
    """
    if not (stored_recipe(RunFiles(folder=Path(folder))).is_public if is_own_test else is_public):
        raise DataError(
            "Importance on private records needs a budget: add --evaluate-epsilon 0.5, which releases it with noise. "
            "If the records are public, say so: --data FILE --public, or data_is_public = true in the recipe."
        )


def examine_importance(
    folder: str | Path,
    *,
    device: str = "auto",
    test: ArrayDataset | None = None,
    is_public: bool = False,
) -> ImportanceReport:
    """Measure the importance of every column of a run's table by permutations of public records, and store it.

    All encoded columns of one column of the file are permuted together.

    Args:
        folder: The run's folder.
        device: Name of the device.
        test: Other records; the run's own test part by default.
        is_public: Whether these other records are public.

    Guarantee: private records are refused here. The result is a function of the released model and of public records.

    Raises:
        DataError: the records are not public, are fewer than two, or the model gives no finite numbers for them.
        RecipeError: the data are no table.
    """
    files = RunFiles(folder=Path(folder))
    recipe = stored_recipe(files)
    refuse_private_importance(folder, is_own_test=test is None, is_public=is_public)
    groups = columns_of(recipe)
    data = load_tested(recipe).test if test is None else test
    if len(data) < 2:
        raise DataError(f"A permutation needs two records or more, and there are {len(data)}.")
    model = stored_model(files, recipe, choose_device(device))
    draw, own = np.random.default_rng(_SEED), _goods(recipe, model, data.features, data.labels)
    rows = []
    for group in groups:
        falls: dict[str, list[Array]] = {name: [] for name in own}
        for _ in range(NUM_PERMUTATIONS):
            changed = data.features.clone()
            places = list(group.places)
            changed[:, places] = changed[torch.from_numpy(draw.permutation(len(data)))][:, places]
            now = _goods(recipe, model, changed, data.labels)
            for name, values in own.items():
                falls[name].append(values - now[name])
        rows += [importance_of(name, group.name, np.stack(found)) for name, found in falls.items()]
    report = ImportanceReport(
        columns=tuple(rows),
        num_examples=len(data),
        num_permutations=NUM_PERMUTATIONS,
        measured_on=_OWN_TEST if test is None else _GIVEN,
    )
    write_json(files.importance, report.to_dict())
    return report


def _goods(recipe: Recipe, model: nn.Module, features: Tensor, labels: Tensor) -> Mapping[str, Array]:
    """Return one number per record and figure, of which more is better: right decisions, and negative errors."""
    scores = recipe.info.task.scores(outputs_of(model, features), labels.cpu())
    rights = {name: values.double().numpy() for name, values in scores.items() if values.dtype == torch.bool}
    errors = {name: -values.double().numpy() for name, values in scores.items() if name.endswith("absolute error")}
    return {**rights, **errors}
