"""The noise tables with their negative control, kept row by row so that a run can be broken off and taken up again.

    python -m privet_research.studies.noise_tables digits --folder research/results/noise
    python -m privet_research.studies.noise_tables adult --folder research/results/noise --seeds 10
    python -m privet_research.studies.noise_tables factors --folder research/results/noise

Rows go to NAME.csv, the table to NAME.md. ``factors`` measures how much plain noise on badly scaled digits depends on
the draw of the pixels' factors and on the split.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch

from privet_research.studies.noise_arms import MAIN_ARMS, OTHER_ARMS, PLAIN, Arm
from privet_research.studies.noise_grid import Problem, run_noise_grid
from privet_research.studies.noise_grid_table import noise_grid_table
from privet_research.studies.noise_problems import (
    SCALED,
    SOFTMAX,
    adult_problems,
    digits_problems,
    fashion_problems,
)
from privet_research.studies.published_noise import PUBLISHED

Row = dict[str, Any]
TABLES: dict[str, tuple[Callable[[], list[Problem]], Sequence[Arm]]] = {
    "digits": (digits_problems, (*MAIN_ARMS, *OTHER_ARMS, PUBLISHED)),
    "adult": (adult_problems, MAIN_ARMS),
    "fashion": (fashion_problems, MAIN_ARMS),
}
_NUMBERS = ("epsilon", "delta", "accuracy", "validation_accuracy", "tuning_accuracy", "norm", "reach", "rate")


def read_rows(path: Path) -> list[Row]:
    """Read rows as they were yielded."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows: list[Row] = list(csv.DictReader(file))
    for row in rows:
        row.update({name: float(row[name]) for name in (*_NUMBERS, "noise_multiplier")})
        row.update({name: int(row[name]) for name in ("seed", "steps", "num_test")})
    return rows


def write_rows(path: Path, rows: Sequence[Row], *, command: str) -> None:
    """Write rows and their table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = f"# Noise on {path.stem}\n\nMade by `{command}`.\n\n{noise_grid_table(rows)}"
    path.with_suffix(".md").write_text(text)


def spread(device: torch.device) -> list[Row]:
    """Return the accuracy of plain noise over draws of factors, and over splits of well scaled digits."""
    found: list[Row] = []
    for draw in range(20):
        problems = {problem.name: problem for problem in digits_problems(split_seed=draw, factor_seed=draw)}
        for name in (SOFTMAX, SCALED):
            rows = run_noise_grid([problems[name]], [PLAIN], seeds=range(5), device=device)
            found += [{**row, "draw": draw} for row in rows]
    return found


def spread_table(rows: Sequence[Row]) -> str:
    """Say how far means lie apart between draws."""
    lines = ["| task | epsilon | mean | least | most | standard deviation |", "|---|---|---|---|---|---|"]
    for task in dict.fromkeys(row["task"] for row in rows):
        for epsilon in sorted({row["epsilon"] for row in rows}):
            cells = [row for row in rows if row["task"] == task and row["epsilon"] == epsilon]
            means = [
                statistics.fmean(100 * row["accuracy"] for row in cells if row["draw"] == draw)
                for draw in dict.fromkeys(row["draw"] for row in cells)
            ]
            figures = (statistics.fmean(means), min(means), max(means), statistics.stdev(means))
            lines.append(f"| {task} | {epsilon:g} | " + " | ".join(f"{value:.2f}" for value in figures) + " |")
    return "\n".join(lines) + "\n"


@click.command()
@click.argument("name", type=click.Choice([*TABLES, "factors"]))
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--seeds", default=20, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--arm", "only", multiple=True, help="Arms by name; all by default.")
def main(name: str, folder: Path, seeds: int, device: str, only: tuple[str, ...]) -> None:
    """Run what is missing of a table and write it."""
    torch.set_num_threads(1)
    command = f"python -m privet_research.studies.noise_tables {name} --folder {folder} --seeds {seeds}"
    if name == "factors":
        rows = spread(torch.device(device))
        folder.mkdir(parents=True, exist_ok=True)
        text = f"# What the draw of factors and of the split does to plain noise\n\nMade by `{command}`.\n\n"
        (folder / "factors.md").write_text(text + spread_table(rows))
        return
    problems, arms = TABLES[name]
    path = folder / f"{name}.csv"
    rows = read_rows(path)
    done = {(row["task"], row["arm"]) for row in rows}
    for problem in problems():
        for arm in arms:
            if (problem.name, arm.name) in done or (only and arm.name not in only):
                continue
            rows += run_noise_grid([problem], [arm], seeds=range(seeds), device=torch.device(device))
            write_rows(path, rows, command=command)
            click.echo(f"{problem.name}: {arm.name}")


if __name__ == "__main__":
    main()
