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

    found = evaluate_privately(
        folder, asked, data=data, device=device, max_epsilon=max_epsilon, num_processes=num_processes
    )
    total = check_ledger(Path(folder)).spent
    if as_json:
        console.show_json({"evaluation": found.to_dict(), "guarantee": total.to_dict()})
        return found
    show_figures(found)
    console.show_heading(f"Training and evaluations together: {total}")
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
