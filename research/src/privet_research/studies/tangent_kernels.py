"""What clipping does to the tangent kernel: tables 1 and 2 of Bu et al. ("On the convergence and calibration").

Their tables say what is guaranteed. A guarantee is refuted by one example, so two searches are made for each kind of
clipping: among kernels of small networks on random data, and among random kernels with random factors of that kind.
A property that no search breaks is reported as kept; for those the publication has proofs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privet.effects.tangent_kernel import TOLERANCE, kernel_report, neural_tangent_kernel
from privet.mechanism.clipping import Clipping, KeepOrDrop, Threshold
from privet.mechanism.grouping import Grouping, OneGroup, PerLayer
from privet_research.studies.markdown import markdown

Row = dict[str, Any]
_NUM_EXAMPLES, _NUM_INPUTS, _WIDTH = 20, 5, 40
_SIDE, _NUM_LAYERS = 3, 2
# Far above any gradient of these networks: the tables assume that global clipping drops nothing.
_FAR = 1e6


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One line of the tables.

    Attributes:
        clipping: How gradients of networks are clipped; None for not at all.
        grouping: What is clipped together.
        factors: Draws factors of this kind for random kernels, ``[draw, layer, example]``, from uniform numbers.
    """

    clipping: Clipping | None
    grouping: Grouping
    factors: Callable[[Tensor], Tensor]


def _ones(uniform: Tensor) -> Tensor:
    return torch.ones_like(uniform)


def _by_example(uniform: Tensor) -> Tensor:
    return uniform[:, :1].expand_as(uniform)


def _by_layer(uniform: Tensor) -> Tensor:
    return uniform[..., :1].expand_as(uniform)


KINDS: Mapping[str, Kind] = {
    "no clipping": Kind(clipping=None, grouping=OneGroup(), factors=_ones),
    "local, flat": Kind(clipping=Threshold(norm=0.1), grouping=OneGroup(), factors=_by_example),
    "local, layerwise": Kind(clipping=Threshold(norm=0.1), grouping=PerLayer(), factors=lambda uniform: uniform),
    "global, flat": Kind(clipping=KeepOrDrop(norm=1.0, cutoff=_FAR), grouping=OneGroup(), factors=_ones),
    "global, layerwise": Kind(clipping=KeepOrDrop(norm=1.0, cutoff=_FAR), grouping=PerLayer(), factors=_by_layer),
}


def run_kernel_study(*, seeds: Sequence[int], device: torch.device, num_draws: int = 200_000) -> Iterator[Row]:
    """Search for counter-examples to every property of every kind, and yield one row for each kind and seed."""
    for seed in seeds:
        for name, kind in KINDS.items():
            asymmetry, quadratic, eigenvalue = (
                pick(pair) for pick, pair in zip((max, min, min), _both(kind, seed, device, num_draws), strict=True)
            )
            is_symmetric, in_form, in_eigenvalues = (
                asymmetry <= TOLERANCE,
                quadratic >= -TOLERANCE,
                eigenvalue >= -TOLERANCE,
            )
            yield {
                "arm": name,
                "seed": seed,
                "asymmetry": asymmetry,
                "least_quadratic": quadratic,
                "least_eigenvalue": eigenvalue,
                "symmetric": float(is_symmetric),
                "positive_in_quadratic_form": float(in_form),
                "positive_in_eigenvalues": float(in_eigenvalues),
                # As the publication derives its table 1: a loss falls for all labels if the form is positive, and can
                # rest only at zero if no eigenvalue can vanish or turn negative.
                "positive_kernel": float(is_symmetric and in_form),
                "loss_converges": float(in_form),
                "loss_decays_monotonically": float(in_form),
                "to_zero_loss": float(in_eigenvalues),
                "num_draws": num_draws,
            }


def _both(
    kind: Kind, seed: int, device: torch.device, num_draws: int
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    """Return asymmetry, least quadratic form and least eigenvalue, of a network and of the worst random kernel."""
    network, random = _network(kind, seed, device), _random(kind, seed, device, num_draws)
    return (network[0], random[0]), (network[1], random[1]), (network[2], random[2])


def _network(kind: Kind, seed: int, device: torch.device) -> tuple[float, float, float]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(_NUM_INPUTS, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, 1)).to(device)
        inputs = torch.randn(_NUM_EXAMPLES, _NUM_INPUTS).to(device)
        # Wide residuals, so that gradients differ in length and clipping treats them differently.
        targets = (5 * torch.randn(_NUM_EXAMPLES).exp()).to(device)
    kernel = neural_tangent_kernel(model, inputs, targets, _squares, grouping=kind.grouping)
    found = kernel_report(kernel, kind.clipping).properties
    scale = found.largest or 1.0
    return found.asymmetry, found.least_quadratic / scale, found.least_eigenvalue / scale


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets).square()


def _random(kind: Kind, seed: int, device: torch.device, num_draws: int) -> tuple[float, float, float]:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_draws, _NUM_LAYERS, _SIDE)
    # Factors over several orders of size, as gradients in heavy tails have them.
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64).pow(6).to(device)
    slopes = torch.randn(*shape, _SIDE, generator=generator, dtype=torch.float64).to(device)
    matrices = (slopes @ slopes.mT * kind.factors(uniform).unsqueeze(2)).sum(1)
    scale = torch.linalg.matrix_norm(matrices, 2)
    asymmetry = (matrices - matrices.mT).flatten(1).norm(dim=1) / matrices.flatten(1).norm(dim=1)
    quadratic = torch.linalg.eigvalsh((matrices + matrices.mT) / 2)[:, 0] / scale
    eigenvalue = torch.linalg.eigvals(matrices).real.amin(1) / scale
    return float(asymmetry.max()), float(quadratic.min()), float(eigenvalue.min())


def kernel_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return both tables as Markdown: yes where no search of any seed broke the property."""
    keys = {
        "symmetric": "symmetric",
        "positive in quadratic form": "positive_in_quadratic_form",
        "positive in eigenvalues": "positive_in_eigenvalues",
        "positive kernel": "positive_kernel",
        "loss converges": "loss_converges",
        "loss decays": "loss_decays_monotonically",
        "to zero loss": "to_zero_loss",
    }
    head = ["clipping", *keys, "least quadratic form", "least eigenvalue"]
    lines = [head]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        cells = ["yes" if all(row[key] for row in own) else "no" for key in keys.values()]
        worst = [f"{min(row[key] for row in own):+.4f}" for key in ("least_quadratic", "least_eigenvalue")]
        lines.append([arm, *cells, *worst])
    table = markdown(lines)
    return f"{table}\n\nThe least values are over the largest singular value, over networks and random kernels.\n"
