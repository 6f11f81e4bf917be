"""``privet reproduce``: published tables and figures, with the paper's numbers, our numbers and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli.console import (
    CONTEXT,
    FAILED,
    OK,
    device_option,
    examples,
    paragraphs,
    remark,
    show_heading,
    show_table,
)

if TYPE_CHECKING:
    from privet_research.reproduction.running import Choices, Reproduction


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "privet reproduce --list",
        "privet reproduce --points",
        "privet reproduce clipping-table-2",
        "privet reproduce sparsification-figure-2 --quick",
        "privet reproduce --all --quick --workers 2 -o reproduced",
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "as_list", is_flag=True, help="List every table and figure, and whether it can run here.")
@click.option("--points", "as_points", is_flag=True, help="List every point of the publications and what shows it.")
@click.option("--all", "everything", is_flag=True, help="Run every table and figure that can run here.")
@click.option("--quick", is_flag=True, help="Run a small version, which tests fewer claims.")
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False),
    default="reproduced",
    show_default=True,
    help="Folder for rows, tables and figures. Stored rows are not computed again.",
)
@click.option("--seeds", type=click.IntRange(min=1), help="Runs per arm; by default the number of the entry.")
@device_option
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Number of parallel processes."
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False),
    help="Run nothing: judge the rows of privet study in this folder.",
)
def reproduce(
    names: tuple[str, ...],
    as_list: bool,
    as_points: bool,
    everything: bool,
    quick: bool,
    output: str,
    seeds: int | None,
    device: str,
    workers: int,
    source: str | None,
) -> int:
    """Repeat the published tables or figures NAME and compare the results.

    HOLDS and DIFFERS are verdicts on the claims of the entry, with the
    tolerance or bound of each. A STAND-IN has other data or another network
    than the publication; UNDECIDED and NOT RUN come with their reasons. After
    an interruption the same command resumes. Exit code 1: no NAME could run,
    because data or packages are missing.
    """
    from privet_research.reproduction.entry import Profile, entries, find_entry

    if as_list:
        _list()
        return OK
    if as_points:
        _points()
        return OK
    if bool(names) == everything:
        raise click.UsageError("Name a table or figure, or use --all. See them with: privet reproduce --list.")
    chosen = dict(entries()) if everything else {name: find_entry(name) for name in names}

    from privet.runs.building import choose_device
    from privet_research.reproduction import running

    choose_device(device)  # a wrong device is an error of the command, not of a part
    choices = running.Choices(
        folder=Path(output),
        profile=Profile.QUICK if quick else Profile.FULL,
        device=device,
        num_seeds=seeds,
        num_workers=workers,
        source=None if source is None else Path(source),
    )
    found = running.reproduce(chosen, choices, _Remarks())
    for made in found:
        _draw(made, choices)
        _show(made)
    _sum_up(found, choices)
    # --all runs the available entries; for named entries, no rows at all is a failure.
    if everything or any(made.rows for made in found):
        return OK
    remark(_nothing_was_run(found, choices))
    return FAILED


def _nothing_was_run(found: Sequence[Reproduction], choices: Choices) -> str:
    """Return the message for verdicts without any row, with advice."""
    asked = ", ".join(made.name for made in found)
    if choices.source is not None:
        return f"error: {choices.source} has no rows for {asked}. Name the output folder of privet study."
    if all(not made.entry.studies for made in found):
        return f"error: {asked} cannot be repeated: see the reason above. See others: privet reproduce --list"
    return f"error: nothing of {asked} could run. Supply the missing parts named above, then use the same command."


class _Remarks:
    """Prints progress; the full reason for parts that did not run is printed once."""

    _NOT_RUN = ": not run: "

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def __call__(self, text: str) -> None:
        part, _, reason = text.partition(self._NOT_RUN)
        remark(f"{part}: not run, for the same reason" if reason in self._reasons else text)
        if reason:
            self._reasons.add(reason)


def _list() -> None:
    from privet_research.reproduction.entry import entries
    from privet_research.reproduction.publications import by_publication
    from privet_research.reproduction.running import availability

    width = max(len(name) for name in entries())
    for place, (publication, found) in enumerate(by_publication(entries()).items()):
        if place:
            click.echo()
        show_heading(paragraphs(publication, indent=""))
        for name, entry in found.items():
            click.echo(f"  {name.ljust(width)}  {availability(entry)}")
            click.echo(paragraphs(f"{entry.title}: {entry.shows}.", indent="      "))
            if entry.stand_in is not None:
                click.echo(paragraphs(f"Stand-in: {entry.stand_in}.", indent="      "))
            if entry.unavailable is not None:
                click.echo(paragraphs(f"Not available: {entry.unavailable}", indent="      "))
    click.echo("\nData are read from the folder of the environment variable PRIVET_DATA.")
    remark("Run a small version of one: privet reproduce clipping-table-1 --quick")


def _points() -> None:
    from privet_research.reproduction.points import counts_in_words, points
    from privet_research.reproduction.publications import PUBLICATIONS

    everything = points()
    for work, publication in PUBLICATIONS.items():
        own = [point for point in everything if point.work == work]
        show_heading(paragraphs(publication, indent=""))
        for point in own:
            shown = ", ".join([*point.entries, *point.code, *(test.split("::")[-1] for test in point.tests)])
            click.echo(paragraphs(f"{point.state.value}: {point.says}", indent="  "))
            for text in (point.lacks, point.needs and f"Needs: {point.needs}.", shown and f"Shown by: {shown}"):
                if text:
                    click.echo(paragraphs(text, indent="      "))
        click.echo(f"{counts_in_words(own)}\n")
    click.echo(counts_in_words(everything))


def _show(made: Reproduction) -> None:
    from privet_research.reproduction.pages import verdict_lines

    show_heading(f"{made.name}: {made.entry.paper}, {made.entry.title}")
    for line in verdict_lines(made):
        click.echo(line)


def _sum_up(found: Sequence[Reproduction], choices: Choices) -> None:
    from privet.runs.run_files import write_whole
    from privet_research.reproduction.pages import counts_line, summary_page

    folder = choices.folder / choices.profile.value
    if len(found) > 1:
        write_whole(folder / "README.md", summary_page(found))
        show_heading("All verdicts")
        shown = [[made.name, made.line, made.cost.shown if made.rows else ""] for made in found]
        show_table(["name", "verdict", "cost"], shown)
        click.echo(counts_line(found))
    click.echo(str(folder if len(found) > 1 else found[0].folder(choices)))


def _draw(made: Reproduction, choices: Choices) -> None:
    """Draw the entry's pictures; its rows are already stored."""
    from privet.durable import write_durably
    from privet_research.pages.reproduction_pictures import pictures

    if not made.rows:
        return
    try:
        for name, data in pictures(made).items():
            write_durably(made.folder(choices) / name, data)
    except ModuleNotFoundError as error:
        remark(f"No picture: {error.name} is missing. Run: pip install 'privet[report]', then the same command.")
