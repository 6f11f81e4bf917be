"""``privet report``: the report of a run, or the comparison of several, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli import console

if TYPE_CHECKING:
    from privet.reports.content import RunContent

_COMPARISON_NAME = "comparison.html"


@console.command(
    "privet report runs/demo -o demo.html",
    "privet report runs/demo --baseline runs/demo-open",
    "privet report runs/demo --language de --data-sheet sheet.toml",
    "privet report runs/epsilon-1 runs/epsilon-3 -o compare.html",
)
@click.argument("run_folders", metavar="RUN...", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write.  [default: RUN/report.html; for several runs, comparison.html]",
)
@click.option("--baseline", metavar="RUN", type=click.Path(), help="A run with little or no privacy, to compare with.")
@click.option(
    "--language",
    type=click.Choice(["en", "de", "fr", "es"]),
    default="en",
    show_default=True,
    help="Language of the first page.",
)
@click.option(
    "--data-sheet",
    type=click.Path(exists=True, dir_okay=False),
    help="TOML file with controller, purpose, legal_basis, description, retention, contact.",
)
@console.json_option
def report(
    run_folders: tuple[str, ...],
    output: str | None,
    baseline: str | None,
    language: str,
    data_sheet: str | None,
    as_json: bool,
) -> int:
    """Write the report of RUN: one self-contained HTML file.

    Its first page says in everyday words what is promised, to whom, what it
    costs and what it does not cover, with a data sheet and lines to sign on. The
    rest states the guarantee, compares the plan with the ledger, and shows
    accuracy, budget and the limits of attacks. With several runs it compares
    them instead: privacy against every measured figure.

    Exit code 3 says that a plan and its ledger do not agree; the report is
    still written and says so.
    """
    from privet.reports.content import gather
    from privet.reports.run_report import write_report
    from privet.runs.recipes.data_sheet import read_data_sheet

    if len(run_folders) > 1 and baseline is not None:
        raise click.UsageError("--baseline is for the report of one run. Name it as the first of several runs instead.")
    contents = [gather(folder) for folder in run_folders]
    if len(contents) > 1:
        return _compare(contents, output or _COMPARISON_NAME, as_json)
    content = contents[0]
    other = None if baseline is None else gather(baseline)
    sheet = None if data_sheet is None else read_data_sheet(data_sheet)
    path = write_report(run_folders[0], output, content=content, baseline=other, language=language, sheet=sheet)
    if as_json:
        console.show_json({"report": str(path), **_facts(content)})
    else:
        click.echo(path)
    return console.OK if content.agrees else console.BUDGET


def _compare(contents: list[RunContent], output: str | Path, as_json: bool) -> int:
    from privet.reports.comparison import write_comparison

    path = write_comparison(contents, output)
    if as_json:
        console.show_json({"report": str(path), "runs": [_facts(content) for content in contents]})
    else:
        click.echo(path)
    return console.OK if all(content.agrees for content in contents) else console.BUDGET


def _facts(content: RunContent) -> dict[str, object]:
    return {
        "agrees_with_plan": content.agrees,
        "is_finished": content.is_finished,
        "guarantee": content.ledger.spent.to_dict(),
    }
