"""Private evaluations on the command line: what they cost, and their figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli import console

if TYPE_CHECKING:
    from privet.runs.evaluated import PrivateEvaluation
    from privet.runs.evaluation.private_evaluation import Asked

_HEADER = ["measured privately", "model", "95 % interval", "constant"]


def measure_privately(
    folder: str | Path,
    asked: Asked,
    *,
    data: str | None = None,
    device: str = "cpu",
    max_epsilon: float | None = None,
    as_json: bool = False,
    num_processes: int = 1,
) -> PrivateEvaluation:
    """Charge and release a private evaluation of a run, and print it with the new total."""
    from privet.runs.evaluation.private_evaluation import evaluate_privately
    from privet.runs.ledger_check import check_ledger
    from privet.runs.project import with_schema
    from privet.runs.resuming import stored_recipe
    from privet.runs.run_files import RunFiles

    found = evaluate_privately(
        folder, asked, data=data, device=device, max_epsilon=max_epsilon, num_processes=num_processes
    )
    check = check_ledger(Path(folder))
    in_all = with_schema(check, stored_recipe(RunFiles(folder=Path(folder))).released)
    if as_json:
        told = {"evaluation": found.to_dict(), "guarantee": check.spent.to_dict()}
        console.show_json(told if in_all is None else {**told, "with_schema": in_all.guarantee.to_dict()})
        return found
    show_figures(found)
    console.show_heading(f"Training and evaluations together: {check.spent}")
    if in_all is not None:
        console.show_heading(f"With the schema, which was released from private records: {in_all.guarantee}")
    return found


def show_figures(found: PrivateEvaluation) -> None:
    """Print the figures of a private evaluation."""
    from privet.reports.importance_rows import IMPORTANCE_HEADER, private_note, private_parts
    from privet.reports.private_figure_rows import (
        CLASS_HEADER,
        GROUP_HEADER,
        class_rows,
        confusion_rows,
        group_rows,
        headline_rows,
        note,
    )

    figures = found.figures
    for warning in figures.warnings:
        console.remark(f"warning: {warning}")
    console.show_table(_HEADER, headline_rows(found), right=(1, 3))
    if figures.confusion:
        header, rows = confusion_rows(found)
        console.show_heading("Confusion matrix: noisy counts, true classes in rows")
        console.show_table(header, rows, right=tuple(range(1, len(header))))
        console.show_table(CLASS_HEADER, class_rows(found))
    if figures.groups:
        console.show_heading("By group")
        console.show_table(GROUP_HEADER, group_rows(found), right=(2, 4))
    for part in private_parts(found):
        console.show_heading(part.title)
        console.show_table(IMPORTANCE_HEADER, [row.cells for row in part.rows], right=(1,))
        click.echo(console.paragraphs(private_note(found)))
    click.echo(console.paragraphs(note(found)))
