"""The learners of ``python -m benchmarks.tables``: privet's default recipe, and what others offer for tables.

Each learner gets the training records and answers for the test records: probabilities of classes, or numbers. Rivals
see the records as privet encodes them by the declared ranges; DP-EBM sees the declared numbers and words. A rival that
knows only records protects persons in the one way it has: it gets one record of each person.
"""

from __future__ import annotations

import csv
import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.table_data import BenchTable, Rows

Array = np.ndarray[Any, Any]
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training and test part with its promise."""

    table: BenchTable
    train: Rows
    test: Rows
    epsilon: float
    delta: float
    train_size: int
    seed: int

    def alone(self) -> Rows:
        """Return the training records, one of each person."""
        if self.table.person is None:
            return self.train
        place = self.table.header.index(self.table.person)
        return list({row[place]: row for row in reversed(self.train)}.values())

    @cached_property
    def encoded(self) -> tuple[Array, Array, Array, list[float]]:
        """Features in [0, 1] of training (one record of a person) and test, and the targets with their range."""
        return _encoded(self)


class _Batches(torch.utils.data.Dataset[Any]):
    """Records that are read as whole batches: the same draws as one by one, without a call for each record."""

    def __init__(self, *parts: torch.Tensor) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts[0])

    def __getitem__(self, place: int) -> tuple[torch.Tensor, ...]:
        return tuple(part[place] for part in self._parts)

    def __getitems__(self, places: Sequence[int]) -> Sequence[tuple[torch.Tensor, ...]]:
        return [tuple(part[list(places)] for part in self._parts)] if len(places) else []


class Learner(Protocol):
    """Trains on a task and answers for its test records."""

    def answer(self, task: Task, folder: Path) -> Array: ...


def write(path: Path, header: Sequence[str], rows: Rows) -> Path:
    """Write a CSV file and return its path."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def recipe_of(task: Task, folder: Path, train: Path) -> Any:
    """Return the recipe of ``privet train FILE --schema ... --epsilon ...`` for a task."""
    from tomli_w import dumps

    from privet.runs.recipes.own_data_defaults import Persons, Promise, table_recipe
    from privet.runs.recipes.recipe_files import recipe_from_values
    from privet.runs.recipes.table_schema import read_schema

    table = task.table
    (folder / "schema.toml").write_text(dumps({"columns": [dict(column) for column in table.columns]}))
    persons = None
    if table.person is not None:
        persons = Persons(column=table.person, num_persons=int(table.num_persons or 0), max_records=8)
    values = table_recipe(
        Promise(epsilon=task.epsilon, delta=task.delta, train_size=task.train_size, persons=persons),
        read_schema(folder / "schema.toml", targets=[table.target]),
        name="own_table", train=train, test=None, delimiter=",",
    )  # fmt: skip
    return recipe_from_values(values, ["training.device='cpu'"], folder=folder)


class Privet:
    """The default recipe, by the functions behind ``privet train`` and ``privet predict``."""

    def answer(self, task: Task, folder: Path) -> Array:
        from privet.runs.prediction import predict_new
        from privet.runs.runner import train

        path = write(folder / "train.csv", task.table.header, task.train)
        train(recipe_of(task, folder, path), folder / "run")
        found = predict_new(folder / "run", write(folder / "test.csv", task.table.header, task.test), device="cpu")
        return found.columns[task.table.target] if task.table.is_regression else found.probabilities


def _encoded(task: Task) -> tuple[Array, Array, Array, list[float]]:
    from privet.datasets.own.own_table import load_declared_table

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train = write(folder / "train.csv", task.table.header, task.alone())
        test = write(folder / "test.csv", task.table.header, task.test)
        recipe = recipe_of(task, folder, train)
        split = load_declared_table(recipe.table.declared(), recipe.info, train=train, test=test)
    low = high = 0.0
    if task.table.is_regression:
        goal = next(column for column in task.table.columns if column["name"] == task.table.target)
        low, high = float(goal["low"]), float(goal["high"])
    return split.train.features.numpy(), split.test.features.numpy(), split.train.labels.numpy(), [low, high]


@cache
def _noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    return get_noise_multiplier(
        target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps, accountant="prv"
    )


