"""The noise table: every noise at one guarantee, each at its best constants from the same grid, with fresh seeds.

Constants are chosen by accuracy on a validation split with seeds of their own; the choice is not charged, for any arm.
Runs are those of :mod:`privet_research.studies.noise_runs`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from privet_research.studies.noise_arms import Arm, multiplier, release_multiplier
from privet_research.studies.noise_runs import (
    Batched,
    Examples,
    Training,
    accuracies,
    initial_weights,
    train_runs,
)
from privet_research.studies.noise_sources import Bench
from privet_research.studies.noise_terms import Terms

Row = dict[str, Any]
# far from the seeds of the table
_TUNING_SEED = 10_000


class Constants(NamedTuple):
    """One setting of one arm."""

    epsilon: float
    norm: float
    reach: float


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Data, network and terms of one block of the table.

    Attributes:
        name: What the rows call it.
        train: The private examples.
        public: Public examples, for arms that use them.
        validation: For the choice of constants.
        test: For the figures.
        widths: Of the network's layers, input to output.
        terms: Rate, steps and delta.
        norms: Bounds to try.
        reaches: Learning rates times bounds to try.
        release_norm: Bound on a gradient in the release of units.
        num_tuning_seeds: Seeds per setting in the choice.
    """

    name: str
    train: Examples
    public: Examples
    validation: Examples
    test: Examples
    widths: tuple[int, ...]
    terms: Terms
    norms: tuple[float, ...]
    reaches: tuple[float, ...]
    release_norm: float = 1.0
    num_tuning_seeds: int = 5

    @property
    def num_coordinates(self) -> int:
        """Weights and biases."""
        return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(self.widths))

    def on(self, device: torch.device) -> Problem:
        """Return the problem with its data on a device."""

        def placed(part: Examples) -> Examples:
            return Examples(features=part.features.to(device), labels=part.labels.to(device))

        return replace(
            self,
            train=placed(self.train),
            public=placed(self.public),
            validation=placed(self.validation),
            test=placed(self.test),
        )


def run_settings(problem: Problem, arm: Arm, settings: Sequence[Constants], seeds: Sequence[int]) -> list[torch.Tensor]:
    """Train all settings with all seeds; return accuracies on validation and test, ``[seeds, settings]`` each."""
    device = problem.train.features.device
    given = [one for _ in seeds for one in settings]
    size = problem.num_coordinates
    runs = Batched(
        norms=torch.tensor([one.norm for one in given], device=device),
        reaches=torch.tensor([one.reach for one in given], device=device),
        multipliers=torch.tensor(
            [multiplier(problem.terms, arm.charge, one.epsilon, size) for one in given], device=device
        ),
    )
    bench = Bench(
        train=problem.train,
        public=problem.public,
        runs=runs,
        release_multipliers=torch.tensor(
            [release_multiplier(problem.terms, one.epsilon) for one in given], device=device
        ),
        release_norm=problem.release_norm,
        seeds=seeds,
    )
    training = Training(rate=problem.terms.rate, steps=problem.terms.steps, preconditioning=arm.preconditioning)
    fresh = initial_weights(problem.widths, seeds=seeds, runs_per_seed=len(settings))
    start = [part.to(device) for part in fresh]
    weights = train_runs(start, problem.train, runs, training, arm.source.start(bench), arm.draw, seeds=seeds)
    return [accuracies(weights, part).view(len(seeds), -1) for part in (problem.validation, problem.test)]


def chosen_constants(problem: Problem, arm: Arm, epsilons: Sequence[float]) -> list[tuple[Constants, float]]:
    """Return the setting with the best mean validation accuracy for every epsilon, and that accuracy."""
    grid = [Constants(*values) for values in itertools.product(epsilons, problem.norms, problem.reaches)]
    seeds = range(_TUNING_SEED, _TUNING_SEED + problem.num_tuning_seeds)
    found = torch.cat([run_settings(problem, arm, grid, [seed])[0] for seed in seeds]).mean(0)
    # a run that diverged counts as wrong, not as missing
    best = found.nan_to_num(0.0).view(len(epsilons), -1).max(1)
    per_epsilon = len(problem.norms) * len(problem.reaches)
    return [
        (grid[place * per_epsilon + int(index)], float(value))
        for place, (value, index) in enumerate(zip(best.values, best.indices, strict=True))
    ]


def run_noise_grid(
    problems: Sequence[Problem],
    arms: Sequence[Arm],
    *,
    seeds: Sequence[int],
    device: torch.device,
    epsilons: Sequence[float] = (1.0, 3.0, 8.0),
) -> Iterator[Row]:
    """Choose constants for every arm on every problem, train with fresh seeds, and yield one row per run."""
    for given in problems:
        problem = given.on(device)
        for arm in arms:
            chosen = chosen_constants(problem, arm, epsilons)
            figures = run_settings(problem, arm, [one for one, _ in chosen], seeds)
            for seed, validation, test in zip(seeds, *figures, strict=True):
                for place, (constants, tuned) in enumerate(chosen):
                    yield {
                        "task": problem.name,
                        "arm": arm.name,
                        "epsilon": constants.epsilon,
                        "delta": problem.terms.delta,
                        "seed": seed,
                        "accuracy": float(test[place]),
                        "validation_accuracy": float(validation[place]),
                        "tuning_accuracy": tuned,
                        "norm": constants.norm,
                        "reach": constants.reach,
                        "rate": problem.terms.rate,
                        "steps": problem.terms.steps,
                        "noise_multiplier": multiplier(
                            problem.terms, arm.charge, constants.epsilon, problem.num_coordinates
                        ),
                        "charge": arm.charge.value,
                        "num_test": len(problem.test),
                        "device": device.type,
                    }
