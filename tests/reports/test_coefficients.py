"""What a linear model of a table goes by is read off its weights, in the order of their size."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from privet.models import MODELS
from privet.reports.coefficients import Coefficients, coefficients_of
from privet.runs.recipes.own_data_defaults import Promise, table_recipe
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.table_schema import TableSchema
from privet.runs.recipes.table_settings import ColumnSettings, TargetSettings
from privet.runs.run_files import RunFiles

AGE = TargetSettings(name="age", low=0, high=100).as_feature()
WARD = TargetSettings(name="ward", categories=["heart", "<b>"]).as_feature()
YES = TargetSettings(name="ill", categories=["no", "yes"])
THREE = TargetSettings(name="kind", categories=["a", "b", "c"])
COST = TargetSettings(name="cost", low=0, high=50)


def found(
    folder: Path, weights: list[list[float]], *targets: TargetSettings, ward: ColumnSettings = WARD
) -> tuple[Coefficients, ...]:
    schema = TableSchema(targets=targets, columns=(AGE, ward))
    recipe = Recipe.from_dict(
        table_recipe(
            Promise(epsilon=1.0, train_size=1_000), schema, name="own", train=Path("x.csv"), test=None, delimiter=","
        )
    )
    model = MODELS[recipe.model].build((3,), len(weights))
    state = {**model.state_dict(), "linear.weight": torch.tensor(weights)}
    save_file(state, folder / "model.safetensors")
    return coefficients_of(RunFiles(folder=folder), recipe)


def test_the_effect_on_two_classes_is_the_difference_of_their_weights(tmp_path: Path) -> None:
    (told,) = found(tmp_path, [[0.0, 1.0, 2.0, 9.0], [3.0, -4.0, 2.0, 9.0]], YES)
    size = math.sqrt(3)
    assert told.target == "ill"
    assert told.rows[0] == ("ward=heart", f"{5 / size:.3g}", "no", "yes")
    assert told.rows[1] == ("age", f"{3 / size:.3g}", "yes", "no")
    assert told.rows[2][:2] == ("ward=<b>", "0")


def test_the_category_of_gaps_is_told_as_that(tmp_path: Path) -> None:
    gaps = TargetSettings(name="ward", categories=["heart", ""]).as_feature()
    (told,) = found(tmp_path, [[0.0, 1.0, 0.0, 9.0], [0.0, 0.0, 3.0, 9.0]], YES, ward=gaps)
    assert [row[0] for row in told.rows[:2]] == ["ward is missing", "ward=heart"]


def test_an_effect_on_several_classes_names_the_two_that_it_moves_most(tmp_path: Path) -> None:
    (told,) = found(tmp_path, [[1.0, 0.0, 0.0, 0.0], [-2.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0]], THREE)
    assert told.rows[0] == ("age", f"{3 / math.sqrt(3):.3g}", "a", "b")


def test_an_effect_on_a_number_is_in_its_own_unit_and_targets_are_told_apart(tmp_path: Path) -> None:
    told = found(tmp_path, [[0.0, -0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]], COST, YES)
    assert [one.target for one in told] == ["cost", "ill"]
    assert told[0].rows[0] == ("ward=heart", f"{0.2 * 25 / math.sqrt(3):.3g}", "", "cost")
    assert told[1].rows[0][0] == "ward=<b>"


@pytest.mark.parametrize("weights", [[[1.0, 2.0], [0.0, 0.0]], [[math.nan] * 4, [0.0] * 4]], ids=["shape", "nan"])
def test_other_weights_and_unfinished_runs_show_nothing(tmp_path: Path, weights: list[list[float]]) -> None:
    assert found(tmp_path, weights, YES) == ()
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    schema = TableSchema(targets=(YES,), columns=(AGE,))
    promise = Promise(epsilon=1.0, train_size=1_000)
    recipe = Recipe.from_dict(table_recipe(promise, schema, name="own", train=Path("x"), test=None, delimiter=","))
    assert coefficients_of(RunFiles(folder=tmp_path), recipe) == ()
    (tmp_path / "model.safetensors").unlink()
    assert coefficients_of(RunFiles(folder=tmp_path), recipe) == ()
