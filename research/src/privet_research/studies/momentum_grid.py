"""Threshold and momentum: figures 10 and 11 of Zhu and Blaschko (2023) at a small scale, on handwritten digits.

With heavy-ball momentum one noisy gradient moves the weights by ``1 / (1 - momentum)`` times itself in the end, so the
best pairs are said to lie where ``C / (1 - momentum)`` is constant. Adam divides by the size of the gradients, so
threshold and momentum are said to be separate choices. There it is DP-CNN on CIFAR-10; here a network of two layers.
The digits come with scikit-learn; streams are seeded, so nothing here is private.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from privet.mechanism.clipping import Threshold
from privet.mechanism.masking import NoMask
from privet.mechanism.noise import Gaussian
from privet.training.performance import Performance
from privet.training.start import privatize
from privet_research.studies.sparsification_signs import digits, digits_model, digits_plan, losses

Row = dict[str, Any]
NOISE_MULTIPLIER = 2.0
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
    make: Callable[[nn.Module, float], Optimizer]


def _heavy_ball(model: nn.Module, momentum: float) -> Optimizer:
    # Large enough that noise matters: far below it, more of everything is better and no diagonal shows.
    return SGD(model.parameters(), lr=4.0, momentum=momentum)


def _adam(model: nn.Module, momentum: float) -> Optimizer:
    return Adam(model.parameters(), lr=0.01, betas=(momentum, 0.999))


METHODS = (Method(title="SGD", make=_heavy_ball), Method(title="Adam", make=_adam))


def run_momentum_study(*, seeds: Sequence[int], device: torch.device, epochs: int = 20) -> Iterator[Row]:
    """Train at every pair of threshold and momentum with both optimizers; then say how far each grid is additive."""
    train, test = digits(device)
    for seed, method in itertools.product(seeds, METHODS):
        found: dict[tuple[float, float], float] = {}
        for norm, momentum in itertools.product(NORMS, MOMENTA):
            model = digits_model(seed, device)
            _train(model, train, method.make(model, momentum), norm, epochs, seed)
            found[norm, momentum] = _accuracy(model, test.features, test.labels)
            yield {
                "arm": f"{method.title}, C {norm:g}, momentum {momentum:g}",
                "part": "grid",
                "optimizer": method.title,
                "norm": norm,
                "momentum": momentum,
                "threshold": f"C {norm:g}",
                "on_diagonal": norm == 1 - momentum,
                "seed": seed,
                "accuracy": found[norm, momentum],
                "epochs": epochs,
            }
        yield {
            "arm": f"{method.title}, whole grid",
            "part": "interaction",
            "optimizer": method.title,
            "seed": seed,
            "accuracy": statistics.fmean(found.values()),
            "interaction": interaction(found),
        }


def _train(model: nn.Module, train: Any, optimizer: Optimizer, norm: float, epochs: int, seed: int) -> None:
    def loss_of(features: Tensor, labels: Tensor) -> Tensor:
        return losses(model(features), labels)

    noise = Gaussian(noise_multiplier=NOISE_MULTIPLIER)
    plan = digits_plan(clipping=Threshold(norm=norm), noise=noise, mask=NoMask(), epochs=epochs)
    with privatize(
        model, optimizer, train, plan, performance=Performance(physical_batch_size=512), seed=seed
    ) as session:
        for step in session.steps():
            step.accumulate(loss_of)
            step.update()


@torch.no_grad()
def _accuracy(model: nn.Module, features: Tensor, labels: Tensor) -> float:
    return float((model(features).argmax(1) == labels).double().mean())


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
        lines = [["C", *(f"momentum {value:g}" for value in MOMENTA)], ["---"] * (1 + len(MOMENTA))]
        for norm in NORMS:
            cells = [[row["accuracy"] for row in own if (row["norm"], row["momentum"]) == (norm, m)] for m in MOMENTA]
            lines.append([f"{norm:g}", *(f"{100 * statistics.fmean(cell):.1f}" if cell else "" for cell in cells)])
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        rests = [100 * row["interaction"] for row in rows if row["optimizer"] == title and row["part"] != "grid"]
        said = f"\n\nNot explained by rows and columns: {statistics.fmean(rests):.2f} points." if rests else ""
        parts.append(f"## {title}\n\n{table}{said}")
    return "\n\n".join(parts) + "\n"
