"""The regression study: its arms, the identity between two of them, and a table that says what the rows say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.known import describe
from privet_research.studies import regression
from privet_research.studies.arms import GLOBAL, LOCAL, NON_PRIVATE
from privet_research.studies.regression import CORRECTED, LOCAL_AT_CUTOFF, SETTINGS, RegressionSettings
from privet_research.studies.regression_table import half_width, regression_table


@pytest.fixture(autouse=True)
def made_up_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, normalisation: str | None = None) -> Split:
        info = describe(name)
        generator = torch.Generator().manual_seed(0)
        parts = []
        for size in (60, 20):
            features = torch.randn(size, *info.input_shape, generator=generator)
            parts.append(ArrayDataset(features=features, labels=features[:, :1] + 5))
        return Split(train=parts[0], test=parts[1], info=info)

    monkeypatch.setattr(regression, "load", load)


def rows_of(settings: RegressionSettings) -> dict[str, dict[str, Any]]:
    rows = regression.run_regression_study([settings], seeds=[0], device=torch.device("cpu"))
    return {row["arm"]: row for row in rows}


@pytest.mark.parametrize("name", SETTINGS)
def test_global_clipping_is_local_clipping_at_the_cutoff_when_nothing_is_dropped(name: str) -> None:
    rows = rows_of(SETTINGS[name]().shortened(4))
    assert rows[GLOBAL]["test_error"] == pytest.approx(rows[LOCAL_AT_CUTOFF]["test_error"], rel=1e-3)
    assert rows[GLOBAL]["test_error"] != pytest.approx(rows[LOCAL]["test_error"], rel=1e-3)
    assert (CORRECTED in rows) == (name == "housing")


def test_every_private_arm_costs_the_same_and_the_open_one_is_said_to_be_open() -> None:
    rows = rows_of(SETTINGS["housing"]().shortened(3))
    assert rows[NON_PRIVATE]["epsilon"] is None
    assert len({row["epsilon"] for arm, row in rows.items() if arm != NON_PRIVATE}) == 1


def test_shortening_keeps_one_rate() -> None:
    short = SETTINGS["wine"]().shortened(7)
    assert (short.steps, len(short.rates)) == (7, 1)
    assert replace(short, steps=200, rates=SETTINGS["wine"]().rates) == SETTINGS["wine"]()


def row(arm: str, rate: float, test_error: float | None, validation: float | None, seed: int = 0) -> dict[str, Any]:
    return {
        "arm": arm, "setting": "made up", "seed": seed, "rate": rate, "epsilon": None if arm == NON_PRIVATE else 1.5,
        "delta": 1e-5, "noise_multiplier": 1.0, "steps": 10, "test_error": test_error, "validation_error": validation,
        "train_error": 0.25,
    }  # fmt: skip


def test_the_table_takes_each_arm_at_the_rate_of_least_validation_error() -> None:
    rows = [
        row(NON_PRIVATE, 0.1, 0.5, 0.5),
        row(LOCAL, 0.1, 2.0, 1.0),
        row(LOCAL, 0.1, 4.0, 1.2, seed=1),
        row(LOCAL, 1.0, 0.1, 9.0),
        row(GLOBAL, 0.1, 0.3, None),
        row(GLOBAL, 1.0, 2.5, 7.0),
    ]
    table = regression_table(rows)
    assert "| local | 0.1 | 3.000 ± 12.706 | 1.100 ± 1.271 | 0.250 ± 0.000 | above global |" in table
    assert "| global | 1 | 2.500 | 7.000 | 0.250 | below local |" in table
    assert "At the edge of the grid: non-private, local, global." in table
    assert "epsilon 1.5 at delta 1e-05" in table
    assert "can be neither confirmed nor denied here (2.500 against 3.000)" in table


def test_the_claim_is_judged_by_differences_within_seeds() -> None:
    local = [row(LOCAL, 0.1, error, 1.0, seed) for seed, error in enumerate((1.0, 3.0, 5.0))]
    better = [row(GLOBAL, 0.1, error, 2.0, seed) for seed, error in enumerate((0.5, 2.4, 4.5))]
    assert "clipping holds here (2.467 against 3.000; difference -0.533 ± 0.143)" in regression_table(local + better)
    worse = [row(GLOBAL, 0.1, error + 1.0, 2.0, seed) for seed, error in enumerate((1.1, 3.0, 5.0))]
    assert "does not hold here" in regression_table(local + worse)
    unclear = [row(GLOBAL, 0.1, error, 2.0, seed) for seed, error in enumerate((0.0, 4.0, 5.0))]
    assert "neither confirmed nor denied" in regression_table(local + unclear)


def test_an_arm_that_diverges_at_every_rate_is_said_to() -> None:
    table = regression_table([row(LOCAL, 0.1, 1.0, 1.0), row(GLOBAL, 0.1, None, None), row(GLOBAL, 1.0, None, 2.0)])
    assert "| global | 1 | diverged | 2.000 |" in table
    assert "does not hold here: global clipping diverged" in table


def test_a_run_that_diverges_has_no_error() -> None:
    rows = rows_of(replace(SETTINGS["wine"]().shortened(30), rates=(1e4,)))
    assert rows[NON_PRIVATE]["test_error"] is None


def test_a_table_of_one_arm_says_what_it_lacks() -> None:
    table = regression_table([row(NON_PRIVATE, 0.1, 1.0, 1.0)])
    assert "No arm is private." in table
    assert "needs the arms local and global" in table


def test_the_interval_of_a_mean_is_that_of_student() -> None:
    assert half_width([1.0]) is None
    # The 97.5 % point of Student's t with four degrees of freedom is 2.776; the deviation of 1 to 5 is sqrt(2.5).
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776 * (2.5 / 5) ** 0.5, rel=1e-3)


def test_a_fifth_of_the_training_records_is_held_out_and_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = regression._trained

    def watched(settings: Any, arm: Any, rate: float, train: ArrayDataset, size: int, *rest: Any) -> Any:
        seen.append((len(train), size))
        return real(settings, arm, rate, train, size, *rest)

    monkeypatch.setattr(regression, "_trained", watched)
    rows = rows_of(SETTINGS["wine"]().shortened(2))
    declared = describe("wine_red").train_size
    assert set(seen) == {(48, declared - declared // 5)}
    assert all({"validation_error", "test_error", "train_error"} <= set(found) for found in rows.values())
