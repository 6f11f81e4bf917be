"""Whole numbers of made-up batches are those that a program takes, and labels that mean none where it knows any."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from privet.training.preflight.limits import Limit, Limits

SCORES, TABLE = torch.randn(4, 3), torch.randn(2)


def ignoring(labels: Tensor) -> Tensor:
    return functional.cross_entropy(SCORES, labels, reduction="none")


def weighted(labels: Tensor) -> Tensor:
    return ignoring(labels) * TABLE[labels]


def weighted_first(labels: Tensor) -> Tensor:
    return TABLE[labels] * ignoring(labels)


def encoded(labels: Tensor) -> Tensor:
    return ignoring(labels) + functional.one_hot(labels, 3).sum(1)


def weighted_where_counted(labels: Tensor) -> Tensor:
    return ignoring(labels) * TABLE[labels.masked_fill(labels == -100, 0)]


def weighted_where_chosen(labels: Tensor) -> Tensor:
    return ignoring(labels) * TABLE.gather(0, torch.where(labels == -100, 0, labels).view(-1))


def weighted_where_something_else_says(labels: Tensor) -> Tensor:
    return ignoring(labels) * TABLE[labels.masked_fill(torch.rand(4) < 0.5, 0)]


def found(program: Callable[[Tensor], Tensor]) -> Limit:
    limits, labels = Limits(), torch.zeros(4, dtype=torch.long)
    limits.follow(0, labels)
    with limits:
        program(labels)
    return limits.found[0]


@pytest.mark.parametrize("program", [ignoring, weighted_where_counted, weighted_where_chosen])
def test_a_label_that_means_none_is_taken_where_only_the_loss_sees_it(program: Callable[[Tensor], Tensor]) -> None:
    assert (found(program).ignored, found(program).is_index) == (-100, False)


@pytest.mark.parametrize("program", [weighted, weighted_first, encoded, weighted_where_something_else_says])
def test_a_label_that_also_indexes_a_table_never_means_none(program: Callable[[Tensor], Tensor]) -> None:
    assert found(program).is_index


def test_the_smallest_table_gives_the_highest_number() -> None:
    assert (found(ignoring).high, found(weighted).high, found(weighted_first).high) == (3, 2, 2)
