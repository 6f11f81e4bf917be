"""The course of the loss under clipping, in gradient flow: table 1, theorems 1 and 2 and fact 4.1 of Bu et al. (2021).

Models that are linear in their weights, with three groups of weights and the squared loss, have the tangent kernel of
the theorems at every moment, and their loss is integrated for many random problems at once: how far it ever rises above
an earlier value, and what is left of it at the end. A guarantee is refuted by one problem. Noise is added to descent in
smaller and smaller steps over the same time, to see whether it vanishes. Synthetic data; nothing here is private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privet_research.studies.markdown import markdown

Row = dict[str, Any]
_NUM_EXAMPLES, _NUM_GROUPS, _WIDTH = 3, 3, 4
_BOUND = 1.0
# Of the initial loss: rises below are those of the integrator's steps, rests below are still falling.
TOLERANCE = 1e-3
_STEP = 0.2
NOISY_STEPS = (0.1, 0.01, 0.001)


@dataclass(frozen=True, kw_only=True)
class Problems:
    """Random linear models, one problem per row.

    Attributes:
        slopes: Derivatives of predictions by weights, ``[problem, group, example, weight]``.
        residuals: Predictions less labels at the start, ``[problem, example]``.
    """

    slopes: Tensor
    residuals: Tensor

    @classmethod
    def draw(cls, count: int, *, seed: int, device: torch.device) -> Problems:
        """Draw slopes and residuals over several orders of size, as gradients in heavy tails have them.

        Only problems with a well conditioned kernel are kept, as the theorems assume a positive one: the others would
        converge too slowly for any clipping. :func:`growing` is the first of them.
        """
        generator = torch.Generator().manual_seed(seed)
        shape = (4 * count, _NUM_GROUPS, _NUM_EXAMPLES)
        slopes = torch.randn(*shape, _WIDTH, generator=generator, dtype=torch.float64)
        slopes = slopes * torch.randn(shape, generator=generator, dtype=torch.float64).exp().unsqueeze(3)
        values = torch.linalg.eigvalsh((slopes @ slopes.mT).sum(1))
        slopes = slopes[values[:, 0] > 0.02 * values[:, -1]][:count]
        values = values[values[:, 0] > 0.02 * values[:, -1]][:count]
        slopes = torch.cat([growing(), slopes / values[:, -1].sqrt().view(-1, 1, 1, 1)])
        lengths = 10 ** (2 * torch.rand(len(slopes), _NUM_EXAMPLES, generator=generator, dtype=torch.float64))
        signs = torch.randint(0, 2, lengths.shape, generator=generator) * 2 - 1
        residuals = lengths * signs
        residuals[0] = 100.0
        return cls(slopes=slopes.to(device), residuals=residuals.to(device))

    def gradient_norms(self, residuals: Tensor) -> Tensor:
        """Return the norm of each example's gradient in each group, ``[problem, group, example]``."""
        found: Tensor = residuals.abs().unsqueeze(1) * torch.linalg.vector_norm(self.slopes, dim=3)
        return found

    def velocity(self, residuals: Tensor, factors: Tensor) -> Tensor:
        """Return what gradient flow with these factors does to the residuals; the loss is half their mean square."""
        weighted = (factors * residuals.unsqueeze(1)).unsqueeze(3)
        found: Tensor = -(self.slopes @ (self.slopes.mT @ weighted)).sum(1).squeeze(2)
        return found


def growing(strength: float = 3.0) -> Tensor:
    """Return the slopes of a problem whose loss grows under layerwise thresholds, for residuals that are all positive.

    In layer r example r pulls against the two others, with ``strength`` times their slope. Clipped to one length, the
    two win in every layer, and example r moves by ``strength`` where it pulls and by one in each of the others: away
    from its label, if ``strength`` is above two. The kernel is positive: its eigenvalues are ``(strength - 2)^2`` and
    twice ``(strength + 1)^2``.
    """
    slopes = torch.zeros(1, _NUM_GROUPS, _NUM_EXAMPLES, _WIDTH, dtype=torch.float64)
    slopes[0, :, :, 0] = 1.0
    slopes[0, range(_NUM_GROUPS), range(_NUM_EXAMPLES), 0] = -strength
    return slopes / (strength + 1)


Factors = Callable[[Tensor], Tensor]


