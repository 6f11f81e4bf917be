from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from privet.errors import ArgumentError
from privet.models import count_parameters
from privet.training.predictions import Predictions
from privet_research.studies.arms import ARMS, AUTOMATIC, GLOBAL, LOCAL, NON_PRIVATE, SCALED
from privet_research.studies.catalogue import (
    STUDIES,
    cifar10_settings,
    clusters_settings,
    find_study,
    mnist_settings,
)
from privet_research.studies.clipping import cross_fitted, run_clipping_study
from privet_research.studies.clipping_table import clipping_table, summarise

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    """The made-up task with wrong labels, one seed, the two arms whose calibration is compared."""
    return list(run_clipping_study(clusters_settings().shortened(50), seeds=[0], device=CPU, arms=(LOCAL, GLOBAL)))


def by_arm(rows: list[dict[str, object]], key: str) -> dict[str, float]:
    return {str(row["arm"]): float(row[key]) for row in rows}  # type: ignore[arg-type]


def test_keeping_lengths_gains_more_than_five_points_of_calibration_at_the_same_accuracy(
    rows: list[dict[str, object]],
) -> None:
    errors, accuracies = by_arm(rows, "ece_15"), by_arm(rows, "accuracy")
    assert errors[LOCAL] - errors[GLOBAL] > 0.05
    assert abs(accuracies[LOCAL] - accuracies[GLOBAL]) < 0.02
    assert by_arm(rows, "loss")[GLOBAL] < by_arm(rows, "loss")[LOCAL]


def test_local_clipping_is_over_confident_and_a_temperature_takes_most_of_it_away(
    rows: list[dict[str, object]],
) -> None:
    over = by_arm(rows, "over_confidence")
    assert over[LOCAL] > 0.1
    assert over[SCALED] < over[LOCAL] / 3
    assert by_arm(rows, "accuracy")[SCALED] == by_arm(rows, "accuracy")[LOCAL]


def test_all_private_arms_have_the_same_guarantee_and_no_attack_exceeds_its_limit(
    rows: list[dict[str, object]],
) -> None:
    assert len({row["epsilon"] for row in rows}) == 1
    assert all(float(row["attack_auc"]) < float(row["attack_auc_limit"]) for row in rows)  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_figures() -> None:
    short = clusters_settings().shortened(1)
    runs = [list(run_clipping_study(short, seeds=[3], device=CPU)) for _ in range(2)]
    for first, second in zip(*runs, strict=True):
        assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert [row["arm"] for row in runs[0]] == [NON_PRIVATE, LOCAL, SCALED, GLOBAL, AUTOMATIC]


@pytest.mark.parametrize(
    ("settings", "epsilon"), [(mnist_settings(), 2.382), (cifar10_settings(), 1.995)], ids=["mnist", "cifar10"]
)
def test_the_claimed_epsilon_is_below_the_honest_one(settings: object, epsilon: float) -> None:
    sizes = {"mnist": 60_000, "cifar10": 50_000}
    plan = settings.plan(settings.rules[LOCAL], sizes[settings.name])  # type: ignore[attr-defined]
    assert plan.guarantee().epsilon == pytest.approx(epsilon, abs=0.01)
    assert plan.guarantee().epsilon > settings.claimed_epsilon  # type: ignore[attr-defined]


def test_the_networks_are_those_of_the_paper() -> None:
    assert count_parameters(mnist_settings().build()) == 26_010
    assert count_parameters(cifar10_settings().build()) == 62_006


def test_a_cross_fitted_temperature_is_never_fitted_on_the_half_it_corrects() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2000, 3)) * 6
    labels = np.where(generator.random(2000) < 0.6, logits.argmax(1), generator.integers(3, size=2000))
    before = Predictions.from_logits(logits, labels)
    after = cross_fitted(before)
    assert after.losses.mean() < before.losses.mean()
    # Other labels in one half change nothing about that half's temperature.
    changed = labels.copy()
    changed[::2] = 0
    again = cross_fitted(Predictions.from_logits(logits, changed))
    np.testing.assert_array_equal(after.log_probabilities[::2], again.log_probabilities[::2])
    assert not np.array_equal(after.log_probabilities[1::2], again.log_probabilities[1::2])


def _row(arm: str, seed: int, *, error: float, dataset: str = "mnist") -> dict[str, object]:
    figures = dict.fromkeys(("loss", "ece_10", "mce_15", "over_confidence", "attack_auc"), 0.5)
    facts = {"epsilon": None if arm == NON_PRIVATE else 2.404, "claimed_epsilon": 2.32, "delta": 1e-5, "epochs": 60}
    more = {"num_test": 10_000, "attack_auc_limit": 0.636, "accuracy": 0.95, "ece_15": error}
    return {"dataset": dataset, "arm": arm, "seed": seed, **facts, **figures, **more}


def test_the_table_shows_our_means_beside_the_published_figures_and_both_epsilons() -> None:
    errors = {NON_PRIVATE: 0.008, LOCAL: 0.03, SCALED: 0.006, GLOBAL: 0.01, AUTOMATIC: 0.05}
    rows = [_row(arm, seed, error=error + 0.001 * seed) for arm, error in errors.items() for seed in range(3)]
    text = clipping_table(rows)
    assert "| local | 95.0 ± 0.0 | 0.500 ± 0.000 | 3.1 ± 0.1 |" in text
    assert text.count("| 96 | 2.5 | 50.2 |") == 1
    assert "epsilon 2.404" in text
    assert "claims 2.32" in text
    assert "by -2.0 points" in text
    assert "matches or beats" in text
    assert [line.split(" | ")[0][2:] for line in text.splitlines() if line.startswith("| ")][2:] == list(errors)


def test_a_data_set_without_published_figures_has_no_columns_for_them() -> None:
    rows = [_row(arm, 0, error=0.1, dataset="clusters") for arm in (LOCAL, SCALED, GLOBAL)]
    assert "paper" not in clipping_table(rows).replace("the paper claims", "")
    assert "needs the arms" in clipping_table(rows[:1])


def test_a_single_run_has_no_standard_error() -> None:
    assert summarise([0.5]).shown(100, 1) == "50.0"
    assert summarise([0.4, 0.6]).shown(100, 1) == "50.0 ± 10.0"


def test_a_quick_study_is_marked_as_such_and_claims_nothing() -> None:
    quick = mnist_settings().shortened(1)
    assert quick.name == "mnist, quick"
    assert quick.claimed_epsilon is None
    assert replace(quick, name="mnist", epochs=60).epochs == mnist_settings().epochs


def test_studies_are_found_by_name_and_a_slip_is_corrected() -> None:
    assert find_study("clipping-mnist") is STUDIES["clipping-mnist"]
    with pytest.raises(ArgumentError, match="Did you mean 'clipping-mnist'"):
        find_study("clipping-mnits")


def test_every_arm_has_a_place_in_the_table() -> None:
    assert set(mnist_settings().rules) | {SCALED} <= set(ARMS)
