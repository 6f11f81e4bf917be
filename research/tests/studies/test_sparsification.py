"""The sparsification study: equal guarantees, equal tuning, and a table that says what the rows say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.known import describe
from privet.errors import ArgumentError
from privet_research.studies import sparsification
from privet_research.studies.catalogue import STUDIES
from privet_research.studies.sparsification import (
    ARMS,
    BASELINE,
    DECAY,
    LONGER,
    MASKED,
    run_sparsification_study,
)
from privet_research.studies.sparsification_cells import NETWORKS, quick
from privet_research.studies.sparsification_table import sparsification_table

SMALL = {"dataset": "fashion_mnist_small", "epochs": 5, "num_examples": 200, "batch_size": 50}
QUICK = NETWORKS["fashion"].at(3.0).shortened(**SMALL)


@pytest.fixture(autouse=True)
def made_up_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, normalisation: str | None = None) -> Split:
        generator = torch.Generator().manual_seed(0)
        parts = [
            ArrayDataset(
                features=torch.rand(size, 1, 28, 28, generator=generator),
                labels=torch.randint(0, 10, (size,), generator=generator),
            )
            for size in (200, 20)
        ]
        return Split(train=parts[0], test=parts[1], info=describe(name))

    monkeypatch.setattr(sparsification, "load", load)


def test_every_arm_is_tuned_over_the_same_rates_at_the_same_guarantee() -> None:
    rows = list(run_sparsification_study([QUICK], seeds=[0], device=torch.device("cpu")))
    assert [(row["arm"], row["rate"]) for row in rows] == [(arm, 8.0) for arm in ARMS]
    assert all(2.9 < row["epsilon"] <= 3.0 for row in rows)
    steps = {row["arm"]: row["steps"] for row in rows}
    assert steps == {BASELINE: 20, MASKED: 24, DECAY: 24, LONGER: 24}
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    assert "## Fashion-MNIST, DP-CNN/S, epsilon 3, quick" in sparsification_table(rows)


def test_the_first_seed_tunes_and_the_others_use_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(QUICK, learning_rates=(8.0, 4.0, 2.0))
    worth = {8.0: 0.2, 4.0: 0.6, 2.0: 0.4}
    monkeypatch.setattr(sparsification, "_trained", lambda _0, _1, _2, rate, *_: (rate, 3.0))
    monkeypatch.setattr(
        sparsification, "_accuracy", lambda rate, part: worth[rate] if len(part) > 20 else 1 - worth[rate]
    )
    rows = list(run_sparsification_study([settings], seeds=[4, 5, 6], device=torch.device("cpu")))
    tried = {arm: [(row["seed"], row["rate"]) for row in rows if row["arm"] == arm] for arm in ARMS}
    assert all(found == [(4, 8.0), (4, 4.0), (4, 2.0), (5, 4.0), (6, 4.0)] for found in tried.values())
    table = sparsification_table(rows)
    assert all(f"| {arm} | 4 |" in table for arm in ARMS)


def test_the_network_on_scattering_features_reads_them() -> None:
    pytest.importorskip("kymatio")
    settings = NETWORKS["fashion-scattering"].at(1.0).shortened(**{**SMALL, "num_examples": 40, "batch_size": 20})
    train, test = settings.data(torch.device("cpu"))
    assert train.features.shape == (40, 81, 7, 7)
    assert test.features.shape == (20, 81, 7, 7)
    assert settings.build()(train.features).shape == (40, 10)


def test_a_share_of_the_budget_pays_for_a_normalisation_and_all_together_keeps_epsilon() -> None:
    pytest.importorskip("kymatio")
    small = {**SMALL, "epochs": 2, "num_examples": 40, "batch_size": 20}
    settings = NETWORKS["fashion-scattering"].at(3.0, normalisation_share=0.1).shortened(**small)
    paid = settings.paid_normalisation(settings.dataset_size)
    assert paid is not None
    assert len(paid.bounds) == 81
    plans = settings.plans(settings.dataset_size)
    assert all(plan.guarantee().epsilon < 2.9 for plan in plans.values()), "training alone"
    rows = list(run_sparsification_study([settings], seeds=[0], device=torch.device("cpu")))
    assert {row["arm"] for row in rows} == set(ARMS)
    assert all(2.9 < row["epsilon"] <= 3.0 for row in rows), "both together"
    assert "10% of it for normalisation" in rows[0]["setting"]
    free = NETWORKS["fashion-scattering"].at(3.0)
    assert isinstance(free.build()[0], torch.nn.GroupNorm)  # type: ignore[index]
    assert not any(isinstance(part, torch.nn.GroupNorm) for part in settings.build().modules())


def test_a_share_for_a_network_without_scattering_features_is_refused() -> None:
    with pytest.raises(ArgumentError, match="scattering features"):
        replace(QUICK, normalisation_share=0.1)
    with pytest.raises(ArgumentError, match="no settings that can be changed"):
        STUDIES["sparsification-fashion-3"].varied(["normalisation_share=0.1"])


def test_the_share_can_be_set_for_studies_of_scattering_features() -> None:
    study = STUDIES["sparsification-cifar10-scattering-1"]
    assert study.varied(["normalisation_share=0,0.05"]) is not study.run
    with pytest.raises(ArgumentError, match="cannot be set"):
        study.varied(["normalization=0.1"])


@pytest.mark.parametrize("epsilon", [3.0, 1.0])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_published_figures_belong_to_arms_of_the_study(network: str, epsilon: float) -> None:
    settings = NETWORKS[network].at(epsilon)
    assert set(settings.published) == set(settings.published_errors) == {BASELINE, MASKED}
    assert settings.published[MASKED] > settings.published[BASELINE]
    assert len(settings.learning_rates) == 3
    short = quick(settings)
    assert not short.published
    assert short.batch_size < settings.batch_size


def row(arm: str, seed: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    facts = {"setting": "made up", "rate": 1.0, "epsilon": 2.99, "delta": 1e-5, "steps": 9, "published": None}
    return facts | {"arm": arm, "seed": seed, "accuracy": accuracy, "train_accuracy": accuracy} | changes


def test_rates_are_chosen_by_training_accuracy_and_never_on_test_images() -> None:
    rows = [
        row(BASELINE, 0, 0.5, rate=1.0, train_accuracy=0.9),
        row(BASELINE, 0, 0.8, rate=2.0, train_accuracy=0.6),
        row(MASKED, 0, 0.7, published=64.3),
        row(DECAY, 0, 0.6),
    ]
    table = sparsification_table(rows)
    assert "| no mask | 1 | 9 | 50.0" in table
    assert "64.3" in table
    assert "gains +20.0 points over none and +10.0 over a falling learning rate" in table


def test_the_verdict_compares_with_the_control_in_standard_errors() -> None:
    def rows(masked: list[float], decay: list[float]) -> list[dict[str, Any]]:
        found = []
        for seed, (left, right) in enumerate(zip(masked, decay, strict=True)):
            found += [row(BASELINE, seed, 0.5), row(MASKED, seed, left), row(DECAY, seed, right)]
        return found

    alike = sparsification_table(rows([0.60, 0.61, 0.62], [0.61, 0.60, 0.62]))
    assert "The mask gains over none" in alike
    assert "no surely larger gain than" in alike
    better = sparsification_table(rows([0.60, 0.61, 0.62], [0.50, 0.52, 0.51]))
    assert "it has more than what a falling learning rate gives" in better
    nothing = sparsification_table(rows([0.49, 0.52, 0.50], [0.5, 0.5, 0.5]))
    assert "does not surely gain" in nothing
    assert "needs all three arms" in sparsification_table([row(BASELINE, 0, 0.5)])


def test_the_studies_are_in_the_catalogue() -> None:
    assert {f"sparsification-{network}-{epsilon}" for network in NETWORKS for epsilon in (3, 1)} <= set(STUDIES)


def test_a_run_that_goes_on_trains_only_what_is_missing_and_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(QUICK, learning_rates=(8.0, 4.0))
    trained = []

    def train(_0: object, _1: object, _2: object, rate: float, *_: object) -> tuple[float, float]:
        trained.append(rate)
        return rate, 3.0

    monkeypatch.setattr(sparsification, "_trained", train)
    monkeypatch.setattr(sparsification, "_accuracy", lambda rate, part: rate / 10)
    whole = list(run_sparsification_study([settings], seeds=[0, 1], device=torch.device("cpu")))
    trained.clear()
    again = list(run_sparsification_study([settings], seeds=[0, 1], device=torch.device("cpu"), earlier=whole[:4]))
    assert len(trained) == len(whole) - 4
    assert [{**row, "seconds": 0} for row in again] == [{**row, "seconds": 0} for row in whole]
