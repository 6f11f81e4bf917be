"""The tables of ``python -m benchmarks.tables``: published ones, and two made-up hospitals, as cells of a CSV file.

Ranges are declared, as an owner would: round numbers around what each quantity can be. Published tables are those that
scikit-learn bundles and those below the folder named by ``PRIVET_DATA``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

Rows = list[list[str]]


@dataclass(frozen=True, kw_only=True)
class BenchTable:
    """One table.

    Attributes:
        header: The column names.
        rows: The cells.
        columns: The declared columns, target included, as in a schema file.
        target: The column to predict.
        person: The column that names persons, if records repeat them.
        num_persons: Declared number of persons of the training part.
        test_rows: Published test records; None to hold out a quarter, by persons where records repeat them.
    """

    header: Sequence[str]
    rows: Rows
    columns: Sequence[Mapping[str, Any]]
    target: str
    person: str | None = None
    num_persons: int | None = None
    test_rows: Rows | None = None

    @property
    def is_regression(self) -> bool:
        return "categories" not in next(column for column in self.columns if column["name"] == self.target)

    def split(self, seed: int) -> tuple[Rows, Rows]:
        """Return training and test records."""
        if self.test_rows is not None:
            return self.rows, self.test_rows
        owner = self.header.index(self.person) if self.person else None
        names = [row[owner] if owner is not None else str(place) for place, row in enumerate(self.rows)]
        order = sorted(set(names))
        np.random.default_rng(seed).shuffle(order)
        held = set(order[: len(order) // 4])
        train = [row for row, name in zip(self.rows, names, strict=True) if name not in held]
        return train, [row for row, name in zip(self.rows, names, strict=True) if name in held]


def _bundled(name: str, ranges: Sequence[tuple[float, float]], classes: Sequence[str]) -> BenchTable:
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    header = [f"x{place}" for place in range(found.data.shape[1])]
    columns = [{"name": one, "low": low, "high": high} for one, (low, high) in zip(header, ranges, strict=True)]
    rows = [
        [f"{value:g}" for value in row] + [classes[label]] for row, label in zip(found.data, found.target, strict=True)
    ]
    return BenchTable(
        header=[*header, "target"], rows=rows, columns=[*columns, {"name": "target", "categories": list(classes)}],
        target="target",
    )  # fmt: skip


def breast_cancer() -> BenchTable:
    """569 tumours by thirty measurements; the ranges are those of the published description, rounded outwards."""
    mean = [
        (5, 30),
        (5, 40),
        (40, 200),
        (100, 2600),
        (0.05, 0.2),
        (0, 0.35),
        (0, 0.45),
        (0, 0.25),
        (0.1, 0.35),
        (0.04, 0.1),
    ]
    error = [(0, 3), (0, 5), (0, 22), (0, 550), (0, 0.035), (0, 0.14), (0, 0.4), (0, 0.06), (0, 0.08), (0, 0.03)]
    worst = [
        (5, 40),
        (10, 50),
        (50, 260),
        (150, 4300),
        (0.05, 0.25),
        (0, 1.1),
        (0, 1.3),
        (0, 0.3),
        (0.1, 0.7),
        (0.05, 0.21),
    ]
    return _bundled("breast_cancer", [*mean, *error, *worst], ["malignant", "benign"])


def wine() -> BenchTable:
    """178 wines of three cultivars by thirteen measurements."""
    ranges = [
        (10, 16),
        (0, 6),
        (1, 4),
        (10, 30),
        (60, 170),
        (0, 4),
        (0, 6),
        (0, 1),
        (0, 4),
        (0, 14),
        (0, 2),
        (1, 4.5),
        (200, 1800),
    ]
    return _bundled("wine", ranges, ["a", "b", "c"])


def digits() -> BenchTable:
    """1,797 digits of eight by eight pixels."""
    return _bundled("digits", [(0, 16)] * 64, [str(digit) for digit in range(10)])


def diabetes() -> BenchTable:
    """442 patients: the progression of diabetes after a year, by ten measurements."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    ranges = [(18, 80), (1, 2), (15, 45), (60, 140), (80, 320), (30, 250), (15, 100), (1, 10), (3, 6.5), (50, 130)]
    header = list(found.feature_names)
    columns = [{"name": one, "low": low, "high": high} for one, (low, high) in zip(header, ranges, strict=True)]
    rows = [[f"{value:g}" for value in [*row, goal]] for row, goal in zip(found.data, found.target, strict=True)]
    target = {"name": "progression", "low": 0, "high": 350}
    return BenchTable(header=[*header, "progression"], rows=rows, columns=[*columns, target], target="progression")


def _of_privet(name: str) -> tuple[Any, Any]:
    from privet.datasets import columns, tabular
    from privet.datasets.csv_records import csv_records
    from privet.datasets.files import read_all

    schema, file = {
        "california": (columns.CALIFORNIA_SCHEMA, "california_housing.csv"),
        "wine_red": (columns.WINE_SCHEMA, tabular.WINE_FILE.name),
        "adult": (columns.adult_schema(income_suffix=""), "adult.data"),
        "adult_test": (columns.adult_schema(income_suffix="."), "adult.test"),
    }[name]
    folder = Path(os.environ["PRIVET_DATA"]) / "tabular"
    path = next(found for found in (folder / file, folder / f"{file}.gz", folder / f"{file}.xz") if found.exists())
    cells = [[cell.strip() for cell in record.cells] for record in csv_records(read_all(path), schema, path=path)]
    return schema, cells


