"""Correlated against independent noise: a sentence encoder fine-tuned on SST-2 for three epochs, at one guarantee.

Low-rank adapters in the upper layers of MiniLM and a new head are trained by plain descent with momentum, which is the
workload that the bands are optimised for. Each kind of noise has its own best learning rate and course of it, chosen
by training sentences that are held out, with one seed; the development part has no say. The choice is not covered by
the guarantee: the data are public, and random streams are seeded, so that runs can be repeated.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from privet.datasets.sentences import TRAIN_SIZE
from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.correlated_noise import BandedGaussian
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.models.minilm import UpperLayers
from privet.models.token_states import TokenStates
from privet.plan import Plan
from privet.training.launch.replay import CudaGraph, Eager
from privet.training.performance import Performance
from privet.training.schedules import LearningRate, LinearDecay
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from privet_research.studies.markdown import markdown
from privet_research.studies.regression_table import half_width
from privet_research.studies.text import (
    TextSettings,
    predictions_of,
    rounded_products,
    sentence_losses,
    sentence_model,
    sentence_states,
)

Row = dict[str, Any]
INDEPENDENT, BANDED = "independent", "banded"
_MAX_RECORDINGS = 12


@dataclass(frozen=True, kw_only=True)
class BandSettings:
    """One kind of noise at one epsilon, or both kinds. Lists are words, so that the command line can change them.

    Attributes:
        arms: Kinds of noise.
        epsilon: Target of every run.
        bands: Number of bands; ``privet plan --compare-noise`` tells the best one.
        rates: Learning rates to choose from.
        final_rates: Shares of the rate that are left at the end, to choose from; 1 holds it constant.
        trained_layers: Upper layers with adapters; those below are frozen.
        rank: Inner width of the adapters.
        num_held_out: Whole training sentences by which the rate is chosen.
    """

    arms: tuple[str, ...] = (INDEPENDENT, BANDED)
    epsilon: float = 3.0
    bands: int = 32
    rates: tuple[str, ...] = ("0.02", "0.05", "0.1", "0.2")
    final_rates: tuple[str, ...] = ("0", "1")
    delta: float = 1e-6
    batch_size: int = 200
    epochs: int = 3
    momentum: float = 0.9
    norm: float = 1.0
    trained_layers: int = 2
    rank: int = 16
    dataset_size: int = TRAIN_SIZE
    num_held_out: int = 1_500
    physical_batch_size: int = 128
    recorded: bool = True

    def __post_init__(self) -> None:
        if unknown := set(self.arms) - {INDEPENDENT, BANDED}:
            raise ArgumentError(f"There is no arm {min(unknown)!r} in this study. Arms: {INDEPENDENT}, {BANDED}.")

    @property
    def encoder(self) -> TextSettings:
        """The part that is shared with the other study of this encoder."""
        return TextSettings(
            trained_layers=self.trained_layers,
            rank=self.rank,
            dataset_size=self.dataset_size,
            num_held_out=self.num_held_out,
        )

    @property
    def courses(self) -> list[tuple[float, float]]:
        """The learning rates and their final shares to choose from."""
        return [(float(rate), float(final)) for final, rate in itertools.product(self.final_rates, self.rates)]

    def plan(self, arm: str) -> Plan:
        """Return the calibrated plan of an arm."""
        size = {"dataset_size": self.dataset_size, "batch_size": self.batch_size, "epochs": self.epochs}
        whole = Plan(
            sampling=Poisson.for_dataset(**size),
            clipping=Threshold(norm=self.norm),
            noise=Gaussian(),
            delta=self.delta,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.RECORD,
        )
        if arm == BANDED:
            sampling = CyclicPoisson.for_dataset(groups=self.bands, **size)
            steps = sampling.num_rounds * sampling.steps_per_round
            noise = BandedGaussian.optimised(bands=self.bands, steps=steps, momentum=self.momentum)
            whole = replace(whole, sampling=sampling, noise=noise)
        return whole.calibrated(epsilon=self.epsilon)

    def shortened(self) -> BandSettings:
        """Return a version of a minute or two; its figures say nothing about the full one."""
        return replace(
            self,
            bands=4,
            rates=("0.2",),
            final_rates=("1",),
            trained_layers=1,
            rank=4,
            dataset_size=1_000,
            num_held_out=100,
            batch_size=100,
            epochs=1,
            physical_batch_size=64,
        )


def run_band_study(settings: Sequence[BandSettings], *, seeds: Sequence[int], device: torch.device) -> Iterator[Row]:
    """Choose the rate of every arm with the first seed, then train it with all seeds; yield a row for each run."""
    for variant in settings:
        train, held_out, dev = sentence_states(variant.encoder, device)
        assert held_out is not None, "the study always holds out"
        for arm in variant.arms:
            plan = variant.plan(arm)
            searched: list[Row] = []
            for course in variant.courses:
                searched.append(_row(variant, arm, plan, course, seeds[0], train, held_out, dev))
                yield searched[-1]
            best = max(searched, key=lambda row: row["held_out_accuracy"])
            for seed in seeds[1:]:
                yield _row(variant, arm, plan, (best["rate"], best["final"]), seed, train, held_out, dev)


def _row(
    settings: BandSettings,
    arm: str,
    plan: Plan,
    course: tuple[float, float],
    seed: int,
    train: TokenStates,
    held_out: TokenStates,
    dev: TokenStates,
) -> Row:
    began = time.monotonic()
    rate, final = course
    with rounded_products(train.states.device, tf32=True):
        model = sentence_model(settings.encoder, seed).to(train.states.device)
        epsilon = _train(model, train, settings, plan, course, seed)
        chosen_by, figure = (float(predictions_of(model, part).is_right.mean()) for part in (held_out, dev))
    return {
        "arm": arm,
        "dataset": "sst2",
        "target": settings.epsilon,
        "epsilon": epsilon,
        "delta": settings.delta,
        "bands": settings.bands if arm == BANDED else 1,
        "noise_multiplier": plan.noise.noise_multiplier,
        "steps": plan.num_steps,
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "variant": f"{settings.trained_layers} layers, rank {settings.rank}, momentum {settings.momentum:g}",
        "rate": rate,
        "final": final,
        "seed": seed,
        "held_out_accuracy": chosen_by,
        "accuracy": figure,
        "num_test": len(dev),
        "seconds": round(time.monotonic() - began, 1),
    }


def _train(
    model: UpperLayers, train: TokenStates, settings: BandSettings, plan: Plan, course: tuple[float, float], seed: int
) -> float:
    rate, final = course
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = SGD(trained, lr=rate, momentum=settings.momentum)
    schedule = LearningRate(optimizer, LinearDecay(final=final), num_steps=plan.num_steps)
    is_recorded = train.states.device.type == "cuda" and settings.recorded
    session = privatize(
        model.train(),
        optimizer,
        train,
        plan,
        performance=Performance(
            physical_batch_size=settings.physical_batch_size,
            launch=CudaGraph(max_recordings=_MAX_RECORDINGS) if is_recorded else Eager(),
        ),
        seed=seed,
    )

    def losses(states: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return sentence_losses(model, states, mask, labels)

    with session:
        for step in session.steps():
            schedule.set(step.index)
            step.accumulate(losses)
            step.update()
    return session.guarantee().epsilon


def band_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the study as Markdown: both kinds of noise at the rates that held-out sentences choose, and the gain."""
    header = ["epsilon", "independent %", "correlated %", "bands", "gain in points", "found"]
    lines = [header]
    found: list[str] = []
    for epsilon in sorted({row["target"] for row in rows}):
        best = {arm: _chosen([row for row in rows if row["target"] == epsilon and row["arm"] == arm])
                for arm in (INDEPENDENT, BANDED)}  # fmt: skip
        lines.append(_line(epsilon, best))
        found += [_choice(epsilon, arm, own) for arm, own in best.items() if own]
    table = markdown(lines)
    return "\n\n".join([_terms(rows), table, "Learning rates:\n\n" + "\n".join(found)]) + "\n"


