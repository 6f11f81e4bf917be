"""``privet report``: a run as one HTML file."""

from __future__ import annotations

import click

from privet.cli.console import BUDGET, OK, show_json
from privet.cli.options import CONTEXT, examples, json_option, run_argument


@click.command(context_settings=CONTEXT, epilog=examples("privet report runs/demo -o demo.html"))
@run_argument
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Where to write it.  [default: RUN/report.html]")
@json_option
def report(run_folder: str, output: str | None, as_json: bool) -> int:
    """Write the report of RUN: one HTML file that opens anywhere.

    It says what is promised, compares the plan with the ledger, and shows
    accuracy, budget and what an attacker can do. Exit code 3 says that plan
    and ledger do not agree; the report is written all the same and says so.
    """
    from privet.reports.content import gather
    from privet.reports.report import write_report

    content = gather(run_folder)
    path = write_report(run_folder, output, content=content)
    if as_json:
        show_json(
            {
                "report": str(path),
                "agrees_with_plan": content.agrees,
                "is_finished": content.is_finished,
                "guarantee": content.ledger.spent.to_dict(),
            }
        )
    else:
        click.echo(path)
    return OK if content.agrees else BUDGET
