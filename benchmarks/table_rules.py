"""The constants of the default recipe for tables on tables that are not judged: ``python -m benchmarks.table_rules``.

Every table is trained with the recipe of ``privet train FILE``, with its learning rate or its bound halved and
doubled, and with an intercept of one where more than two classes have a smaller one. Rows are added to
``results/tables/rules.jsonl``; a row that is there is not run again. MNIST and Fashion-MNIST are read below the folder
named by ``PRIVET_DATA``.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.table_data import BenchTable
from benchmarks.table_learners import Task, recipe_of, write
from benchmarks.tables import figures

ROWS = Path("results/tables/rules.jsonl")
FACTORS: Mapping[str, tuple[float, float]] = {
    "as it is": (1, 1), "half rate": (0.5, 1), "double rate": (2, 1), "half bound": (1, 0.5), "double bound": (1, 2),
}  # fmt: skip
ONE = "intercept of one"
CHANGES = (*FACTORS, ONE)


def _table(features: Any, targets: Any, classes: int, *, pixels: bool = False) -> BenchTable:
    low, high = features.min(0), features.max(0)
    if pixels:
        low, high = np.zeros_like(low), np.ones_like(high)
    header = [f"x{place}" for place in range(features.shape[1])]
    columns: list[dict[str, Any]] = [
        {"name": name, "low": float(least), "high": float(most)}
        for name, least, most in zip(header, low, high, strict=True)
    ]
    if classes:
        columns.append({"name": "y", "categories": [str(place) for place in range(classes)]})
    else:
        columns.append({"name": "y", "low": float(targets.min()), "high": float(targets.max())})
    rows = [[*(f"{value:.6g}" for value in row), f"{goal:g}"] for row, goal in zip(features, targets, strict=True)]
    return BenchTable(header=[*header, "y"], rows=rows, columns=columns, target="y")


def _classes(
    size: int, columns: int, classes: int, informative: int, *, skewed: bool = False, rare: float = 0
) -> BenchTable:
    from sklearn.datasets import make_classification

    features, labels = make_classification(
        size, columns, n_informative=informative, n_redundant=min(columns - informative, informative),
        n_classes=classes, n_clusters_per_class=1, random_state=size, weights=[1 - rare] if rare else None,
    )  # fmt: skip
    return _table(np.exp(0.7 * features) if skewed else features, labels, classes)


def _iris() -> BenchTable:
    from sklearn.datasets import load_iris

    return _table(load_iris().data, load_iris().target, 3)


def _pictures(name: str, size: int) -> BenchTable:
    """Return pictures of 28 by 28 as means of fields of four by four, with an edge of two."""
    from privet.datasets.known import load

    found = load(name).train
    pixels = np.pad(found.features[:size].numpy().reshape(-1, 28, 28), ((0, 0), (2, 2), (2, 2)))
    return _table(
        pixels.reshape(-1, 8, 4, 8, 4).mean((2, 4)).reshape(size, 64), found.labels[:size].numpy(), 10, pixels=True
    )


def _uneven() -> BenchTable:
    from sklearn.datasets import make_classification

    features, labels = make_classification(
        3_000, 15, n_informative=8, n_classes=6, n_clusters_per_class=1, class_sep=1.3, random_state=3_000,
        weights=[0.5, 0.25, 0.1, 0.08, 0.04, 0.03],
    )  # fmt: skip
    return _table(features, labels, 6)


def _numbers(name: str, size: int, **options: Any) -> BenchTable:
    from sklearn import datasets

    return _table(*getattr(datasets, name)(size, random_state=size, **options), 0)


TABLES: Mapping[str, Callable[[], BenchTable]] = {
    "MNIST, 1,800 of 8 by 8": lambda: _pictures("mnist", 1_800),
    "Fashion-MNIST, 1,800 of 8 by 8": lambda: _pictures("fashion_mnist", 1_800),
    "made, 2,000 records, 8 classes": lambda: _classes(2_000, 40, 8, 10),
    "made, 3,000 records, 6 uneven classes": _uneven,
    "iris": _iris,
    "made, 200 records": lambda: _classes(200, 10, 2, 4),
    "made, 700 records, skewed": lambda: _classes(700, 30, 2, 8, skewed=True),
    "made, 5,000 records, 5 % positive": lambda: _classes(5_000, 20, 2, 6, rare=0.05),
    "linear, 400 records": lambda: _numbers("make_regression", 400, n_features=10, n_informative=5, noise=30.0),
    "Friedman, 500 records": lambda: _numbers("make_friedman1", 500),
    "Friedman, 8,000 records": lambda: _numbers("make_friedman1", 8_000),
}


def _rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def _one(table: BenchTable, epsilon: float, seed: int, change: str) -> dict[str, float]:
    from privet.runs.prediction import predict_new
    from privet.runs.recipes.recipe import Recipe
    from privet.runs.runner import train

    train_rows, test_rows = table.split(seed)
    size = int(float(f"{len(train_rows):.2g}"))
    task = Task(table=table, train=train_rows, test=test_rows, epsilon=epsilon, delta=1e-5, train_size=size, seed=seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = recipe_of(task, folder, write(folder / "train.csv", table.header, train_rows)).to_dict()
        rate, bound = FACTORS.get(change, (1, 1))
        if change == ONE:
            values["model"] = "table_linear"
        factors = values["training"]["rate_factors"]
        values["training"]["optimizer"]["learning_rate"] *= rate
        factors["statistics"] /= rate
        values["privacy"]["clipping"]["norm"][1] *= bound
        train(Recipe.from_dict(values), folder / "run")
        found = predict_new(folder / "run", write(folder / "test.csv", table.header, test_rows), device="cpu")
        return figures(table, test_rows, found.columns["y"] if table.is_regression else found.probabilities)


@click.command()
@click.option("--minutes", default=4.5, show_default=True, help="Begin no cell after this time.")
@click.option("--seeds", default=2, show_default=True)
def main(minutes: float, seeds: int) -> None:
    """Run the cells that are not there yet, then write results/tables/rules.md."""
    ends, found = time.monotonic() + 60 * minutes, _rows()
    done = {(row["table"], row["epsilon"], row["seed"], row["change"]) for row in found}
    for name, make in TABLES.items():
        table = make()
        for seed in range(seeds):
            for epsilon in (1.0, 3.0):
                for change in CHANGES:
                    if (name, epsilon, seed, change) in done or time.monotonic() > ends:
                        continue
                    if change == ONE and not _has_many_classes(table):
                        continue
                    row = {"table": name, "epsilon": epsilon, "seed": seed, "change": change}
                    row |= _one(table, epsilon, seed, change)
                    ROWS.parent.mkdir(parents=True, exist_ok=True)
                    with open(ROWS, "a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
    (ROWS.parent / "rules.md").write_text(_page(_rows()), encoding="utf-8")


def _has_many_classes(table: BenchTable) -> bool:
    return len(table.columns[-1].get("categories", ())) > 2


def _page(found: list[dict[str, Any]]) -> str:
    lines = [
        "# The constants of the default recipe, on tables that are not judged",
        "",
        "`python -m benchmarks.table_rules`. Log loss of classes, squared error over the variance of numbers; means.",
        "",
        "| table | epsilon | " + " | ".join(CHANGES) + " |",
        "| --- " * (2 + len(CHANGES)) + "|",
    ]
    for table, epsilon in dict.fromkeys((row["table"], row["epsilon"]) for row in found):
        own = [row for row in found if (row["table"], row["epsilon"]) == (table, epsilon)]
        shown = []
        for change in CHANGES:
            values = [row["log_loss"] if "log_loss" in row else 1 - row["r2"] for row in own if row["change"] == change]
            shown.append(f"{np.mean(values):.3f}" if values else "-")
        lines.append(f"| {table} | {epsilon:g} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
