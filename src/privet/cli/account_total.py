"""``privet account total``: what all runs of a project reveal together."""

from __future__ import annotations

from pathlib import Path

import click

from privet.cli.console import BUDGET, OK, paragraphs, show_heading, show_json, show_table
from privet.cli.options import CONTEXT, examples, json_option


@click.command(context_settings=CONTEXT, epilog=examples("privet account total runs/first runs/second"))
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path())
@click.option("--delta", type=float, help="Delta of the total.  [default: that of the runs, if they agree]")
@json_option
def total(runs: tuple[str, ...], delta: float | None, as_json: bool) -> int:
    """Compose the ledgers of all RUNs on the same data.

    Every chain is checked and compared with its plan, as `privet account RUN`
    does; exit code 3 says that one of them differs. Discarded runs count: leave
    none out.
    """
    from privet.accounting.guarantee import rounded_up
    from privet.runs.project import total_of_runs

    found = total_of_runs([Path(run) for run in runs], delta=delta)
    if as_json:
        show_json(found.to_dict())
    else:
        show_heading(str(found.guarantee))
        click.echo()
        click.echo(paragraphs(found.guarantee.statement()))
        click.echo()
        rows = [
            [name, rounded_up(check.spent.epsilon), f"{check.rounds_charged:,}", check.mismatch or "agrees"]
            for name, check in found.runs.items()
        ]
        show_table(["run", "epsilon alone", "rounds", "plan"], rows, right=(1, 2))
    return OK if found.mismatch is None else BUDGET
