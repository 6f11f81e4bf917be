"""Every arm of the comparison runs, and says what it spent rather than what it claims."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from privet.datasets import Split, load
from privet.errors import ArgumentError
from privet_research.studies import hidden_state
from privet_research.studies.catalogue import find_study
from privet_research.studies.hidden_state import (
    ARMS,
    UNPROVEN,
    Row,
    Setting,
    recomputed_epsilons,
    run_arm,
    run_hidden_state_study,
)

SMALL = Setting(dataset="fashion_mnist_small", epochs=2, batch_size=2000, num_gates=4, hidden_width=8, num_features=40)


@cache
def _load_once(name: str, normalisation: str | None = None) -> Split:
    return load(name, normalisation=normalisation)


@cache
def _row(arm: str) -> Row:
    return run_arm(arm, SMALL, seed=1, device=torch.device("cpu"))


@pytest.fixture(autouse=True)
def images_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_state, "load", _load_once)


@pytest.mark.parametrize("arm", [name for name in ARMS if name not in UNPROVEN])
def test_a_proven_arm_stays_within_its_target(arm: str) -> None:
    row = _row(arm)
    assert row.status == "proven"
    assert 4.7 < row.epsilon <= 4.76 * (1 + 1e-9)
    assert row.epsilon_claimed == row.epsilon


@pytest.mark.parametrize("arm", ["ssp_convex", "ssp_random_relu", "ssp_random_fourier", "noisycgd_convex"])
def test_a_few_releases_are_enough_to_learn_something(arm: str) -> None:
    assert _row(arm).accuracy > 0.4


@pytest.mark.parametrize("arm", UNPROVEN)
def test_an_arm_without_a_proof_is_charged_more_than_it_claims(arm: str) -> None:
    row = _row(arm)
    assert row.status == "HEURISTIC"
    assert row.epsilon_claimed == pytest.approx(4.76, rel=1e-6)
    assert row.epsilon > 5


def test_a_row_is_plain_values() -> None:
    written = _row("ssp_random_relu").to_dict()
    assert written["arm"] == "ssp_random_relu"
    assert written["num_gates"] == 4
    assert all(isinstance(value, str | int | float | None) for value in written.values())


def test_the_published_noise_costs_what_was_recomputed() -> None:
    found = recomputed_epsilons(batches=60, epochs=400, noise_multiplier=15.0, delta=1e-5, decay=5.4e-5)
    assert found["cyclic, last iterate"] == pytest.approx(1.3357, abs=6e-5)
    assert found["Poisson"] == pytest.approx(1.3171, rel=1e-3)


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(ArgumentError, match="noisycgd_convex"):
        run_arm("noisycgd_convx", SMALL, seed=0, device=torch.device("cpu"))


def test_the_table_shows_means_over_seeds_beside_the_status() -> None:
    rows = list(
        run_hidden_state_study([SMALL], seeds=[1, 2], device=torch.device("cpu"), arms=["ssp_convex", *UNPROVEN])
    )
    shown = find_study("hidden-state-mnist").table(rows)
    lines = [line for line in shown.splitlines() if "fashion_mnist_small" in line]
    assert len(lines) == 2
    assert all("\N{PLUS-MINUS SIGN}" in line for line in lines)
    assert [line.split("|")[-2].strip() for line in lines] == ["HEURISTIC", "proven"]
