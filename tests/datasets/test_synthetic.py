"""Made-up tasks are repeatable and as hard as they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from privet.datasets import ArrayDataset, Split, gaussian_blobs, striped_images
from privet.errors import ArgumentError


def nearest_mean_accuracy(split: Split) -> float:
    def flat(part: ArrayDataset) -> torch.Tensor:
        return part.features.flatten(1)

    train = flat(split.train)
    means = torch.stack([train[split.train.labels == c].mean(0) for c in range(split.info.num_classes or 0)])
    guesses = torch.cdist(flat(split.test), means).argmin(1)
    return (guesses == split.test.labels).float().mean().item()


@pytest.mark.parametrize("make", [gaussian_blobs, striped_images])
def test_the_same_seed_gives_the_same_numbers_and_another_does_not(make: Callable[..., Split]) -> None:
    first, again, other = make(num_train=20, seed=1), make(num_train=20, seed=1), make(num_train=20, seed=2)
    assert torch.equal(first.train.features, again.train.features)
    assert torch.equal(first.test.labels, again.test.labels)
    assert not torch.equal(first.train.features, other.train.features)


@pytest.mark.parametrize("make", [gaussian_blobs, striped_images])
def test_the_global_generator_is_left_alone(make: Callable[..., Split]) -> None:
    before = torch.get_rng_state()
    make(num_train=5, num_test=5)
    assert torch.equal(before, torch.get_rng_state())


def test_separated_blobs_can_be_told_apart_and_coinciding_ones_cannot() -> None:
    assert nearest_mean_accuracy(gaussian_blobs(separation=6.0)) > 0.98
    assert nearest_mean_accuracy(gaussian_blobs(separation=0.0, num_test=1_000)) < 0.45


def test_clean_stripes_can_be_told_apart_and_noise_makes_it_harder() -> None:
    assert nearest_mean_accuracy(striped_images(num_train=200)) > 0.98
    assert nearest_mean_accuracy(striped_images(num_train=200, noise_std=20.0)) < 0.7


def test_sizes_and_facts_agree() -> None:
    split = striped_images(num_train=7, num_test=3, image_shape=(3, 8, 9), num_classes=5)
    assert split.train.features.shape == (7, *split.info.input_shape) == (7, 3, 8, 9)
    assert split.test.num_examples == split.info.test_size == 3
    assert len(split.info.class_names) == split.info.num_classes == 5
    assert split.info.public


def test_an_empty_task_is_allowed() -> None:
    split = gaussian_blobs(num_train=0, num_test=0)
    assert split.train.features.shape == (0, 20)


@pytest.mark.parametrize("bad", [{"num_train": -1}, {"separation": float("nan")}, {"num_classes": 0}, {"seed": 1.5}])
def test_arguments_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        gaussian_blobs(**bad)  # type: ignore[arg-type]


def test_an_image_shape_needs_three_axes() -> None:
    with pytest.raises(ArgumentError, match="channels, height, width"):
        striped_images(image_shape=(8, 8))
