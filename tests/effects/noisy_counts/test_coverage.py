"""Intervals of private figures hold the true figure in 93 to 97 % of 1,000 simulated releases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.effects.noisy_counts.contributions import Evaluated, summed
from privet.effects.noisy_counts.figures import Figure, Figures, Released, figures_of
from privet.effects.noisy_counts.terms import EvaluationTerms, Groups

Array = NDArray[np.float64]
RELEASES = 1_000
SEX = (Groups(column="sex", categories=("f", "m")),)


def release(terms: EvaluationTerms, data: Evaluated, noise_multiplier: float, rng: np.random.Generator) -> Figures:
    stds = np.concatenate([np.full(block.size, block.std(noise_multiplier)) for block in terms.blocks])
    vector = summed(data, terms) + rng.normal(size=terms.size) * stds
    return figures_of(Released(terms=terms, noise_multiplier=noise_multiplier, vector=tuple(vector.tolist())))


def classified(count: int, rng: np.random.Generator, *, positives: float) -> Evaluated:
    logits = rng.normal(size=count) * 1.5 + np.log(positives / (1 - positives))
    labels = (rng.random(count) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    said = -np.logaddexp(0.0, np.stack([logits, -logits], 1) * 1.5)  # sure of itself, as trained networks are
    return Evaluated(
        outputs=said, targets=labels, groups={"sex": (rng.random(count) < 0.3).astype(np.int64)}, weights=np.ones(count)
    )


def true_of_classes(data: Evaluated) -> dict[str, float]:
    labels, decided = data.targets.astype(np.int64), data.outputs.argmax(1)
    right, every = decided == labels, np.arange(len(labels))
    ranks, num = data.outputs[:, 1].argsort().argsort() + 1, labels.sum()
    area = (ranks[labels == 1].sum() - num * (num + 1) / 2) / (num * (len(labels) - num))
    shares = np.bincount(labels) / len(labels)
    loss = np.minimum(-data.outputs[every, labels], 5.0).mean()
    return {
        "accuracy": right.mean(),
        "area": area,
        "log loss": loss,
        "Brier": ((np.exp(data.outputs) - np.eye(2)[labels]) ** 2).sum(1).mean(),
        "constant": shares.max(),
        "better": right.mean() - shares.max(),
        "recall": right[labels == 1].mean(),
        "precision": right[decided == 1].mean(),
        "group": right[data.groups["sex"] == 1].mean(),
    }


def told_of_classes(found: Figures) -> dict[str, Figure]:
    accuracy, area, loss, brier = found.headline
    return {
        "accuracy": accuracy,
        "area": area,
        "log loss": loss,
        "Brier": brier,
        "constant": found.constant[0],
        "better": found.differences[0],
        "recall": found.classes[1][1],
        "precision": found.classes[1][2],
        "group": found.groups[1].figure,
    }


def numbered(count: int, rng: np.random.Generator) -> Evaluated:
    targets = np.clip(rng.gamma(2.0, 12.0, count), 0.0, 100.0)
    said = targets + rng.normal(size=count) * 8 * (1 + targets / 100)
    return Evaluated(
        outputs=np.clip(said, 0, 100),
        targets=targets,
        groups={"sex": rng.integers(0, 2, count)},
        weights=np.ones(count),
    )


def true_of_numbers(data: Evaluated) -> dict[str, float]:
    error = np.minimum(np.abs(data.outputs - data.targets), 50.0)
    spread = ((data.targets - data.targets.mean()) ** 2).mean()
    return {
        "R2": 1 - (error**2).mean() / spread,
        "absolute": error.mean(),
        "root": np.sqrt((error**2).mean()),
        "constant": np.sqrt(spread),
        "group": error[data.groups["sex"] == 1].mean(),
    }


def told_of_numbers(found: Figures) -> dict[str, Figure]:
    explained, absolute, root = found.headline
    return {
        "R2": explained,
        "absolute": absolute,
        "root": root,
        "constant": found.constant[0],
        "group": found.groups[1].figure,
    }


Draw = Callable[[int, np.random.Generator], Evaluated]
CLASSES = EvaluationTerms(class_names=("no", "yes"), groups=SEX)
NUMBERS = EvaluationTerms(low=0.0, high=100.0, error_clip=50.0, groups=SEX)
WORLDS: dict[str, tuple[EvaluationTerms, Draw, int, float]] = {
    # about epsilon 0.5, and a rare class; then few records and little noise; then numbers
    "a rare class": (CLASSES, lambda count, rng: classified(count, rng, positives=0.1), 3_000, 6.0),
    "few records": (CLASSES, lambda count, rng: classified(count, rng, positives=0.35), 500, 2.0),
    "numbers": (NUMBERS, numbered, 2_000, 7.0),
}


@pytest.mark.parametrize("name", WORLDS)
def test_intervals_hold_the_true_figure_in_93_to_97_percent_of_releases(name: str) -> None:
    terms, draw, count, noise = WORLDS[name]
    truth_of, told_of = (true_of_classes, told_of_classes) if terms.class_names else (true_of_numbers, told_of_numbers)
    truth = truth_of(draw(400_000, np.random.default_rng(11)))
    rng = np.random.default_rng(5)
    held = dict.fromkeys(truth, 0)
    for _ in range(RELEASES):
        told = told_of(release(terms, draw(count, rng), noise, rng))
        for figure, value in truth.items():
            held[figure] += told[figure].low <= value <= told[figure].high
    shares = {figure: count / RELEASES for figure, count in held.items()}
    assert all(0.93 <= share <= 0.97 for share in shares.values()), shares


def test_means_over_persons_are_covered_at_least_as_often() -> None:
    terms, rng = EvaluationTerms(class_names=("no", "yes"), records_per_person=4), np.random.default_rng(8)
    truth = true_of_classes(classified(400_000, rng, positives=0.3))["accuracy"]
    held = 0
    for _ in range(300):
        data = classified(4_000, rng, positives=0.3)
        persons = Evaluated(outputs=data.outputs, targets=data.targets, weights=np.full(4_000, 0.25))
        accuracy = release(terms, persons, 3.0, rng).headline[0]
        held += accuracy.low <= truth <= accuracy.high
    assert held / 300 >= 0.93


def test_noise_without_records_says_that_nothing_is_known() -> None:
    rng = np.random.default_rng(2)
    found = release(CLASSES, classified(0, rng, positives=0.3), 7.0, rng)
    for figure in (found.headline[0], found.headline[1], found.groups[0].figure):
        assert (figure.low, figure.high) == (0.0, 1.0)
    assert found.temperature == 1.0
    assert found.warnings


def test_a_model_that_always_says_no_is_warned_of_and_one_that_knows_is_not() -> None:
    rng = np.random.default_rng(4)
    data = classified(20_000, rng, positives=0.1)
    useless = Evaluated(
        outputs=np.tile(np.log([0.9, 0.1]), (20_000, 1)), targets=data.targets, groups=data.groups, weights=data.weights
    )
    assert any("accuracy" in warning for warning in release(CLASSES, useless, 2.0, rng).warnings)
    knowing = classified(20_000, rng, positives=0.5)
    assert not release(CLASSES, knowing, 2.0, rng).warnings


def test_the_temperature_of_an_overconfident_model_is_found_and_a_fitting_one_is_left_alone() -> None:
    rng = np.random.default_rng(6)
    data = classified(20_000, rng, positives=0.4)  # its logits are 1.5 times too large
    assert release(CLASSES, data, 3.0, rng).temperature == pytest.approx(1.5, rel=0.15)
    logits = data.outputs[:, 1] - data.outputs[:, 0]
    fitting = -np.logaddexp(0.0, np.stack([logits, -logits], 1) / 1.5)
    fits = Evaluated(outputs=fitting, targets=data.targets, groups=data.groups, weights=data.weights)
    assert release(CLASSES, fits, 3.0, rng).temperature == 1.0