def _whole(norms: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(norms, dim=1, keepdim=True)
    return found.expand_as(norms)


def _threshold(norms: Tensor) -> Tensor:
    return (_BOUND / norms.clamp_min(1e-300)).clamp_max(1.0)


def _per_layer(norms: Tensor) -> Tensor:
    return torch.tensor([1.0, 0.5, 0.2], dtype=norms.dtype, device=norms.device).view(1, -1, 1).expand_as(norms)


# From gradient norms to factors. Global clipping is that of a cutoff above all gradients but in the last line; its one
# factor, R / Z, is a unit of time.
KINDS: Mapping[str, Factors] = {
    "no clipping": torch.ones_like,
    "local, flat": lambda norms: _threshold(_whole(norms)),
    "local, layerwise": _threshold,
    "global, flat": torch.ones_like,
    "global, layerwise": _per_layer,
    "global, flat, with dropped gradients": lambda norms: (_whole(norms) <= 10 * _BOUND).to(norms.dtype),
}


def run_flow_study(
    *,
    seeds: Sequence[int],
    device: torch.device,
    num_problems: int = 2_000,
    num_steps: int = 12_000,
    num_noisy: int = 200,
) -> Iterator[Row]:
    """Integrate the loss of random problems under every kind of clipping; then add noise to ever smaller steps.

    Noise is left out where ``num_noisy`` is zero.
    """
    for seed in seeds:
        problems = Problems.draw(num_problems, seed=seed, device=device)
        for name, factors in KINDS.items():
            rise, rest = integrated(problems, factors, num_steps=num_steps)
            yield {
                "arm": name,
                "part": "flow",
                "seed": seed,
                "largest_rise": float(rise.max()),
                "share_rising": float((rise > TOLERANCE).double().mean()),
                "largest_rest": float(rest.max()),
                "share_resting": float((rest > TOLERANCE).double().mean()),
                "loss_decays_monotonically": float((rise <= TOLERANCE).all()),
                "to_zero_loss": float((rest <= TOLERANCE).all()),
                "num_problems": len(rise),
            }
        if num_noisy:
            yield from _noisy(seed, device, num_problems=num_noisy)


def integrated(problems: Problems, factors: Factors, *, num_steps: int) -> tuple[Tensor, Tensor]:
    """Return by problem the largest rise of the loss above an earlier value, and what is left of it at the end.

    Both are shares of the initial loss. The kernel's largest eigenvalue is one, so that a step of Euler's rule is short
    against the inverse of the largest factor: long stretches in which all gradients are clipped take few steps.
    """
    residuals = problems.residuals.clone()
    first = residuals.square().mean(1)
    least, rise = first.clone(), torch.zeros_like(first)
    for _ in range(num_steps):
        present = factors(problems.gradient_norms(residuals))
        step = _STEP / present.amax((1, 2)).clamp_min(1e-6)
        residuals = residuals + step.unsqueeze(1) * problems.velocity(residuals, present)
        loss = residuals.square().mean(1)
        rise = torch.maximum(rise, loss - least)
        least = torch.minimum(least, loss)
    return rise / first, residuals.square().mean(1) / first


def _noisy(seed: int, device: torch.device, *, num_problems: int, time: float = 10.0) -> Iterator[Row]:
    """Descend with clipping for the same time in smaller and smaller steps, with and without noise."""
    problems = Problems.draw(num_problems, seed=seed, device=device)
    count = len(problems.residuals)
    before: float | None = None
    for step in NOISY_STEPS:
        generator = torch.Generator().manual_seed(seed)
        ends = []
        for noise in (0.0, 1.0):
            residuals = problems.residuals.clone()
            for _ in range(round(time / step)):
                velocity = problems.velocity(residuals, _threshold(_whole(problems.gradient_norms(residuals))))
                drawn = torch.randn(count, _NUM_GROUPS, _WIDTH, 1, generator=generator, dtype=torch.float64)
                shaken = (problems.slopes @ drawn.to(device)).sum(1).squeeze(2)
                residuals = residuals + step * (velocity + noise * shaken)
            ends.append(residuals)
        gap = float((ends[1] - ends[0]).square().mean().sqrt() / problems.residuals.square().mean().sqrt())
        yield {
            "arm": f"noise in steps of {step:g}",
            "part": "noise",
            "seed": seed,
            "step": step,
            "gap": gap,
            # Of noise that vanishes as the root of the step: the root of a tenth.
            "left": None if before is None else gap / before,
        }
        before = gap


def flow_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return both parts as Markdown."""
    lines = [["clipping", "loss decays", "to zero loss", "largest rise", "rising, %", "largest rest", "resting, %"]]
    flow = [row for row in rows if row["part"] == "flow"]
    for arm in dict.fromkeys(row["arm"] for row in flow):
        own = [row for row in flow if row["arm"] == arm]
        said = [
            "yes" if all(row[key] for row in own) else "no" for key in ("loss_decays_monotonically", "to_zero_loss")
        ]
        figures = []
        for largest, share in (("largest_rise", "share_rising"), ("largest_rest", "share_resting")):
            figures.append(f"{max(row[largest] for row in own):.3g}")
            figures.append(f"{100 * sum(row[share] for row in own) / len(own):.1f}")
        lines.append([arm, *said, *figures])
    parts = [markdown(lines)]
    noise = [row for row in rows if row["part"] == "noise"]
    for step in dict.fromkeys(row["step"] for row in noise):
        values = [row["gap"] for row in noise if row["step"] == step]
        parts.append(f"Noise in steps of {step:g} moves the end by {sum(values) / len(values):.3g} of the start.")
    return "\n\n".join(parts) + "\n"
