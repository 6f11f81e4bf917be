"""``privet study``: published comparisons, repeated with the controls they lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from privet.cli.console import show_table
from privet.cli.options import CONTEXT, examples


@click.command(
    context_settings=CONTEXT,
    epilog=examples("privet study", "privet study clipping-clusters -o results/clipping --quick"),
)
@click.argument("name", required=False)
@click.option("--output", "-o", type=click.Path(file_okay=False), help="Folder for NAME.json and NAME.md.")
@click.option("--seeds", type=click.IntRange(min=1), help="Runs per arm; what the study says by default.")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the first run.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
@click.option("--quick", is_flag=True, help="A small version; its figures say nothing about the full one.")
def study(name: str | None, output: str | None, seeds: int | None, first_seed: int, device: str, quick: bool) -> None:
    """Repeat the comparison NAME and print its table; without NAME, list all.

    Studies are about public data. Their runs are seeded, so they can be
    repeated, and are not private.
    """
    from privet.experiments.studies.catalogue import STUDIES, find_study

    if name is None:
        show_table(["name", "what it compares"], [[entry.name, entry.description] for entry in STUDIES.values()])
        return
    chosen = find_study(name)

    from privet.experiments.building import choose_device

    numbers = range(first_seed, first_seed + (seeds or (1 if quick else chosen.num_seeds)))
    where = choose_device(device)
    rows: list[dict[str, Any]] = []
    for row in chosen.run(numbers, where, quick):
        rows.append(row)
        click.echo(f"{row['arm']}, seed {row['seed']}: {chosen.measure} {_figure(row[chosen.measure])}", err=True)
        if output is not None:
            # After every row: what a long study has found so far survives its end.
            _keep(Path(output), chosen.name, {"study": chosen.name, "quick": quick, "rows": rows}, chosen.table(rows))
    click.echo(chosen.table(rows), nl=False)


def _figure(value: float | None) -> str:
    return "none: it diverged" if value is None else f"{value:.4f}"


def _keep(folder: Path, name: str, values: dict[str, Any], table: str) -> None:
    from privet.experiments.run_files import write_json, write_whole

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", values)
    write_whole(folder / f"{name}.md", f"# {name}\n\nMade by `privet study {name}`.\n\n{table}")
