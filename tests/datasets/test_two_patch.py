from __future__ import annotations

import math

import pytest
import torch

from privet.datasets.two_patch import CELLS, TwoPatch
from privet.errors import ArgumentError


def test_one_patch_is_the_cells_feature_and_the_other_is_noise_orthogonal_to_all_features() -> None:
    task = TwoPatch(dimension=30)
    sample = task.draw(500, seed=1)
    features = task.features
    for inputs, label, cell in zip(*sample, strict=True):
        place = [torch.equal(patch, features[cell]) for patch in inputs]
        assert sum(place) == 1
        assert not (features @ inputs[place.index(False)]).any()
        assert int(label) == CELLS[int(cell)][0]
    first = (sample.inputs[:, 0, :4] != 0).any(1).double().mean()
    assert float(first) == pytest.approx(0.5, abs=0.08)


def test_shares_and_lengths_are_those_declared() -> None:
    task = TwoPatch()
    sample = task.draw(4000, seed=2)
    shares = torch.bincount(sample.cells, minlength=4) / 4000
    assert shares.tolist() == pytest.approx(list(task.shares), abs=0.03)
    assert task.features.norm(dim=1).tolist() == pytest.approx(list(task.feature_sizes))
    noise = sample.inputs[:, :, 4:].norm(dim=2).amax(1)
    assert float(noise.mean()) == pytest.approx(0.5 * math.sqrt(196), rel=0.01)


@pytest.mark.parametrize("degrees", [0, 30, 90, 180])
def test_turned_features_keep_their_lengths_and_their_angle(degrees: int) -> None:
    task = TwoPatch.one_feature_per_class(size=3.0)
    before, after = task.features[:2], task.rotated(math.radians(degrees)).features[:2]
    cosines = (before * after).sum(1) / 9
    assert cosines.tolist() == pytest.approx([math.cos(math.radians(degrees))] * 2, abs=1e-6)
    assert float(after[0] @ after[1]) == pytest.approx(0, abs=1e-5)
    assert set(task.draw(100, seed=0).cells.tolist()) == {0, 1}


def test_the_same_seed_gives_the_same_examples_and_none_may_be_asked_for() -> None:
    first, second = TwoPatch().draw(5, seed=3), TwoPatch().draw(5, seed=3)
    assert torch.equal(first.inputs, second.inputs)
    assert TwoPatch().draw(0, seed=0).inputs.shape == (0, 2, 200)


@pytest.mark.parametrize(
    "wrong",
    [{"shares": (0.5, 0.5, 0.5, 0.5)}, {"dimension": 4}, {"patch_noise_std": -1.0}, {"angle": math.nan}],
    ids=["shares", "dimension", "noise", "angle"],
)
def test_impossible_tasks_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        TwoPatch(**wrong)  # type: ignore[arg-type]
