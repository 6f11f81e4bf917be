"""Private learners on tables: ``python -m benchmarks.tables run``, then ``python -m benchmarks.tables show``.

Rows are added to ``results/tables/rows.jsonl`` as they are found, and a row that is there is not run again, so the work
can be cut into pieces. The learning rate of Opacus is chosen among five by the figures on test data of the first two
seeds, for each figure by itself: in its favour. The packages are those of an environment of its own::

    python3 -m venv bench
    bench/bin/pip install -c constraints.txt . opacus diffprivlib interpret-core scikit-learn==1.5.2
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.table_data import TABLES, BenchTable
from benchmarks.table_learners import LEARNERS, RATES, Task

ROWS = Path("results/tables/rows.jsonl")
EPSILONS = (1.0, 3.0)
TUNING_SEEDS = 2
CLASS_FIGURES = {"accuracy": 1, "auc": 1, "log_loss": -1}
NUMBER_FIGURES = {"r2": 1, "mae": -1}
SHOWN = ("privet", "opacus_linear", "opacus_mlp", "diffprivlib", "dp_ebm", "constant")


def figures(table: BenchTable, test: list[list[str]], found: Any) -> dict[str, float]:
    """Return the figures of the answers for test records."""
    from sklearn.metrics import roc_auc_score

    place = list(table.header).index(table.target)
    if table.is_regression:
        wanted = np.array([float(row[place]) for row in test])
        squares = np.square(found - wanted).mean() / wanted.var()
        return {"r2": 1 - float(squares), "mae": float(np.abs(found - wanted).mean())}
    names = next(column["categories"] for column in table.columns if column["name"] == table.target)
    codes = np.array([names.index(row[place]) for row in test])
    own = np.clip(found[np.arange(len(codes)), codes], 1e-12, 1)
    auc = (
        roc_auc_score(codes, found[:, 1])
        if len(names) == 2
        else roc_auc_score(codes, found, multi_class="ovr", labels=range(len(names)))
    )
    return {
        "accuracy": float((found.argmax(1) == codes).mean()),
        "auc": float(auc),
        "log_loss": float(-np.log(own).mean()),
    }


def rows() -> list[dict[str, Any]]:
    """Return the rows found so far."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["table"], row["epsilon"], row["seed"], row["learner"]


@click.group()
def main() -> None:
    """Private learners on tables."""


@main.command()
@click.option("--tables", default=",".join(TABLES), show_default=True)
@click.option("--learners", default="privet,constant,diffprivlib,dp_ebm,opacus_linear,opacus_mlp", show_default=True)
@click.option("--seeds", default="0-9", show_default=True, help="First to last.")
@click.option("--epsilons", default="1,3", show_default=True)
@click.option("--minutes", default=4.5, show_default=True, help="Begin no cell after this time.")
def run(tables: str, learners: str, seeds: str, epsilons: str, minutes: float) -> None:
    """Run the cells that are not there yet."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    ends, done = time.monotonic() + 60 * minutes, {_key(row) for row in rows()}
    first, _, last = seeds.partition("-")
    for name in tables.split(","):
        table = TABLES[name]()
        for seed in range(int(first), int(last or first) + 1):
            for epsilon in map(float, epsilons.split(",")):
                task = _task(table, epsilon, seed)
                for learner in _wanted(name, epsilon, seed, learners.split(",")):
                    if (name, epsilon, seed, learner) in done:
                        continue
                    if time.monotonic() > ends:
                        return
                    _run_one(name, task, learner)


def _wanted(table: str, epsilon: float, seed: int, learners: list[str]) -> Iterator[str]:
    for learner in learners:
        if not learner.startswith("opacus"):
            yield learner
        elif seed < TUNING_SEEDS:
            yield from (f"{learner} {rate:g}" for rate in RATES)
        else:
            yield from sorted(set(_best_rates(rows(), table, epsilon, learner).values()))


def _best_rates(found: list[dict[str, Any]], table: str, epsilon: float, family: str) -> dict[str, str]:
    """Return the learner of a family with the best mean over the tuning seeds, by figure."""
    best: dict[str, str] = {}
    cells = [row for row in found if (row["table"], row["epsilon"]) == (table, epsilon) and row["seed"] < TUNING_SEEDS]
    for figure, sign in {**CLASS_FIGURES, **NUMBER_FIGURES}.items():
        means = {
            name: np.mean([sign * row[figure] for row in cells if row["learner"] == name])
            for name in {row["learner"] for row in cells if row["learner"].startswith(f"{family} ") and figure in row}
        }
        if means:
            best[figure] = max(means, key=lambda name: means[name])
    return best


def _task(table: BenchTable, epsilon: float, seed: int) -> Task:
    from privet.runs.recipes.own_data_defaults import default_delta

    train, test = table.split(seed)
    size = float(f"{len(train):.2g}")  # what an owner would declare: a round number
    return Task(
        table=table, train=train, test=test, epsilon=epsilon, delta=default_delta(int(table.num_persons or size)),
        train_size=int(size), seed=seed,
    )  # fmt: skip


def _run_one(name: str, task: Task, learner: str) -> None:
    began = time.monotonic()
    row: dict[str, Any] = {"table": name, "epsilon": task.epsilon, "seed": task.seed, "learner": learner}
    with tempfile.TemporaryDirectory() as folder:
        try:
            row |= figures(task.table, task.test, LEARNERS[learner].answer(task, Path(folder)))
        except (ValueError, NotImplementedError, TypeError, RuntimeError) as error:
            if learner == "privet":
                raise
            row["refused"] = str(error).splitlines()[0][:120]
    row["seconds"] = round(time.monotonic() - began, 1)
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    with open(ROWS, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    click.echo(json.dumps(row))


@main.command()
def show() -> None:
    """Write results/tables/README.md from the rows."""
    from benchmarks.table_summary import summary

    text = summary(rows())
    (ROWS.parent / "README.md").write_text(text, encoding="utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
