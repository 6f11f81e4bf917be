"""What verbs say of a run that is not finished."""

from __future__ import annotations

from pathlib import Path

import click


def say_if_unfinished(run_folder: str) -> bool:
    """Say on stderr that a run is not finished, whose model is used, and how to go on; return whether that is so."""
    from privet.runs.ledger_check import steps_in_checkpoint
    from privet.runs.resuming import resuming_command, stored_plan, stored_recipe
    from privet.runs.run_files import RunFiles

    files = RunFiles(folder=Path(run_folder))
    stored_recipe(files)  # a folder without a recipe is told apart before anything is said of it
    if files.model.exists():
        return False
    steps = steps_in_checkpoint(files.checkpoint)
    if steps is not None:
        click.echo(
            f"{run_folder} is not finished: its newest checkpoint, with {steps:,} of {stored_plan(files).num_steps:,} "
            f"steps, stands for its model.\nTo go on with the run: {resuming_command(files)}",
            err=True,
        )
    return True