def _numbers(schema: Any) -> list[dict[str, Any]]:
    return [{"name": one.name, "low": one.low, "high": one.high} for one in schema.columns]


def california() -> BenchTable:
    """20,640 block groups of California: the median house value."""
    schema, cells = _of_privet("california")
    header, rows = cells[0], [row for row in cells[1:] if len(row) == len(cells[0])]
    wanted = [column for column in _numbers(schema) if column["name"] in header]
    for column in wanted:
        if column["name"] == "total_bedrooms":
            column["default"] = 500
    return BenchTable(header=header, rows=rows, columns=wanted, target="median_house_value")


def wine_red() -> BenchTable:
    """1,599 red wines: their quality from 0 to 10, as a number."""
    schema, cells = _of_privet("wine_red")
    header = [name.strip('"') for name in cells[0]]
    return BenchTable(header=header, rows=cells[1:], columns=_numbers(schema), target="quality")


def adult() -> BenchTable:
    """The census of 1994 in its published split."""
    schema, train = _of_privet("adult")
    _, test = _of_privet("adult_test")
    columns = [
        {"name": one.name, "categories": list(one.categories), "default": one.default}
        if hasattr(one, "categories")
        else {"name": one.name, "low": one.low, "high": one.high}
        for one in schema.columns
    ]
    size = len(columns)
    kept = [row for row in train if len(row) == size]
    tested = [[*row[:-1], row[-1].rstrip(".")] for row in test if len(row) == size]
    return BenchTable(
        header=[one.name for one in schema.columns], rows=kept, columns=columns, target="income", test_rows=tested
    )


def _hospital(seed: int, num_patients: int, risk: Callable[..., np.ndarray[Any, Any]]) -> BenchTable:
    rng = np.random.default_rng(seed)
    first, rows = date(2018, 1, 1), []
    wards, severities = ["surgery", "medicine", "heart", "other"], ["mild", "moderate", "severe"]
    for patient in range(num_patients):
        age, sex, frailty = rng.uniform(18, 95), rng.integers(2), rng.normal()
        for _ in range(1 + rng.geometric(0.45)):
            ward, severity = rng.integers(4), int(np.clip(round(1 + 0.6 * frailty + rng.normal() * 0.6), 0, 2))
            day = int(rng.integers(0, 1_825))
            creatinine = float(np.exp(rng.normal(0.1 + 0.004 * (age - 55) + 0.2 * severity, 0.35)))
            sodium = float(rng.normal(139 - 1.5 * severity, 3.5))
            visits = int(rng.poisson(np.exp(0.2 + 0.35 * frailty)))
            chance = 1 / (1 + np.exp(-risk(age, sex, severity, ward, creatinine, sodium, visits, day)))
            rows.append(
                [
                    f"p{patient}",
                    f"{age:.0f}",
                    ["f", "m"][sex],
                    wards[ward],
                    severities[severity],
                    (first + timedelta(days=day)).isoformat(),
                    "" if rng.random() < 0.15 else f"{creatinine:.2f}",
                    "" if rng.random() < 0.1 else f"{sodium:.0f}",
                    str(visits),
                    ["no", "yes"][int(rng.random() < chance)],
                ]
            )
    columns = [
        {"name": "age", "low": 18, "high": 100},
        {"name": "sex", "categories": ["f", "m"]},
        {"name": "ward", "categories": wards},
        {"name": "severity", "ordered": severities},
        {"name": "admitted", "dates": "%Y-%m-%d", "earliest": "2018-01-01", "latest": "2022-12-31"},
        {"name": "creatinine", "low": 0, "high": 6, "default": 1.1, "gaps": True},
        {"name": "sodium", "low": 115, "high": 160, "default": 139, "gaps": True},
        {"name": "visits", "low": 0, "high": 15},
        {"name": "readmitted", "categories": ["no", "yes"]},
    ]
    return BenchTable(
        header=["patient_id", *(str(column["name"]) for column in columns)], rows=rows, columns=columns,
        target="readmitted", person="patient_id", num_persons=num_patients * 3 // 4,
    )  # fmt: skip


def hospital_a() -> BenchTable:
    """2,000 made-up patients with repeated stays; the risk is linear in most columns, about 5 % are readmitted."""
    return _hospital(
        1, 2_000, lambda age, sex, severity, ward, creatinine, sodium, visits, day: (
            -5.35 + 0.025 * (age - 55) + 0.9 * severity + 0.5 * (creatinine - 1.1) - 0.06 * (sodium - 139)
            + 0.35 * visits + 0.4 * (ward == 2)
        ),
    )  # fmt: skip


def hospital_b() -> BenchTable:
    """4,000 made-up patients; the risk has steps and a product, about 5 % are readmitted."""
    return _hospital(
        2, 4_000, lambda age, sex, severity, ward, creatinine, sodium, visits, day: (
            -4.4 + 1.2 * (age > 70) + 1.3 * (severity == 2) * (visits > 1) + 1.0 * (sodium < 133)
            + 0.8 * (creatinine > 1.8) + 0.3 * visits - 0.0004 * day
        ),
    )  # fmt: skip


TABLES: Mapping[str, Callable[[], BenchTable]] = {
    "breast_cancer": breast_cancer,
    "wine": wine,
    "digits": digits,
    "adult": adult,
    "hospital_a": hospital_a,
    "hospital_b": hospital_b,
    "diabetes": diabetes,
    "california": california,
    "wine_red": wine_red,
}
