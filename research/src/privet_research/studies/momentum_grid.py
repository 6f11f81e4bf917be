"""Threshold and momentum: figures 10 and 11 of Zhu and Blaschko (2023).

With heavy-ball momentum one noisy gradient moves the weights by ``1 / (1 - momentum)`` times itself in the end, so the
best pairs are said to lie where ``C / (1 - momentum)`` is constant. Adam divides by the size of the gradients, so
threshold and momentum are said to be separate choices. Streams are seeded, so nothing here is private.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from privet.mechanism.clipping import Threshold
from privet.mechanism.masking import NoMask
from privet.mechanism.noise import Gaussian
from privet_research.studies.markdown import markdown
from privet_research.studies.mask_tasks import MaskTask, accuracy

Row = dict[str, Any]
MOMENTA = (0.0, 0.5, 0.75)
# C / (1 - momentum) = 1 on the diagonal.
NORMS = (1.0, 0.5, 0.25)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One optimizer of the grid.

    Attributes:
        title: What the rows call it.
        make: From parameters and momentum to the optimizer.
    """

    title: str
    make: Callable[[nn.Module, MaskTask, float], Optimizer]


def _heavy_ball(model: nn.Module, task: MaskTask, momentum: float) -> Optimizer:
    return SGD(model.parameters(), lr=task.momentum_rate, momentum=momentum)


def _adam(model: nn.Module, task: MaskTask, momentum: float) -> Optimizer:
    return Adam(model.parameters(), lr=task.adam_rate, betas=(momentum, 0.999))


METHODS = (Method(title="SGD", make=_heavy_ball), Method(title="Adam", make=_adam))


def run_momentum_study(
    task: MaskTask,
    *,
    seeds: Sequence[int],
    device: torch.device,
    methods: Sequence[Method] = METHODS,
    earlier: Sequence[Row] = (),
) -> Iterator[Row]:
    """Train at every pair of threshold and momentum with both optimizers; then say how far each grid is additive.

    Rows of an earlier run are yielded again in their places and not trained again.
    """
    train, test = task.load(device)
    known = {(row["arm"], row["seed"]): row for row in earlier}
    for seed, method in itertools.product(seeds, methods):
        found: dict[tuple[float, float], float] = {}
        for norm, momentum in itertools.product(NORMS, MOMENTA):
            arm = f"{method.title}, C {norm:g}, momentum {momentum:g}"
            row = known.get((arm, seed))
            if row is None:
                began = time.monotonic()
                model = task.model(seed, device)
                noise = Gaussian(noise_multiplier=task.momentum_noise)
                plan = task.plan(clipping=Threshold(norm=norm), noise=noise, mask=NoMask(), epochs=task.short_epochs)
                task.train(model, train, plan, seed=seed, optimizer=method.make(model, task, momentum))
                row = {
                    "arm": arm,
                    "task": task.name,
                    "part": "grid",
                    "optimizer": method.title,
                    "norm": norm,
                    "momentum": momentum,
                    "threshold": f"C {norm:g}",
                    "on_diagonal": norm == 1 - momentum,
                    "seed": seed,
                    "accuracy": accuracy(model, test),
                    "epochs": task.short_epochs,
                    "seconds": round(time.monotonic() - began, 1),
                    "device": device.type,
                }
            found[norm, momentum] = row["accuracy"]
            yield row
        yield {
            "arm": f"{method.title}, whole grid",
            "task": task.name,
            "part": "interaction",
            "optimizer": method.title,
            "seed": seed,
            "accuracy": statistics.fmean(found.values()),
            "interaction": interaction(found),
        }


def interaction(grid: Mapping[tuple[float, float], float]) -> float:
    """Return the root mean square of what rows and columns together do not explain: zero for separate choices."""
    mean = statistics.fmean(grid.values())
    rows, columns = (
        {
            value: statistics.fmean(found for key, found in grid.items() if key[place] == value)
            for value in {key[place] for key in grid}
        }
        for place in (0, 1)
    )
    rests = [found - rows[key[0]] - columns[key[1]] + mean for key, found in grid.items()]
    return math.sqrt(statistics.fmean(rest**2 for rest in rests))


def momentum_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one grid per optimizer as Markdown: test accuracy in percent, mean over seeds."""
    parts = []
    for title in dict.fromkeys(row["optimizer"] for row in rows):
        own = [row for row in rows if row["optimizer"] == title and row["part"] == "grid"]
        lines = [["C", *(f"momentum {value:g}" for value in MOMENTA)]]
        for norm in NORMS:
            cells = [[row["accuracy"] for row in own if (row["norm"], row["momentum"]) == (norm, m)] for m in MOMENTA]
            lines.append([f"{norm:g}", *(f"{100 * statistics.fmean(cell):.1f}" if cell else "" for cell in cells)])
        table = markdown(lines)
        rests = [100 * row["interaction"] for row in rows if row["optimizer"] == title and row["part"] != "grid"]
        said = f"\n\nNot explained by rows and columns: {statistics.fmean(rests):.2f} points." if rests else ""
        parts.append(f"## {title}\n\n{table}{said}")
    return "\n\n".join(parts) + "\n"
