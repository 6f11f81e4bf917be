"""An array data set fetches what it was asked for."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from privet.datasets import ArrayDataset
from privet.errors import ArgumentError


@pytest.fixture
def dataset() -> ArrayDataset:
    return ArrayDataset(features=torch.arange(20.0).reshape(10, 2), labels=torch.arange(10))


def test_take_returns_the_asked_rows_in_order(dataset: ArrayDataset) -> None:
    features, labels = dataset.take(torch.tensor([7, 0, 7]))
    assert labels.tolist() == [7, 0, 7]
    assert features.tolist() == [[14.0, 15.0], [0.0, 1.0], [14.0, 15.0]]


def test_taking_nothing_gives_zero_rows_of_the_right_shape(dataset: ArrayDataset) -> None:
    features, labels = dataset.take(torch.tensor([], dtype=torch.int64))
    assert (features.shape, labels.shape, features.dtype) == ((0, 2), (0,), torch.float32)


def test_changing_a_batch_does_not_change_the_data(dataset: ArrayDataset) -> None:
    features, _ = dataset.take(torch.tensor([1]))
    features.zero_()
    assert dataset.features[1].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("indices", [torch.tensor([0.0]), torch.tensor([[0]]), torch.tensor(0), torch.tensor([True])])
def test_indices_must_be_a_vector_of_whole_numbers(dataset: ArrayDataset, indices: torch.Tensor) -> None:
    with pytest.raises(ArgumentError, match="vector of whole numbers"):
        dataset.take(indices)


@pytest.mark.parametrize("index", [10, -1])
def test_a_position_that_does_not_exist_is_refused(dataset: ArrayDataset, index: int) -> None:
    with pytest.raises(IndexError):
        dataset.take(torch.tensor([index]))


def test_batched_fetch_equals_fetching_one_by_one(dataset: ArrayDataset) -> None:
    batch = dataset.__getitems__([3, 1])
    assert [(x.tolist(), y.item()) for x, y in batch] == [(dataset[i][0].tolist(), i) for i in (3, 1)]


def test_a_data_loader_reads_every_example_once(dataset: ArrayDataset) -> None:
    batches = list(DataLoader(dataset, batch_size=4))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert torch.equal(torch.cat([features for features, _ in batches]), dataset.features)


def test_the_number_of_examples_is_the_length(dataset: ArrayDataset) -> None:
    assert dataset.num_examples == len(dataset) == 10


def test_moving_to_the_same_device_copies_nothing(dataset: ArrayDataset) -> None:
    assert dataset.to("cpu") is dataset


def test_moving_to_another_device_moves_both_tensors(dataset: ArrayDataset) -> None:
    moved = dataset.to("meta")
    assert (moved.features.device.type, moved.labels.device.type) == ("meta", "meta")


def test_features_and_labels_of_different_lengths_are_refused_without_showing_the_lengths() -> None:
    with pytest.raises(ArgumentError, match="same number of rows") as caught:
        ArrayDataset(features=torch.zeros(317, 2), labels=torch.zeros(318))
    assert "31" not in str(caught.value)


def test_what_is_not_rows_of_a_tensor_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"torch\.Tensor"):
        ArrayDataset(features=[[1.0]], labels=torch.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="single number"):
        ArrayDataset(features=torch.tensor(1.0), labels=torch.zeros(1))
    with pytest.raises(ArgumentError, match="one device"):
        ArrayDataset(features=torch.zeros(1, device="meta"), labels=torch.zeros(1))
