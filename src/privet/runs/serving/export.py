"""``privet export``: the model of a run in a folder that serves without privet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from privet.errors import CheckpointError
from privet.runs.evaluated import stored_temperature
from privet.runs.recipes.recipe import Recipe
from privet.runs.resuming import stored_recipe
from privet.runs.run_files import RunFiles, write_whole
from privet.runs.runner import stored_model
from privet.runs.serving.networks import ServedNetwork
from privet.runs.serving.texts import ServedTexts
from privet.runs.serving.written import Served

# Copied as they are, so that the certificate can be checked in the folder.
_EVIDENCE = ("ledger.jsonl", "plan.json", "env.json", "model.safetensors")


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
    written = _served(recipe).write(target, model, temperature=stored_temperature(files))
    for name in _EVIDENCE:
        source = files.folder / name
        if source.is_file() and not source.is_symlink():
            (target / name).write_bytes(source.read_bytes())
    if written.needs:
        write_whole(target / "requirements.txt", "".join(f"{name}\n" for name in written.needs))
    return Exported(folder=target, needs=written.needs, left_out=written.left_out)


def _served(recipe: Recipe) -> Served:
    if recipe.texts is not None and recipe.encoder is not None:
        return ServedTexts(texts=recipe.texts, encoder=recipe.encoder, recipe=recipe)
    return ServedNetwork(recipe=recipe)
