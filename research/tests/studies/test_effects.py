from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset, Split
from privet.errors import ArgumentError
from privet.models.dense import logistic_regression
from privet.runs.pretraining import turned
from privet_research.studies import adult, attacked_arm, class_sizes, effects_training, padding, rotation
from privet_research.studies.class_sizes import ClassSizeSettings, run_class_size_study
from privet_research.studies.effects_table import (
    adult_table,
    class_size_table,
    laboratory_table,
    published_table,
    rotation_table,
)
from privet_research.studies.effects_training import ArmTraining, train_arm, with_best_rate
from privet_research.studies.laboratory import LabSettings, run_groups, run_phase_map
from privet_research.studies.padding import cifar10_padding, mnist_padding, padded, run_padding_study
from privet_research.studies.rotation import mnist_rotation, run_rotation_study
from tests.runs.evaluation.test_groups_and_robustness import people

CPU = torch.device("cpu")
Row = dict[str, Any]


@pytest.fixture(scope="module")
def images() -> Split:
    """The images that come with the package, in place of MNIST."""
    whole = load("fashion_mnist_small")
    return replace(whole, test=ArrayDataset(features=whole.test.features[:200], labels=whole.test.labels[:200]))


@pytest.fixture(autouse=True)
def no_files(images: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "load", lambda name: images)


def test_padding_shrinks_the_object_and_keeps_the_picture_size() -> None:
    images = torch.ones(2, 1, 28, 28)
    small = padded(images, 14)
    assert small.shape == images.shape
    assert float(small.mean()) == pytest.approx(0.25, abs=0.02)
    assert float(small[:, :, :6].max()) == 0.0
    assert float(small[:, :, 12:16, 12:16].min()) == pytest.approx(1.0, abs=1e-5)
    assert torch.equal(padded(images, 0), images)
    with pytest.raises(ArgumentError, match="images"):
        padded(torch.ones(2, 28), 1)


def test_the_padding_study_gives_one_row_per_padding_within_its_epsilon() -> None:
    settings = replace(
        mnist_padding(),
        build=lambda: logistic_regression((1, 28, 28), 10),
        paddings=(0, 42),
        training=ArmTraining(epochs=1, batch_size=256),
        learning_rates=(1.0, 2.0),
        num_train=2_000,
        num_attacked=50,
    )
    rows = list(run_padding_study(settings, seeds=[0], device=CPU))
    assert [row["arm"] for row in rows] == ["0 % padding", "75 % padding"]
    for row in rows:
        assert 0 < row["epsilon"] <= 3.0
        assert row["attacked_accuracy"] <= row["accuracy"] + 0.2
        assert row["learning_rate"] in (1.0, 2.0)
    assert rows[0]["paper_accuracy"] == 97
    table = published_table(rows, tolerance=2.0)
    assert "NOT within 2 points" in table
    assert "75 % padding" in table


def test_the_class_size_study_measures_the_class_that_is_made_rare(
    images: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float | None, int, int]] = []

    def trained(build: object, train: ArrayDataset, training: ArmTraining, **options: Any) -> Any:
        seen.append((training.epsilon, int((train.labels == 5).sum()), len(train)))
        assert options["dataset_size"] == len(train)
        return train_arm(lambda: logistic_regression((1, 28, 28), 10), train, replace(training, epochs=1), **options)

    monkeypatch.setattr(class_sizes, "load", lambda name: images)
    monkeypatch.setattr(attacked_arm, "train_arm", trained)
    settings = replace(ClassSizeSettings().shortened(), published={100: (71, 60)})
    rows = list(run_class_size_study(settings, seeds=[0], device=CPU))
    sizes = [(100, 9 * 600 + 100), (600, 6000)]
    assert seen == [(epsilon, *size) for epsilon in (3.0, 30.0) for size in sizes]
    assert [row["class_size"] for row in rows] == [100, 600, 100, 600]
    assert all(row["epsilon"] <= row["target_epsilon"] for row in rows)
    fives = int((images.test.labels == 5).sum())
    assert all(row["num_test"] == fives for row in rows)
    table = class_size_table(rows, tolerance=4.0)
    assert [line for line in table.splitlines() if line.startswith("## ")] == ["## Epsilon 3", "## Epsilon 30"]
    assert "| 100 fives, epsilon 30 |" in table


def test_the_class_size_study_chooses_its_rate_on_images_that_no_arm_learns_from(
    images: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[ArrayDataset, ArrayDataset]] = []

    def chosen(
        build: object, train: ArrayDataset, held: ArrayDataset, training: ArmTraining, *_: Any, **__: Any
    ) -> Any:
        asked.append((train, held))
        return training

    monkeypatch.setattr(class_sizes, "load", lambda name: images)
    monkeypatch.setattr(class_sizes, "best_rate", chosen)
    monkeypatch.setattr(class_sizes, "attacked_row", lambda *_, **__: {})
    settings = replace(
        ClassSizeSettings().shortened(), others=500, sizes=(100, 500), num_held_out=50, learning_rates=(1.0, 2.0)
    )
    assert len(list(run_class_size_study(settings, seeds=[0], device=CPU))) == 4
    for train, held in asked:
        assert torch.bincount(held.labels, minlength=10).tolist() == [50] * 10
        learned = {image.numpy().tobytes() for image in train.features}
        assert not any(image.numpy().tobytes() in learned for image in held.features)


def test_the_padded_cifar_network_sees_pixels_around_zero() -> None:
    first = next(cifar10_padding().build().children())
    assert first(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-2.0, 0.0, 2.0]