@dataclass(frozen=True, kw_only=True)
class Opacus:
    """DP-SGD by Opacus on a linear model or a network of one hidden layer of 64."""

    hidden: int
    rate: float

    def answer(self, task: Task, folder: Path) -> Array:
        from opacus import PrivacyEngine

        train, test, labels, (low, high) = task.encoded
        torch.manual_seed(task.seed)
        outputs = 1 if task.table.is_regression else int(max(labels.max(), 1)) + 1
        layers = [nn.Linear(train.shape[1], outputs)]
        if self.hidden:
            layers = [nn.Linear(train.shape[1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, outputs)]
        model = nn.Sequential(*layers)
        goal = torch.from_numpy((labels - low) / (high - low) * 2 - 1 if task.table.is_regression else labels)
        records = _Batches(torch.from_numpy(train), goal)
        size = min(1_024, max(32, len(train) // 20))
        epochs = 20 if len(train) < 5_000 else 8
        loader = torch.utils.data.DataLoader(records, batch_size=size, collate_fn=itemgetter(0))
        noise = _noise(task.epsilon, task.delta, 1 / len(loader), epochs * len(loader))
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=1.0
        )
        for _ in range(epochs):
            for inputs, wanted in loader:
                if not len(inputs):
                    continue
                optimizer.zero_grad()
                found = model(inputs)
                loss = (
                    functional.mse_loss(found, wanted.float())
                    if task.table.is_regression
                    else functional.cross_entropy(found, wanted)
                )
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            found = model(torch.from_numpy(test)).double()
        if task.table.is_regression:
            return ((found[:, 0].clamp(-1, 1) + 1) / 2 * (high - low) + low).numpy()
        return found.softmax(1).numpy()


class Diffprivlib:
    """Logistic or linear regression of diffprivlib, under pure epsilon."""

    def answer(self, task: Task, folder: Path) -> Array:
        from diffprivlib import models

        train, test, labels, (low, high) = task.encoded
        if task.table.is_regression:
            size = train.shape[1]
            learner = models.LinearRegression(
                epsilon=task.epsilon, bounds_X=(np.zeros(size), np.ones(size)), bounds_y=(low, high),
                random_state=task.seed,
            )  # fmt: skip
            return np.clip(learner.fit(train.astype(float), labels[:, 0].astype(float)).predict(test), low, high)
        features = [column for column in task.table.columns if column["name"] != task.table.target]
        norm = math.sqrt(sum(1 + bool(column.get("gaps")) for column in features))
        learner = models.LogisticRegression(
            epsilon=task.epsilon, data_norm=norm, random_state=task.seed, max_iter=1_000
        )
        return learner.fit(train.astype(float), labels).predict_proba(test)


class DpEbm:
    """DP-EBM of interpret, with the declared ranges as its bounds."""

    def answer(self, task: Task, folder: Path) -> Array:
        from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

        table = task.table
        features = [column for column in table.columns if column["name"] != table.target]
        train, test = (self._cells(table, features, rows) for rows in (task.alone(), task.test))
        bounds = {place: self._range(column) for place, column in enumerate(features) if "categories" not in column}
        shared: Mapping[str, Any] = {
            "feature_types": ["nominal" if "categories" in column else "continuous" for column in features],
            "epsilon": task.epsilon, "delta": task.delta, "privacy_bounds": bounds,
            "random_state": task.seed, "n_jobs": 1,
        }  # fmt: skip
        goal = next(column for column in table.columns if column["name"] == table.target)
        place = list(table.header).index(table.target)
        labels = [row[place] for row in task.alone()]
        if table.is_regression:
            low, high = float(goal["low"]), float(goal["high"])
            learner = DPExplainableBoostingRegressor(privacy_target_min=low, privacy_target_max=high, **shared)
            learner.fit(train, np.array([float(label) for label in labels]))
            return np.clip(learner.predict(test), low, high)
        if len(goal["categories"]) > 2:
            raise ValueError("DP-EBM tells two classes apart, not several.")
        codes = np.array([list(goal["categories"]).index(label) for label in labels])
        return DPExplainableBoostingClassifier(**shared).fit(train, codes).predict_proba(test)

    def _range(self, column: Mapping[str, Any]) -> tuple[float, float]:
        from privet.runs.recipes.table_settings import ColumnSettings

        found = ColumnSettings(**column).column()
        return found.low, found.high

    def _cells(self, table: BenchTable, features: Sequence[Mapping[str, Any]], rows: Rows) -> Array:
        from privet.runs.recipes.table_settings import ColumnSettings

        parts = []
        for column in features:
            place = list(table.header).index(column["name"])
            declared = ColumnSettings(**column).column()
            words = [row[place].strip() for row in rows]
            if "categories" in column:
                parts.append(np.array(words, dtype=object))
            else:
                parts.append(np.array([declared.value(word or None) for word in words], dtype=object))
        return np.stack(parts, axis=1)


class Constant:
    """The class shares, or the mean, of the training records. Not private: what a model must beat."""

    def answer(self, task: Task, folder: Path) -> Array:
        _, test, labels, _ = task.encoded
        if task.table.is_regression:
            return np.full(len(test), float(labels.mean()))
        return np.tile(np.bincount(labels, minlength=int(labels.max()) + 1) / len(labels), (len(test), 1))


LEARNERS: Mapping[str, Learner] = {
    "privet": Privet(),
    "constant": Constant(),
    "diffprivlib": Diffprivlib(),
    "dp_ebm": DpEbm(),
    **{f"opacus_linear {rate:g}": Opacus(hidden=0, rate=rate) for rate in RATES},
    **{f"opacus_mlp {rate:g}": Opacus(hidden=64, rate=rate) for rate in RATES},
}
warnings.filterwarnings("ignore", module="opacus|diffprivlib|interpret|sklearn")
