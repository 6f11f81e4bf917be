"""The theorems of Xu and Chen (2026) against trained two-layer networks, in settings that did not fix their constants.

The bounds have constants of order one that are not printed. Here the settings with less noise fix them: the upper one
so that every run lies below its bound, the lower one so that every mean lies above its own. Settings with more noise,
none of which was seen, say whether the bounds grow with noise, feature, share and dimension as they should.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from privet.datasets.two_patch import TwoPatch
from privet.effects.feature_to_noise import LossParts, PatchCell, PatchSetting
from privet_research.studies.laboratory import LabSettings, random_tasks, theory_of, train_and_measure
from privet_research.studies.markdown import markdown
from privet_research.studies.patch_training import PatchTraining, initial_filters, patch_logits, train_patches
from privet_research.theory.patch_learning import conditions

Row = dict[str, Any]
Array = NDArray[np.float64]
_SHAPES = ((25, 5), (25, 20), (50, 10), (100, 5), (100, 20))
_RADIUS = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSetting:
    """One random setting and the losses of several runs of it.

    Attributes:
        setting: The training.
        cells: Both classes; the losses are of the first.
        bound: The parts of its upper bound with constants of one.
        losses: Test loss of each run.
    """

    setting: PatchSetting
    cells: Sequence[PatchCell]
    bound: LossParts
    losses: Array

    @property
    def floors(self) -> Array:
        """What is left of each loss beside the parts that vanish, over the floor: the constant that a run needs."""
        return (self.losses - self.bound.vanishing - self.bound.generalisation) / self.bound.privacy

    @property
    def least_floor(self) -> float:
        """The same of the mean loss, for the lower bound, which has no part from generalisation."""
        return float((self.losses.mean() - self.bound.vanishing) / self.bound.privacy)


def measured_settings(
    *, seed: int, num_settings: int, num_runs: int, device: torch.device
) -> tuple[list[MeasuredSetting], PatchTraining]:
    """Train each of many random settings several times."""
    generator = np.random.default_rng(seed)
    training = PatchTraining(batch_size=50, num_steps=100)
    found = []
    for place, (dimension, filters) in enumerate(_SHAPES):
        lab = LabSettings(num_examples=400, num_filters=filters, training=training)
        tasks = random_tasks(num_settings // len(_SHAPES), dimension, generator)
        noise_stds = [float(10**power) for power in generator.uniform(-1.3, 0.7, len(tasks))]
        rows = list(
            train_and_measure(
                [task for task in tasks for _ in range(num_runs)],
                [noise for noise in noise_stds for _ in range(num_runs)],
                lab, seed=seed * len(_SHAPES) + place, device=device,
            )
        )  # fmt: skip
        for index, (task, noise_std) in enumerate(zip(tasks, noise_stds, strict=True)):
            own = rows[index * num_runs : (index + 1) * num_runs]
            cells = [
                PatchCell(feature_size=size, share=share)
                for size, share in zip(task.feature_sizes[:2], task.shares[:2], strict=True)
            ]
            setting = theory_of(task, noise_std, lab)
            losses = np.array([row["first_loss"] for row in own])
            bound = setting.upper_loss(cells[0])
            found.append(MeasuredSetting(setting=setting, cells=cells, bound=bound, losses=losses))
    return found, training


def run_theorem_study(*, seeds: Sequence[int], device: torch.device, quick: bool) -> Iterator[Row]:
    """Yield one row for each statement and seed."""
    for seed in seeds:
        found, training = measured_settings(
            seed=seed, num_settings=20 if quick else 40, num_runs=4 if quick else 8, device=device
        )
        for name, value in {**_bounds(found), **_conditions(found, training)}.items():
            yield {"arm": name, "seed": seed, "value": value, "num_settings": len(found)}
        for name, value in _noise_in_filters(seed=seed, device=device).items():
            yield {"arm": name, "seed": seed, "value": value}


def _bounds(found: Sequence[MeasuredSetting]) -> dict[str, float]:
    """Fix the constants by the half of the settings with less noise, and try them on the other half."""
    ordered = sorted(found, key=lambda one: one.setting.noise_std)
    half = len(ordered) // 2
    seen, unseen = ordered[:half], ordered[half:]
    upper = max(float(one.floors.max()) for one in seen)
    lower = min(max(0.0, one.least_floor) for one in seen)
    below = np.concatenate([one.floors <= upper for one in unseen])
    above = [one.least_floor >= lower for one in unseen]
    return {
        "Theorem 3.4: share below the upper bound": float(below.mean()),
        "Theorem 3.5: share above the lower bound": float(np.mean(above)),
        "Theorem 3.5: the constant of the lower bound": lower,
        "the constant of the upper bound": upper,
    }


def _conditions(found: Sequence[MeasuredSetting], training: PatchTraining) -> dict[str, float | None]:
    """Share of settings with a loss below that of guessing, among those that fulfil the conditions and the others."""
    fulfilled: dict[bool, list[bool]] = {True: [], False: []}
    for one in found:
        all_hold = conditions(one.setting, one.cells, batch_size=training.batch_size, failure=0.5).all_hold
        fulfilled[all_hold].append(float(one.losses.mean()) < math.log(2))
    shares = {key: float(np.mean(values)) if values else None for key, values in fulfilled.items()}
    return {
        "Condition 3.1: share that learns where it holds": shares[True],
        "Condition 3.1: share that learns where it does not": shares[False],
    }


def _noise_in_filters(*, seed: int, device: torch.device) -> dict[str, float]:
    """Lengths of filters against equation 6, and the growth of the loss under attack with the steps (Theorem 3.7)."""
    task, noise_std, lab = TwoPatch(), 0.5, LabSettings()
    train, test = (task.draw(lab.num_examples, seed=2 * seed + part) for part in (0, 1))
    inputs, labels = (values[None].to(device) for values in (train.inputs, train.labels))
    start = initial_filters(1, dimension=task.dimension, num_filters=lab.num_filters, seed=seed, device=device)
    extra, bounds = {}, {}
    for steps in (100, 400):
        training = replace(lab.training, num_steps=steps)
        filters = train_patches(start, inputs, labels, training, noise_stds=torch.tensor([noise_std]), seed=seed)
        extra[steps] = _added_by_attack(filters, test.inputs[None].to(device), test.labels[None].to(device))
        theory = replace(theory_of(task, noise_std, lab), num_steps=steps)
        cell = PatchCell(feature_size=task.feature_sizes[0], share=task.shares[0])
        attacked = theory.adversarial_loss(cell, radius=_RADIUS, filter_noise=theory.filter_noise_l1)
        bounds[steps] = attacked.adversarial
        length = training.learning_rate * noise_std * math.sqrt(steps * filters[0].numel())
        ratio = float(filters.norm()) / length
    return {
        "Equation 6: length of the filters over that of their noise": ratio,
        "Theorem 3.7: loss added by an attack, over the dual length": extra[400] / bounds[400],
        "Theorem 3.7: growth of the added loss from 100 to 400 steps": extra[400] / extra[100],
    }


def _added_by_attack(filters: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the loss that one signed step of the inputs adds; the network is linear in them but for sign changes."""
    given = inputs.clone().requires_grad_()

    def loss(values: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(patch_logits(filters, values)[0], labels[0])

    before = loss(given)
    (slope,) = torch.autograd.grad(before, given)
    with torch.no_grad():
        return float(loss(inputs + _RADIUS * slope.sign())) - float(before)


def theorem_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: a line for each statement, with its mean over seeds."""
    lines = [["statement", "mean", "smallest", "largest", "seeds"]]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        values = [row["value"] for row in rows if row["arm"] == arm and row["value"] is not None]
        shown = [f"{value:.3g}" for value in (np.mean(values), min(values), max(values))] if values else ["", "", ""]
        lines.append([arm, *shown, str(len(values))])
    return markdown(lines) + "\n"
