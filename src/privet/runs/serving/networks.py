"""A network of arrays as files: its operations, its weights, and the program that reads tables or images for it."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privet.datasets.own.declared_table import DeclaredTable
from privet.datasets.own.own_table import OWN_TABLES
from privet.datasets.special_columns import DateColumn, GapColumn, OrdinalColumn
from privet.datasets.tables import CategoryColumn, NumberColumn
from privet.errors import DataError, UnsupportedModel
from privet.runs.recipes.image_settings import ImageSettings
from privet.runs.recipes.recipe import Recipe
from privet.runs.run_files import write_json, write_whole
from privet.runs.serving import served_predict
from privet.runs.serving.program import exported_program, program_of
from privet.runs.serving.written import FORMAT, Written

# Bytes of weights; a file of this format ends at two gigabytes.
_LARGEST_ONNX = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class ServedNetwork:
    """The network of a run on rows of a table, on images, or on other arrays.

    Attributes:
        recipe: The recipe of the run.
    """

    recipe: Recipe

    def write(self, target: Path, model: nn.Module, *, temperature: float) -> Written:
        """Write the network, and the program that reads records for it where they are rows or images."""
        recipe = self.recipe
        table = OWN_TABLES.get(recipe.info.name) if recipe.table is None else recipe.table.declared()
        example = torch.rand((3, *recipe.info.input_shape), generator=torch.Generator().manual_seed(0))
        served, left_out = _served(recipe, table, model, example, temperature)
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / "model.json", served)
        if served["program"] is None:
            torch.export.save(exported_program(model, example), target / "model.pt2")
        left_out += _onnx(model, example, target / "model.onnx")
        if table is None and recipe.images is None:
            left_out.append(
                "predict.py: it reads tables and images, and the data are neither. model.pt2 holds the network."
            )
            return Written(left_out=tuple(left_out))
        needs = ("numpy", *(() if recipe.images is None else ("pillow",)))
        write_whole(target / "predict.py", inspect.getsource(served_predict))
        return Written(needs=needs if served["program"] is not None else (*needs, "torch"), left_out=tuple(left_out))


def _served(
    recipe: Recipe, table: DeclaredTable | None, model: nn.Module, example: torch.Tensor, temperature: float
) -> tuple[dict[str, Any], list[str]]:
    """Return what the served program needs to know, and why numpy cannot carry out the network."""
    normalisation, left_out = recipe.info.normalisation(recipe.normalisation), []
    program = None
    try:
        program = program_of(model, example)
    except UnsupportedModel as error:
        left_out.append(f"operations for numpy alone: {error} The network is in model.pt2, for torch.")
    return {
        "format": FORMAT,
        "title": recipe.title,
        "model": recipe.model,
        "input_shape": list(recipe.info.input_shape),
        "columns": [] if table is None else [_column(column) for column in table.features],
        "images": None if recipe.images is None else _images(recipe.images),
        "delimiter": "," if table is None else table.delimiter,
        "normalisation": {
            "shift": list(normalisation.shift),
            "scale": list(normalisation.scale),
            "bounds": None if normalisation.bounds is None else list(normalisation.bounds),
        },
        "targets": recipe.info.task.served(),
        "temperature": temperature,
        "program": program,
    }, left_out


def _images(declared: ImageSettings) -> dict[str, int]:
    return {"height": declared.height, "width": declared.width, "channels": declared.channels}


def _number(column: NumberColumn, kind: str = "number") -> dict[str, Any]:
    ends = {"low": column.low, "high": column.high, "default": column.default, "decimal": column.decimal}
    return {"kind": kind, "name": column.name, "header": column.header, **ends}


def _category(column: CategoryColumn) -> dict[str, Any]:
    told = {"kind": "category", "name": column.name, "header": column.header}
    return {**told, "categories": list(column.categories), "default": column.default, "decimal": column.decimal}


def _date(column: DateColumn) -> dict[str, Any]:
    return {**_number(column, "date"), "format": column.form, "earliest": column.earliest.isoformat()}


def _ordinal(column: OrdinalColumn) -> dict[str, Any]:
    return {**_number(column, "ordinal"), "ordered": list(column.ordered)}


def _gap(column: GapColumn) -> dict[str, Any]:
    return {"kind": "gap", "name": column.name, "header": column.header, "of": _column(column.of)}


_KINDS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    NumberColumn: _number,
    CategoryColumn: _category,
    DateColumn: _date,
    OrdinalColumn: _ordinal,
    GapColumn: _gap,
}


def _column(column: object) -> dict[str, Any]:
    if type(column) not in _KINDS:
        raise DataError(f"A column of the kind {type(column).__name__} cannot be read by the served program yet.")
    return _KINDS[type(column)](column)


def _onnx(model: nn.Module, example: torch.Tensor, path: Path) -> list[str]:
    """Write the network as ONNX where the packages for it are installed; otherwise say so."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        return [f"model.onnx: {' and '.join(missing)} not installed: pip install 'privet[onnx]'."]
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it names operations of packages that nobody asked for
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own exporter
            torch.onnx.export(
                exported_program(model, example),
                f=str(path),
                dynamo=True,
                verbose=False,
                # One file where the format allows it: a file of weights beside it is easily left behind.
                external_data=sum(each.nbytes for each in model.state_dict().values()) > _LARGEST_ONNX,
            )
    finally:
        log.setLevel(level)
    return []
