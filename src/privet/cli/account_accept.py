"""``privet account accept``: go on with a run folder that was restored from an older copy."""

from __future__ import annotations

from pathlib import Path

import click

from privet.cli.console import OK
from privet.cli.options import CONTEXT, examples, run_argument


@click.command(context_settings=CONTEXT, epilog=examples("privet account accept runs/restored"))
@run_argument
def accept(run_folder: str) -> int:
    """Accept RUN although this machine knows of a newer copy of it.

    Use it when the newer copy is lost. What that copy had charged was spent,
    so it is charged in RUN as well and cannot be used again; the run then goes
    on with what its plan has left.
    """
    from privet.accounting.ledger.rollback import accept_roll_back

    folder = Path(run_folder)
    added = accept_roll_back(folder / "ledger.jsonl" if folder.is_dir() else folder)
    if added:
        click.echo(f"{added:,} rounds of the newer copy were charged. Look at the total with: privet account {folder}")
    else:
        click.echo("Nothing was charged: this machine knows of no newer copy of the run.")
    return OK