def _chosen(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The runs at the course with the best held-out accuracy of the seed that all courses share."""
    if not rows:
        return []
    first = min(row["seed"] for row in rows)
    best = max((row for row in rows if row["seed"] == first), key=lambda row: row["held_out_accuracy"])
    return [row for row in rows if (row["rate"], row["final"]) == (best["rate"], best["final"])]


def _line(epsilon: float, best: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    figures = {arm: {row["seed"]: 100 * float(row["accuracy"]) for row in own} for arm, own in best.items()}
    both = sorted(figures[INDEPENDENT].keys() & figures[BANDED].keys())
    gains = [figures[BANDED][seed] - figures[INDEPENDENT][seed] for seed in both]
    width = half_width(gains) if gains else None
    gain = statistics.fmean(gains) if gains else 0.0
    verdict = "not decided"
    if width is not None and abs(gain) > width:
        verdict = "correlated noise is better" if gain > 0 else "independent noise is better"
    bands = {row["bands"] for row in best[BANDED]}
    return [
        f"{epsilon:g}",
        _shown(list(figures[INDEPENDENT].values()), ".1f"),
        _shown(list(figures[BANDED].values()), ".1f"),
        ", ".join(map(str, sorted(bands))),
        _shown(gains, "+.1f"),
        verdict,
    ]


def _shown(values: Sequence[float], style: str) -> str:
    if not values:
        return ""
    width = half_width(values)
    return format(statistics.fmean(values), style) + ("" if width is None else f" ± {width:.1f}")


def _choice(epsilon: float, arm: str, own: Sequence[Mapping[str, Any]]) -> str:
    row = own[0]
    course = {1.0: "held constant", 0.0: "falling to zero"}.get(row["final"], f"falling to {row['final']:g} of it")
    return (
        f"* epsilon {epsilon:g}, {arm}: {row['rate']:g}, {course}; noise multiplier {row['noise_multiplier']:.3f} of a "
        f"round, {row['steps']} steps, {len(own)} seeds"
    )


def _terms(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "No rows yet."
    row = rows[0]
    return (
        f"MiniLM on SST-2 ({row['variant']}), {row['epochs']} epochs in batches of {row['batch_size']}, delta "
        f"{row['delta']:g}, add or remove one record. Accuracy on the {row['num_test']} sentences of the development "
        "part; the rate of each arm is the best one on held-out training sentences with the first seed. Gains are "
        "paired by seed, with 95 % intervals over seeds (Student's t)."
    )
