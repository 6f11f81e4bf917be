"""``privet study``: published comparisons, repeated with additional controls."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet.cli.console import CONTEXT, device_option, examples, remark, show_table

if TYPE_CHECKING:
    from privet_research.studies.parts import StudyFiles


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "privet study",
        "privet study clipping-clusters -o research/results/clipping --quick",
        "privet study padding-mnist -o results --part first --seeds 1",
        "privet study padding-mnist -o results --part second --seeds 1 --first-seed 1",
        "privet study padding-mnist -o results --merge",
    ),
)
@click.argument("name", required=False)
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Folder for NAME.json and NAME.md.")
@click.option("--seeds", type=click.IntRange(min=1), help="Runs per arm; by default the number of the study.")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the first run.")
@device_option
@click.option("--quick", is_flag=True, help="Run a small version; its results do not predict those of the full one.")
@click.option("--part", help="Store the rows as this part of the study, for parallel processes; needs --output.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Change a setting of the study; several values make a grid. May be repeated.",
)
@click.option("--resume", is_flag=True, help="Resume: keep the rows in --output and run the missing ones.")
@click.option("--merge", is_flag=True, help="Run nothing: merge the parts in --output.")
def study(
    name: str | None,
    output: str | None,
    seeds: int | None,
    first_seed: int,
    device: str,
    quick: bool,
    part: str | None,
    changes: tuple[str, ...],
    resume: bool,
    merge: bool,
) -> None:
    """Repeat the comparison NAME and print its table; without NAME, list all.

    Studies use public data. Their runs are seeded, so they are repeatable
    and not private.
    """
    from privet_research.studies.catalogue import STUDIES, find_study

    if name is None:
        show_table(["name", "comparison"], [[entry.name, entry.description] for entry in STUDIES.values()])
        remark("Run a small version of one: privet study clipping-clusters --quick")
        return
    chosen = find_study(name)

    from privet.runs.building import choose_device
    from privet.runs.environment import describe_environment
    from privet_research.studies.parts import StudyFiles

    if output is None and (part is not None or merge or resume):
        raise click.UsageError("--part, --merge and --resume need --output, the folder of the rows.")
    if resume and changes:
        raise click.UsageError("--resume uses the study's own settings. Remove --set.")
    files = None if output is None else StudyFiles(folder=Path(output), study=chosen)
    if merge and files is not None:
        merged, was_quick = files.merge()
        files.keep(merged, quick=was_quick, cost=files.merged_cost())
        _draw(files, merged)
        click.echo(chosen.table(merged), nl=False)
        return
    numbers = range(first_seed, first_seed + (seeds or (1 if quick else chosen.num_seeds)))
    rows: list[dict[str, Any]] = []
    run = chosen.varied(changes) if files is None or not resume else chosen.resumed(files.kept(quick=quick, part=part))
    where = choose_device(device)
    name_of_device = str(describe_environment(where)["device"])
    cost = files.kept_cost(part=part) if files is not None and resume else {}
    before, began = cost.get(name_of_device, 0.0), time.monotonic()
    for row in run(numbers, where, quick):
        rows.append(row)
        click.echo(f"{row['arm']}, seed {row['seed']}: {chosen.measure} {_figure(row[chosen.measure])}", err=True)
        if files is not None:
            # After every row, so that an interrupted study keeps its rows.
            cost[name_of_device] = before + time.monotonic() - began
            files.keep(rows, quick=quick, part=part, cost=cost)
    if files is not None and part is None:
        _draw(files, rows)
    click.echo(chosen.table(rows), nl=False)


def _draw(files: StudyFiles, rows: list[dict[str, Any]]) -> None:
    """Draw the study's picture and page, if it has any; its rows are already stored."""
    from privet.durable import write_durably
    from privet_research.pages.study_pages import PAGES
    from privet_research.pages.study_pictures import PICTURES

    draw, page = PICTURES.get(files.study.name), PAGES.get(files.study.name)
    try:
        if draw is not None:
            write_durably(files.folder / f"{files.study.name}.png", draw(rows))
        if page is not None:
            write_durably(files.folder / f"{files.study.name}.html", page(rows).encode())
    except ModuleNotFoundError as error:
        click.echo(f"No picture: {error.name} is missing. Run: pip install 'privet[report]', then --merge.", err=True)


def _figure(value: float | None) -> str:
    return "none: it diverged" if value is None else f"{value:.4f}"
