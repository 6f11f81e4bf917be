from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector

from privet.datasets.arrays import ArrayDataset
from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.release_masks import ChosenMask
from privet.mechanism.sampling import Poisson
from privet.models.dense import mlp
from privet.plan import Plan
from privet.training.predictions import predict
from privet.vocabulary import Adjacency, Unit
from privet_research.studies.effects_table import freezing_table
from privet_research.studies.freezing import ARMS, Stages, by_magnitude, train_in_stages


def plan(epochs: int, noise_multiplier: float = 4.0) -> Plan:
    return Plan(
        sampling=Poisson.for_dataset(dataset_size=1437, batch_size=256, epochs=epochs),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=noise_multiplier),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )


@pytest.fixture(scope="module")
def digits() -> tuple[ArrayDataset, ArrayDataset]:
    found = pytest.importorskip("sklearn.datasets").load_digits()
    inputs, labels = torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    parts = (order[:1437], order[1437:])
    return tuple(ArrayDataset(features=inputs[own], labels=labels[own]) for own in parts)  # type: ignore[return-value]


def test_freezing_the_smallest_weights_helps_where_noise_is_large(digits: tuple[ArrayDataset, ArrayDataset]) -> None:
    """The control at random helps as much or more, so it is the freezing that helps and not the choice."""
    train, test = digits
    accuracies = {}
    for arm, stages in ARMS.items():
        found = []
        for seed in range(3):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = mlp((64,), 10, hidden_widths=(256,))
            train_in_stages(model, train, plan(20), stages, learning_rate=4.0, seed=seed)
            found.append(float(predict(model, test.features, test.labels).is_right.mean()))
        accuracies[arm] = statistics.fmean(found)
    assert accuracies["smallest frozen"] > accuracies["nothing frozen"] + 0.01
    assert accuracies["as many at random"] > accuracies["nothing frozen"]


@pytest.mark.parametrize("prunes", [False, True], ids=["freeze", "prune"])
def test_the_smallest_weights_of_a_stage_stay_or_vanish_in_the_next(prunes: bool) -> None:
    torch.manual_seed(0)
    train = ArrayDataset(features=torch.randn(200, 8), labels=torch.randint(3, (200,)))
    whole = replace(plan(1), sampling=Poisson.for_dataset(dataset_size=200, batch_size=40, steps=4))
    model = mlp((8,), 3, hidden_widths=(5,))
    seen: list[torch.Tensor] = []

    def watched(weights: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
        seen.append(torch.from_numpy(weights).float())
        return by_magnitude(weights, generator)

    stages = Stages(ranking=watched, frozen_share=0.5, prunes=prunes)
    train_in_stages(model, train, whole, stages, learning_rate=0.5, seed=3)
    after = parameters_to_vector(model.parameters()).detach()
    (between,) = seen
    smallest = between.abs().argsort()[: len(after) // 2]
    assert torch.equal(after[smallest], torch.zeros(len(smallest)) if prunes else between[smallest])
    others = between.abs().argsort()[len(after) // 2 :]
    assert not (after[others] == between[others]).any()


def test_plans_with_a_mask_of_their_own_are_refused() -> None:
    train = ArrayDataset(features=torch.randn(20, 8), labels=torch.randint(3, (20,)))
    masked = replace(plan(1), mask=ChosenMask(num_coordinates=8, frozen_bits="gA=="))
    with pytest.raises(ArgumentError, match="without a mask"):
        train_in_stages(
            mlp((8,), 3, hidden_widths=(5,)), train, masked, Stages(ranking=None), learning_rate=0.1, seed=0
        )
    with pytest.raises(ArgumentError, match="num_stages"):
        Stages(ranking=None, num_stages=1)


def test_the_table_shows_the_control_beside_the_claim() -> None:
    rows = [
        {"arm": arm, "seed": 0, "accuracy": value, "loss": 0.1, "paper_accuracy": None, "epsilon": 3.0}
        | {"delta": 1e-5, "epochs": 4}
        for arm, value in zip(ARMS, (0.8, 0.86, 0.87, 0.88, 0.89), strict=True)
    ]
    table = freezing_table(rows)
    assert "+6.0 points" in table
    assert "+7.0 points" in table
    assert "+8.0 points" in table
    assert "+9.0 points" in table
