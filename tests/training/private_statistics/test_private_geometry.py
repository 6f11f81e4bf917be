"""Units from examples: what one example can change, what is charged, and that badly scaled features show."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.errors import DataError, LedgerError
from privet.mechanism.geometry import Frame
from privet.training.private_statistics import private_geometry as module
from privet.training.private_statistics.private_geometry import geometry_event, public_geometry, release_geometry


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def task(count: int = 400) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    features = torch.randn(count, 6) * torch.tensor([0.05, 0.3, 1.0, 3.0, 1.0, 1.0])
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), features, torch.arange(count) % 3


def test_one_example_moves_the_sums_at_most_the_sensitivity() -> None:
    model, features, labels = task(60)
    layout, norm = module._layout(model), 0.3
    rows = torch.cat(list(module._gradients(model, losses, features * 20, labels)))
    clipped = rows * (norm / rows.norm(dim=1)).clamp(max=1.0)[:, None]
    whole = module._axis_sums(layout, clipped)
    moved = [float((whole - module._axis_sums(layout, clipped[torch.arange(60) != i])).norm()) for i in range(60)]
    assert max(moved) <= math.sqrt(2) * norm**2 * (1 + 1e-6)
    spike = torch.zeros(1, layout.num_coordinates, dtype=torch.float64)
    spike[0, 0] = norm
    assert float(module._axis_sums(layout, spike).norm()) == pytest.approx(math.sqrt(2) * norm**2), "it is reached"


@pytest.mark.parametrize("kind", ["public", "released"])
def test_units_follow_the_scale_of_the_features(kind: str) -> None:
    model, features, labels = task()
    if kind == "public":
        found = public_geometry(model, losses, features, labels, power=0.5, floor=1e-4)
    else:
        found, _ = release_geometry(
            model, losses, features, labels, norm=2.0, noise_multiplier=0.5, power=0.5, floor=1e-4, seed=0
        )
    columns = np.array(found.columns[0])
    assert columns[0] == columns.min()
    assert columns[3] == columns.max()
    assert columns[3] / columns[2] == pytest.approx(3.0, rel=0.35)
    Frame.of(found, module._layout(model), torch.zeros(1))


def test_a_release_is_charged_once_before_it_is_made() -> None:
    model, features, labels = task(20)
    _, book = release_geometry(model, losses, features, labels, norm=1.0, noise_multiplier=4.0, power=0.5, seed=1)
    assert book.charged == [(geometry_event(4.0), 1)]
    assert book.available == 0

    def broken(outputs: Tensor, labels: Tensor) -> Tensor:
        raise LedgerError("the data was read")

    with pytest.raises(LedgerError, match="read"):
        release_geometry(model, broken, features, labels, norm=1.0, noise_multiplier=4.0, power=0.5, ledger=book)
    assert book.charged_rounds == 2, "what was reserved stays charged"


def test_an_example_that_is_not_finite_counts_as_zero() -> None:
    model, features, labels = task(20)
    spoilt = torch.cat([features, torch.full((1, 6), math.nan)])
    settings = {"norm": 1.0, "noise_multiplier": 1.0, "power": 0.5, "seed": 3}
    clean, _ = release_geometry(model, losses, features, labels, **settings)  # type: ignore[arg-type]
    other, _ = release_geometry(model, losses, spoilt, torch.cat([labels, labels[:1]]), **settings)  # type: ignore[arg-type]
    assert clean == other


def test_no_public_example_is_refused() -> None:
    model, features, labels = task(4)
    with pytest.raises(DataError, match="public"):
        public_geometry(model, losses, features[:0], labels[:0], power=0.5)
