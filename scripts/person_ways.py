"""Which way to protect persons estimates a mean better: drawing persons, or drawing records of bounded persons.

Every person has records around a mean of their own. The share of the variance that lies within persons runs from 0
(the records of one person are equal) to 1 (they differ as much as those of different persons). Both ways use the same
number of records in a step, the same cap on records per person and the same guarantee; each has its best clipping
norm. Data are made up; samplers, pools and calibrated noise are the library's:

    python -m scripts.person_ways            # about two minutes; writes results/persons/
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.owners import Owners, unpadded
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.vocabulary import Adjacency, Unit

mpl.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).resolve().parent.parent / "results" / "persons"
PERSONS, RECORDS, DIMENSION = 1000, 8, 20
STEPS, CAP, DELTA, SEEDS = 60, 8, 1e-5, 20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A guarantee, and the records of a step: with many of them noise is what hurts, with few it is the draw."""

    epsilon: float
    per_step: int

    @property
    def words(self) -> str:
        return f"epsilon {self.epsilon:g}, {self.per_step} records per step"


SETTINGS = (
    Setting(epsilon=0.5, per_step=800),
    Setting(epsilon=1.0, per_step=400),
    Setting(epsilon=3.0, per_step=80),
)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0)
WAYS = ("draw persons", "draw records")
NORMS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0)
Array = NDArray[np.float64]
Sampler = SampledPersons | BoundedPersons


def samplers(setting: Setting) -> dict[str, Sampler]:
    """Return both ways, with the same records per step."""
    drawn = Poisson.for_dataset(dataset_size=PERSONS, batch_size=setting.per_step / CAP, steps=STEPS)
    pool = Poisson.for_dataset(dataset_size=PERSONS * CAP, batch_size=setting.per_step, steps=STEPS)
    return {
        "draw persons": SampledPersons(sampling=drawn, max_records=CAP),
        "draw records": BoundedPersons(sampling=pool, max_records=CAP),
    }


def noise_of(sampling: Sampler, epsilon: float) -> float:
    """Return the calibrated noise multiplier."""
    plan = Plan(
        sampling=sampling,
        clipping=Threshold(norm=1.0),
        noise=Gaussian(),
        delta=DELTA,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.PERSON,
    ).calibrated(epsilon=epsilon)
    assert plan.noise.noise_multiplier is not None
    return plan.noise.noise_multiplier


def error(sampling: Sampler, multiplier: float, share: float, norm: float, seed: int) -> float:
    """Return the squared error of the estimated mean, per coordinate, of one private run."""
    rng = np.random.default_rng([seed, round(100 * share)])
    between = np.sqrt(1 - share) * rng.standard_normal((PERSONS, 1, DIMENSION))
    records = (between + np.sqrt(share) * rng.standard_normal((PERSONS, RECORDS, DIMENSION))).reshape(-1, DIMENSION) + 1
    truth = records.mean(0)
    pool = sampling.pool(Owners(of_record=np.repeat(np.arange(PERSONS), RECORDS)), rng)
    point = np.zeros(DIMENSION)
    for step in range(STEPS):
        items = next(sampling.round_batches(len(pool), rng))
        rows = pool.records(items, rng)
        gradients = point - records[rows] if rows.ndim == 1 else mean_gradients(point, records, rows)
        lengths = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-12)
        total = (gradients * np.minimum(1.0, norm / lengths)).sum(0) + norm * multiplier * rng.standard_normal(
            DIMENSION
        )
        point = point - total / sampling.expected_batch_size / (1 + step) ** 0.75
    return float(((point - truth) ** 2).mean())


def mean_gradients(point: Array, records: Array, rows: NDArray[np.int64]) -> Array:
    """Return the mean gradient of each person."""
    places, counts = unpadded(rows)
    return np.asarray(((point - records[places]) * counts[..., None]).sum(1) / counts.sum(1, keepdims=True))


def measured(setting: Setting) -> dict[str, Any]:
    """Return the best error of both ways at every share, with its standard error and clipping norm."""
    found: dict[str, Any] = {"epsilon": setting.epsilon, "records_per_step": setting.per_step, "ways": {}}
    for name, sampling in samplers(setting).items():
        multiplier, rows = noise_of(sampling, setting.epsilon), []
        for share in SHARES:
            tried = []
            for norm in NORMS:
                errors = [error(sampling, multiplier, share, norm, seed) for seed in range(SEEDS)]
                tried.append((float(np.mean(errors)), float(np.std(errors) / SEEDS**0.5), norm))
            mean, spread, norm = min(tried)
            rows.append({"share": share, "error": mean, "standard_error": spread, "norm": norm})
        found["ways"][name] = {"noise_multiplier": multiplier, "rows": rows}
    return found


def table(setting: Setting, found: dict[str, Any]) -> str:
    """Return the table of one setting."""
    heads = "| variance within persons | draw persons | draw records | better |\n|---|---|---|---|\n"
    rows = []
    for persons, records in zip(*(found["ways"][name]["rows"] for name in WAYS), strict=True):
        spread = np.hypot(persons["standard_error"], records["standard_error"])
        gap = records["error"] - persons["error"]
        better = "neither" if abs(gap) < 2 * spread else WAYS[0] if gap > 0 else WAYS[1]
        shown = (f"{row['error']:.5f} +- {row['standard_error']:.5f}" for row in (persons, records))
        rows.append(f"| {persons['share']:g} | {' | '.join(shown)} | {better} |")
    return f"## {setting.words[0].upper()}{setting.words[1:]}\n\n{heads}" + "\n".join(rows) + "\n"


def page(tables: list[str]) -> str:
    """Return the README of the folder."""
    summary = (
        f"Squared error per coordinate of an estimated mean; {PERSONS} persons with {RECORDS} records each, "
        f"{DIMENSION} coordinates, delta {DELTA:g}, {STEPS} steps, at most {CAP} records of a person, mean and "
        f"standard error over {SEEDS} seeds, each way at its best of {len(NORMS)} clipping norms. The first column is "
        "the share of the variance that lies within persons. `python -m scripts.person_ways` repeats it."
    )
    return "\n".join(["# Two ways to protect persons", "", summary, "", *tables, "![Error](mean_estimation.svg)", ""])


def draw(results: list[tuple[Setting, dict[str, Any]]], file: Path) -> None:
    """Draw both curves of every setting."""
    mpl.rcParams["svg.hashsalt"] = "privet"
    figure, places = plt.subplots(1, len(results), figsize=(4.6 * len(results), 3.4))
    for axes, (setting, found) in zip(places, results, strict=True):
        for name, found_by in found["ways"].items():
            errors = [row["error"] for row in found_by["rows"]]
            spreads = [2 * row["standard_error"] for row in found_by["rows"]]
            axes.errorbar(SHARES, errors, yerr=spreads, marker="o", capsize=3, label=name)
        axes.set(xlabel="share of the variance within persons", ylabel="squared error of the mean", yscale="log")
        axes.set_title(setting.words)
        axes.legend()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Measure, and write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = [(setting, measured(setting)) for setting in SETTINGS]
    stored = json.dumps([found for _, found in results], indent=1)
    (FOLDER / "mean_estimation.json").write_text(stored + "\n", encoding="utf-8")
    tables = [table(setting, found) for setting, found in results]
    (FOLDER / "README.md").write_text(page(tables), encoding="utf-8")
    draw(results, FOLDER / "mean_estimation.svg")


if __name__ == "__main__":
    main()
