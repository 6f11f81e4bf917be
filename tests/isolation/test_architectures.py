"""Public architectures that keep their examples apart are proven by rule; those that do not are not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from privet.isolation.place import Place
from privet.isolation.prove import Finding, prove
from tests.isolation.architecture import Architecture
from tests.isolation.architectures import ARCHITECTURES
from tests.isolation.architectures_losses import LOSSES
from tests.isolation.architectures_moving import MOVING
from tests.isolation.architectures_torch import TORCH

_NUM = 4
_LIBRARIES = [row for row in ARCHITECTURES.values() if row.needs]


def _named(rows: list[Architecture]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name.replace(" ", "-"))


def _found(row: Architecture) -> Finding:
    for package in row.needs:
        pytest.importorskip(package)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        _, make_batch, loss = row.build()
        return prove(loss, make_batch(_NUM))


def test_the_table_is_as_long_as_promised() -> None:
    assert len(TORCH) >= 30
    assert len(LOSSES) >= 20
    assert len(ARCHITECTURES) >= 120


@_named([*TORCH, *LOSSES])
def test_an_architecture_of_torch_is_proven(row: Architecture) -> None:
    found = _found(row)
    assert found.doubts == ()
    assert found.losses == Place(0, 1, 1, 0, _NUM)


@pytest.mark.slow
@_named(_LIBRARIES)
def test_an_architecture_of_a_library_is_proven(row: Architecture) -> None:
    found = _found(row)
    assert found.doubts == ()
    assert found.losses == Place(0, 1, 1, 0, _NUM)


@_named([row for row in MOVING if not row.needs])
def test_an_architecture_of_torch_that_mixes_is_not_proven(row: Architecture) -> None:
    assert not _found(row).is_proven


@pytest.mark.slow
@_named([row for row in MOVING if row.needs])
def test_an_architecture_of_a_library_that_mixes_or_moves_examples_is_not_proven(row: Architecture) -> None:
    assert not _found(row).is_proven


@_named([*TORCH, *LOSSES])
def test_another_example_in_one_place_changes_no_other_loss(row: Architecture) -> None:
    """What is proven is also tried, with equal randomness on both sides."""
    torch.manual_seed(0)
    _, make_batch, loss = row.build()
    batch, other = make_batch(_NUM), make_batch(_NUM)
    changed = {name: torch.cat([values[:1], batch[name][1:]]) for name, values in other.items()}

    def losses(given: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(1)
        return loss(given).detach()

    assert torch.allclose(losses(dict(batch))[1:], losses(changed)[1:], rtol=1e-5, atol=1e-6)