def test_turned_images_turn_back_and_a_quarter_turn_is_exact() -> None:
    picture = torch.zeros(1, 1, 9, 9)
    picture[0, 0, 1, 4] = 1.0
    quarter = turned(picture, 90)
    assert torch.allclose(quarter, torch.rot90(picture, 1, (2, 3)), atol=1e-5)
    assert torch.allclose(turned(quarter, -90), picture, atol=1e-5)
    assert torch.allclose(turned(picture, 0), picture, atol=1e-6)


def test_the_rotation_study_has_an_arm_from_scratch_beside_every_angle(
    images: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "load", lambda name: images)
    settings = replace(
        mnist_rotation().shortened(),
        build=lambda: logistic_regression((1, 28, 28), 10),
        private=ArmTraining(epochs=1, batch_size=40),
        num_public=1_000,
    )
    rows = list(run_rotation_study(settings, seeds=[0], device=CPU))
    assert [(row["angle"], row["start"]) for row in rows] == [
        (angle, start) for angle in (0, 90) for start in ("pre-trained", "from scratch")
    ]
    assert rows[0]["accuracy"] > rows[1]["accuracy"]
    assert all(row["num_test"] == 40 for row in rows)
    assert "Pre-training is worse than none" in rotation_table(rows)


def test_training_without_privacy_has_no_guarantee_and_learns(images: Split) -> None:
    training = ArmTraining(epsilon=None, epochs=2, learning_rate=1.0)
    model, found = train_arm(
        lambda: logistic_regression((1, 28, 28), 10), images.train, training, dataset_size=10_000, seed=0, device=CPU
    )
    assert found is None
    with torch.no_grad():
        right = (model(images.test.features).argmax(1) == images.test.labels).double().mean()
    assert float(right) > 0.6


def test_the_adult_table_names_every_group_and_who_pays_most(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    pytest.importorskip("fairlearn")
    from privet.datasets.columns import ADULT
    from privet.datasets.own.own_table import load_own_csv

    made = load_own_csv(people(tmp_path / "own.csv", 120), ADULT, ADULT.normalisation())
    info = replace(ADULT, train_size=120, test_size=120)
    monkeypatch.setattr(adult, "load", lambda name: Split(train=made, test=made, info=info))
    monkeypatch.setattr(adult, "EPSILONS", (None, 3.0))
    monkeypatch.setattr(adult, "ArmTraining", lambda **given: ArmTraining(**{**given, "batch_size": 30}))
    rows = list(adult.run_adult_study(seeds=[0, 1], device=CPU, quick=True))
    assert [row["epsilon"] is None for row in rows] == [True, False, True, False]
    table = adult_table(rows)
    for text in ("sex: Female", "race: Black", "no privacy", "epsilon 3", "loses most accuracy is"):
        assert text in table


def test_the_laboratory_table_shows_every_part_it_is_given() -> None:
    from privet.datasets.two_patch import TwoPatch
    from privet_research.studies.patch_training import PatchTraining

    small = LabSettings(num_examples=60, num_filters=3, training=PatchTraining(batch_size=20, num_steps=3))
    rows = [{"part": "groups", **row} for row in run_groups(TwoPatch(), (0.0, 0.5), small, seed=0, device=CPU)]
    rows += [{"part": "phases", **row} for row in run_phase_map((1.0, 4.0), (0.1,), small, seed=0, device=CPU)]
    table = laboratory_table(rows)
    assert "class 2, minority" in table
    assert "| 4 |" in table
    assert "rotation" not in table


def test_the_best_rate_is_that_of_the_held_out_examples_and_a_single_one_is_not_tried(
    images: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[float, int, int]] = []

    def trained(build: object, train: ArrayDataset, training: ArmTraining, **options: Any) -> Any:
        tried.append((training.learning_rate, len(train), options["dataset_size"]))
        # A network that is right about everything at one rate and about nothing at the others.
        shift = 0 if training.learning_rate == 0.5 else 1
        return lambda features: torch.eye(10)[(features.flatten(1)[:, 0].long() + shift) % 10], None

    monkeypatch.setattr(effects_training, "train_arm", trained)
    monkeypatch.setattr(
        effects_training, "predict", lambda model, features, labels: _Right(model(features).argmax(1) == labels)
    )
    labels = torch.arange(100) % 10
    made = ArrayDataset(features=labels.float().reshape(100, 1), labels=labels)
    options: Any = {"seed": 0, "device": CPU}
    found = with_best_rate(lambda: torch.nn.Identity(), made, ArmTraining(), (0.1, 0.5, 2.0), **options)
    assert found.learning_rate == 0.5
    assert tried == [(rate, 80, 80) for rate in (0.1, 0.5, 2.0)]
    tried.clear()
    assert with_best_rate(lambda: torch.nn.Identity(), made, ArmTraining(), (3.0,), **options).learning_rate == 3.0
    assert tried == []


class _Right:
    def __init__(self, is_right: torch.Tensor) -> None:
        self.is_right = is_right.double().numpy()


def test_a_table_says_that_rates_were_tried_and_the_choice_was_not_charged() -> None:
    row = {
        "arm": "0 % padding",
        "seed": 0,
        "accuracy": 0.97,
        "attacked_accuracy": 0.9,
        "paper_accuracy": 97,
        "paper_attacked_accuracy": 95,
        "epsilon": 2.9,
        "delta": 1e-5,
        "epochs": 20,
        "learning_rate": 0.5,
    }
    assert "not charged" not in published_table([{**row, "num_rates_tried": 1}], tolerance=2.0)
    told = published_table([{**row, "num_rates_tried": 3}], tolerance=2.0)
    assert "Learning rate 0.5: the best of 3" in told
    assert "not charged" in told
