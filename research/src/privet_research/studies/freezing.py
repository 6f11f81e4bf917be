"""Training in stages: freeze the smallest weights at the end of each (Xu and Chen, 2026, Appendix G), with a control.

Frozen coordinates get neither gradient nor noise, so the rest is clipped less. The weights that are ranked are private
already, so ranking them is free; freezing as many at random is the control that the publication lacks. It prints one
number, 96.71 % against 95.11 %, without stages, epochs and epsilon: those here are RECONSTRUCTED. The learning rate is
the best of three for the arm that freezes nothing, so that it cannot favour freezing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD

from privet import checks
from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.errors import ArgumentError
from privet.mechanism.masking import NoMask
from privet.mechanism.release_masks import ChosenMask
from privet.mechanism.sampling import Poisson
from privet.models.convolutional import lenet5
from privet.plan import Plan
from privet.runs.building import on_device
from privet.training.fitting import fit_privately
from privet.training.performance import Performance
from privet.training.predictions import predict
from privet_research.studies.effects_training import ArmTraining, with_best_rate

Row = dict[str, Any]
Array = NDArray[np.float64]
Ranking = Callable[[Array, np.random.Generator], Array]
FROZEN_SHARE = 0.77
LEARNING_RATES = (2.5, 5.0, 10.0)
PUBLISHED = {"nothing frozen": 95.11, "smallest set to zero": 96.71}


def by_magnitude(weights: Array, generator: np.random.Generator) -> Array:
    """Rank by size: the smallest weights are frozen first."""
    return np.abs(weights)


def at_random(weights: Array, generator: np.random.Generator) -> Array:
    """Rank by chance: the control."""
    return generator.random(len(weights))


@dataclass(frozen=True, kw_only=True)
class Stages:
    """How a training is cut into stages.

    Attributes:
        ranking: Gives each weight a score; the lowest are frozen. None freezes nothing.
        num_stages: Stages of equal length; after stage s the share ``frozen_share * s / (num_stages - 1)`` is frozen.
        frozen_share: Share of the coordinates that is frozen in the last stage.
        prunes: Set frozen weights to zero instead of keeping them.
    """

    ranking: Ranking | None
    num_stages: int = 2
    frozen_share: float = FROZEN_SHARE
    prunes: bool = False

    def __post_init__(self) -> None:
        checks.count("num_stages", self.num_stages, minimum=2)
        checks.probability("frozen_share", self.frozen_share)


# The publication sets the smallest weights to zero, in stages that it does not number.
ARMS = {
    "nothing frozen": Stages(ranking=None),
    "smallest frozen": Stages(ranking=by_magnitude),
    "as many at random": Stages(ranking=at_random),
    "smallest set to zero": Stages(ranking=by_magnitude, num_stages=4, prunes=True),
    "as many set to zero at random": Stages(ranking=at_random, num_stages=4, prunes=True),
}


def train_in_stages(
    model: nn.Module, train: ArrayDataset, plan: Plan, stages: Stages, *, learning_rate: float, seed: int
) -> None:
    """Run a plan's steps in stages of one session each, with plain SGD.

    Guarantee:
        All stages together are the plan's own steps, and a mask that follows from released weights changes nothing of
        what a step costs: the whole has the guarantee of the plan. Seeded, so not private.
    """
    sampling = plan.sampling
    if not isinstance(sampling, Poisson) or not isinstance(plan.mask, NoMask):
        raise ArgumentError("Training in stages takes a plan of Poisson sampling without a mask of its own.")
    generator = np.random.default_rng(seed)
    frozen = np.zeros(sum(value.numel() for value in model.parameters()), dtype=np.bool_)
    for stage in range(stages.num_stages):
        if stage and stages.ranking is not None:
            share = stages.frozen_share * stage / (stages.num_stages - 1)
            frozen |= _lowest(stages.ranking(_weights(model), generator), frozen, share)
            if stages.prunes:
                _set_to_zero(model, frozen)
        ends = [sampling.steps * number // stages.num_stages for number in (stage, stage + 1)]
        part = replace(
            plan,
            sampling=replace(sampling, steps=ends[1] - ends[0]),
            mask=ChosenMask.freezing(frozen) if frozen.any() else NoMask(),
        )
        fit_privately(
            model,
            SGD(model.parameters(), lr=learning_rate),
            train,
            part,
            _losses,
            performance=Performance(
                physical_batch_size=math.ceil(1.25 * sampling.expected_batch_size),
            ),
            seed=seed * stages.num_stages + stage,
        )


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _weights(model: nn.Module) -> Array:
    return np.asarray(parameters_to_vector(model.parameters()).detach().double().cpu().numpy())


def _lowest(scores: Array, frozen: NDArray[np.bool_], share: float) -> NDArray[np.bool_]:
    """Mark this share of all coordinates: those frozen already, and then those of the lowest scores."""
    marked = np.zeros(len(scores), dtype=np.bool_)
    marked[np.argsort(np.where(frozen, -np.inf, scores), kind="stable")[: int(share * len(scores))]] = True
    return marked


@torch.no_grad()
def _set_to_zero(model: nn.Module, frozen: NDArray[np.bool_]) -> None:
    vector = parameters_to_vector(model.parameters())
    vector[torch.from_numpy(frozen).to(vector.device)] = 0.0
    vector_to_parameters(vector, model.parameters())


def run_freezing_study(*, seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    """Train LeNet on MNIST with nothing frozen, and with the smallest or any weights frozen, as they are or at zero."""
    split = load("mnist")
    size = 3_000 if quick else split.info.train_size
    first = ArrayDataset(features=split.train.features[:size], labels=split.train.labels[:size])
    train, test = on_device(first, device), on_device(split.test, device)
    constants = ArmTraining(epochs=4 if quick else 20, momentum=0.0)
    plan = constants.plan(size)
    epsilon = plan.guarantee().epsilon
    rates = LEARNING_RATES[-1:] if quick else LEARNING_RATES
    for seed in seeds:
        training = with_best_rate(lenet5, train, constants, rates, seed=seed, device=device)
        for arm, stages in ARMS.items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = lenet5().to(device)
            train_in_stages(model, train, plan, stages, learning_rate=training.learning_rate, seed=seed)
            predictions = predict(model, test.features, test.labels)
            yield {
                "arm": arm,
                "dataset": "mnist",
                "seed": seed,
                "accuracy": float(predictions.is_right.mean()),
                "loss": float(predictions.losses.mean()),
                "paper_accuracy": None if quick else PUBLISHED.get(arm),
                "epsilon": epsilon,
                "delta": training.delta,
                "epochs": training.epochs,
                "learning_rate": training.learning_rate,
                "num_rates_tried": len(rates),
            }
