"""``privet card``: the model card of a run."""

from __future__ import annotations

import click

from privet.cli import console


@console.command("privet card runs/demo", "privet card runs/demo -o model/README.md")
@console.run_argument
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write.  [default: RUN/README.md]")
def card(run_folder: str, output: str | None) -> int:
    """Write the model card of RUN, in the form that Hugging Face reads.

    It states the guarantee, its assumptions and side effects, and the commands
    that verify the certificate. Exit code 3 says that the run differs from its
    plan or is not private; the card is still written and says so.
    """
    from privet.reports.certificate import Standing, certify
    from privet.reports.model_card import write_card

    path = write_card(run_folder, output)
    click.echo(path)
    standing = certify(run_folder).standing
    return console.OK if standing in (Standing.COMPLETE, Standing.UNFINISHED) else console.BUDGET
