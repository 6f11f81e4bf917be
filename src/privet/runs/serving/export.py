"""``privet export``: the model of a run in a folder that serves without privet."""

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
from privet.errors import CheckpointError, DataError, UnsupportedModel
from privet.runs.evaluated import stored_temperature
from privet.runs.recipes.recipe import Recipe
from privet.runs.resuming import stored_recipe
from privet.runs.run_files import RunFiles, write_json, write_whole
from privet.runs.runner import stored_model
from privet.runs.serving import served_predict
from privet.runs.serving.program import exported_program, program_of

FORMAT = 1
# Bytes of weights; a file of this format ends at two gigabytes.
_LARGEST_ONNX = 1_000_000_000
# Copied as they are, so that the certificate can be checked in the folder.
_EVIDENCE = ("ledger.jsonl", "plan.json", "env.json")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and what was left out and why.

    Attributes:
        folder: The folder.
        needs: The packages that ``predict.py`` needs; empty where there is no such program.
        left_out: Sentences about parts that were not written.
    """

    folder: Path
    needs: tuple[str, ...]
    left_out: tuple[str, ...]


def export_run(folder: str | Path, output: str | Path) -> Exported:
    """Write the model of a finished run with its preprocessing, in a new folder.

    Guarantee: everything is a function of the model, of the declaration and of the ledger. No record is read.

    Raises:
        CheckpointError: the run is not finished, or the output folder holds files.
        DataError: a declared column is of a kind that the served program does not read.
    """
    files, target = RunFiles(folder=Path(folder)), Path(output)
    recipe = stored_recipe(files)
    if not files.model.exists():
        raise CheckpointError(f"{folder} is not finished, so that there is no final model to export. Resume it first.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} is there already. Name a new or an empty folder: -o FOLDER.")
    model = stored_model(files, recipe, torch.device("cpu"))
    table = OWN_TABLES.get(recipe.info.name) if recipe.table is None else recipe.table.declared()
    served, left_out = _served(recipe, table, model, stored_temperature(files))
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / "model.json", served)
    (target / "model.safetensors").write_bytes(files.model.read_bytes())
    example = _example(recipe)
    if served["program"] is None:
        torch.export.save(exported_program(model, example), target / "model.pt2")
    left_out += _onnx(model, example, target / "model.onnx")
    for name in _EVIDENCE:
        source = files.folder / name
        if source.is_file() and not source.is_symlink():
            (target / name).write_bytes(source.read_bytes())
    needs: tuple[str, ...] = ()
    if table is None:
        left_out.append("predict.py: it reads tables, and the data are none. model.pt2 holds the network for torch.")
    else:
        needs = ("numpy",) if served["program"] is not None else ("numpy", "torch")
        write_whole(target / "predict.py", inspect.getsource(served_predict))
        write_whole(target / "requirements.txt", "".join(f"{name}\n" for name in needs))
    return Exported(folder=target, needs=needs, left_out=tuple(left_out))


def _example(recipe: Recipe) -> torch.Tensor:
    return torch.rand((3, *recipe.info.input_shape), generator=torch.Generator().manual_seed(0))


def _served(
    recipe: Recipe, table: DeclaredTable | None, model: nn.Module, temperature: float
) -> tuple[dict[str, Any], list[str]]:
    """Return what the served program needs to know, and why numpy cannot carry out the network."""
    normalisation, left_out = recipe.info.normalisation(recipe.normalisation), []
    program = None
    try:
        program = program_of(model, _example(recipe))
    except UnsupportedModel as error:
        left_out.append(f"operations for numpy alone: {error} The network is in model.pt2, for torch.")
    return {
        "format": FORMAT,
        "title": recipe.title,
        "model": recipe.model,
        "input_shape": list(recipe.info.input_shape),
        "columns": [] if table is None else [_column(column) for column in table.features],
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
