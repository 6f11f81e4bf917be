"""Global against local clipping in regression: California housing with Adam, red wine with full-batch gradient descent.

The data sets and cutoffs are those of Bu et al., "On the convergence and calibration of deep learning with differential
privacy" (figure 9); network, bound and noise are not printed there, so a small standard network and the plainest
constants stand in. Learning rates are chosen per arm from one grid by the error on a fifth of the training part that is
held out, so that no arm suffers from a rate that was made for another and the test part has no say. Random streams are
seeded: runs are repeatable, on public data, and not private.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.mechanism.clipping import Automatic, Clipping, KeepOrDrop, Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.models import mlp_64_64
from privet.plan import Plan
from privet.runs.building import on_device
from privet.training.fitting import fit_privately
from privet.training.optimizers import DPAdam
from privet.training.performance import Performance
from privet.vocabulary import Adjacency, Unit
from privet_research.studies.arms import AUTOMATIC, GLOBAL, LOCAL, NON_PRIVATE

Row = dict[str, Any]
MakeOptimizer = Callable[[Iterable[nn.Parameter], float], Optimizer]

LOCAL_AT_CUTOFF = "local at the cutoff"
GLOBAL_NEAR = "global, cutoff 20"
CORRECTED = "local, corrected Adam"
# One in so many training records is held out.
_VALIDATION_PARTS = 5


@dataclass(frozen=True, kw_only=True)
class RegressionSettings:
    """One data set's constants.

    Attributes:
        name: What the rows call the setting.
        dataset: The name of the data set.
        num_inputs: Columns of the data set.
        steps: Number of steps.
        batch_size: Expected batch size; None for the full batch.
        noise_multiplier: The same in all private arms.
        norm: Bound on one example (the paper's R).
        cutoff: Above which global clipping drops a gradient (the paper's Z).
        optimizer: Makes the optimizer from parameters and a learning rate.
        rates: Learning rates to choose from, the same for every arm.
        ignores_scale: Whether the optimizer's steps do not depend on the scale of the gradients, as Adam's do not.
        delta: Probability with which the bound may fail.
    """

    name: str
    dataset: str
    num_inputs: int
    steps: int
    batch_size: int | None
    noise_multiplier: float
    norm: float
    cutoff: float
    optimizer: MakeOptimizer
    rates: tuple[float, ...]
    ignores_scale: bool
    delta: float = 1e-5

    def plan(self, clipping: Clipping, dataset_size: int) -> Plan:
        """Return the plan of a private arm."""
        sampling: Sampling
        if self.batch_size is None:
            sampling = FullBatch(steps=self.steps, expected_batch_size=dataset_size)
        else:
            rate = self.batch_size / dataset_size
            sampling = Poisson(rate=rate, steps=self.steps, expected_batch_size=self.batch_size)
        return Plan(
            sampling=sampling,
            clipping=clipping,
            noise=Gaussian(noise_multiplier=self.noise_multiplier),
            delta=self.delta,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.RECORD,
        )

    @property
    def arms(self) -> Mapping[str, Arm]:
        """The arms by name.

        ``LOCAL_AT_CUTOFF`` is global clipping without its dropping: a threshold at the cutoff, at a rate that makes up
        for the larger scale. Where nothing is dropped the two are the same run. ``GLOBAL_NEAR`` has a cutoff in the
        range of the gradients' lengths, where the paper's lie far above it.
        """
        scale = 1.0 if self.ignores_scale else self.norm / self.cutoff
        local = Threshold(norm=self.norm)
        arms = {
            NON_PRIVATE: Arm(clipping=None, optimizer=self.optimizer),
            LOCAL: Arm(clipping=local, optimizer=self.optimizer),
            GLOBAL: Arm(clipping=KeepOrDrop(norm=self.norm, cutoff=self.cutoff), optimizer=self.optimizer),
            GLOBAL_NEAR: Arm(clipping=KeepOrDrop(norm=self.norm, cutoff=20.0), optimizer=self.optimizer),
            LOCAL_AT_CUTOFF: Arm(clipping=Threshold(norm=self.cutoff), optimizer=self.optimizer, rate_scale=scale),
            AUTOMATIC: Arm(clipping=Automatic(norm=self.norm), optimizer=self.optimizer),
        }
        if self.ignores_scale:
            arms[CORRECTED] = Arm(clipping=local, optimizer=partial(_corrected, noise_std=self._noise_std))
        return MappingProxyType(arms)

    @property
    def _noise_std(self) -> float:
        return self.noise_multiplier * self.norm / (self.batch_size or 1)

    def shortened(self, steps: int) -> RegressionSettings:
        """Return the same study with fewer steps and one rate; its figures say nothing about the full one."""
        return replace(self, steps=steps, rates=self.rates[len(self.rates) // 2 :][:1])


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of training: how to clip (None trains without privacy), and what to do with the result."""

    clipping: Clipping | None
    optimizer: MakeOptimizer
    rate_scale: float = 1.0


def _adam(parameters: Iterable[nn.Parameter], rate: float) -> Optimizer:
    return Adam(parameters, lr=rate)


def _descent(parameters: Iterable[nn.Parameter], rate: float) -> Optimizer:
    return SGD(parameters, lr=rate)


def _corrected(parameters: Iterable[nn.Parameter], rate: float, *, noise_std: float) -> Optimizer:
    return DPAdam(parameters, lr=rate, guard=0.1 * noise_std**2)


def housing_settings() -> RegressionSettings:
    """California housing with Adam, ten epochs."""
    return RegressionSettings(
        name="california_housing",
        dataset="california_housing",
        num_inputs=8,
        steps=516,
        batch_size=256,
        noise_multiplier=1.0,
        norm=1.0,
        cutoff=2_000.0,
        optimizer=_adam,
        rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        ignores_scale=True,
    )


def wine_settings() -> RegressionSettings:
    """Red wine with full-batch gradient descent, two hundred steps."""
    return RegressionSettings(
        name="wine_red",
        dataset="wine_red",
        num_inputs=11,
        steps=200,
        batch_size=None,
        noise_multiplier=1.0,
        norm=1.0,
        cutoff=400.0,
        optimizer=_descent,
        rates=(0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
        ignores_scale=False,
        delta=1e-4,
    )


def private_wine_settings() -> RegressionSettings:
    """The same with noise that gives a guarantee of use: the plain constant spends an epsilon above a hundred."""
    return replace(wine_settings(), name="wine_red, more noise", noise_multiplier=10.0)


SETTINGS: Mapping[str, Callable[[], RegressionSettings]] = MappingProxyType(
    {"housing": housing_settings, "wine": wine_settings, "private wine": private_wine_settings}
)


def run_regression_study(
    settings: Sequence[RegressionSettings], *, seeds: Sequence[int], device: torch.device
) -> Iterator[Row]:
    """Train every arm at every rate with every seed and yield one row of figures as each is known."""
    for chosen in settings:
        split = load(chosen.dataset, normalisation="standardized")
        parts = (*_validated(split.train), split.test)
        train, validation, test = (on_device(part, device) for part in parts)
        declared = split.info.train_size - split.info.train_size // _VALIDATION_PARTS
        for seed in seeds:
            for name, arm in chosen.arms.items():
                for rate in chosen.rates:
                    began = time.monotonic()
                    model, epsilon = _trained(chosen, arm, rate, train, declared, seed, device)
                    yield {
                        "arm": name,
                        "setting": chosen.name,
                        "seed": seed,
                        "rate": rate,
                        "epsilon": epsilon,
                        "delta": chosen.delta,
                        "noise_multiplier": chosen.noise_multiplier,
                        "steps": chosen.steps,
                        "test_error": _mean_error(model, test),
                        "validation_error": _mean_error(model, validation),
                        "train_error": _mean_error(model, train),
                        "seconds": round(time.monotonic() - began, 1),
                        "device": device.type,
                    }


def _validated(train: ArrayDataset) -> tuple[ArrayDataset, ArrayDataset]:
    """Split off the validation part: one fixed choice of records for all arms, rates and seeds."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    count = len(train) // _VALIDATION_PARTS
    kept, held_out = (train.take(rows) for rows in (order[count:], order[:count]))
    return (
        ArrayDataset(features=kept[0], labels=kept[1]),
        ArrayDataset(features=held_out[0], labels=held_out[1]),
    )


def _trained(
    settings: RegressionSettings,
    arm: Arm,
    rate: float,
    train: ArrayDataset,
    size: int,
    seed: int,
    device: torch.device,
) -> tuple[nn.Module, float | None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = mlp_64_64((settings.num_inputs,), 1).to(device)
    optimizer = arm.optimizer(model.parameters(), rate * arm.rate_scale)
    if arm.clipping is None:
        _train_openly(model, optimizer, train, settings, seed)
        return model, None
    performance = Performance(physical_batch_size=size if settings.batch_size is None else 2 * settings.batch_size)
    plan = settings.plan(arm.clipping, size)
    return model, fit_privately(model, optimizer, train, plan, _losses, performance=performance, seed=seed).epsilon


def _train_openly(
    model: nn.Module, optimizer: Optimizer, train: ArrayDataset, settings: RegressionSettings, seed: int
) -> None:
    """Train without clipping and noise, over batches drawn with replacement, or over all examples."""
    generator = torch.Generator(device=train.features.device).manual_seed(seed)
    for _ in range(settings.steps):
        rows: Tensor | slice = slice(None)
        if settings.batch_size is not None:
            rows = torch.randint(len(train), (settings.batch_size,), generator=generator, device=train.features.device)
        optimizer.zero_grad(set_to_none=True)
        _losses(model(train.features[rows]), train.labels[rows]).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.reshape(outputs.shape)).square().mean(1)


@torch.no_grad()
def _mean_error(model: nn.Module, data: ArrayDataset) -> float | None:
    """Return the mean squared error; None for a run that diverged."""
    found = float(_losses(model(data.features), data.labels).mean())
    return found if math.isfinite(found) else None
