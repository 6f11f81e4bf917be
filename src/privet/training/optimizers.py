"""Adam that knows about the noise: the second moment without what the noise adds to it.

Any torch optimizer may follow a private step; it sees noisy gradients only. Adam divides by the root of a running mean
of squared gradients, and under differential privacy that mean is mostly noise variance, so that plain Adam degenerates
to momentum with a common step size. The variance is public, so it can be taken out (DP-AdamBC; Tang et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet import checks
from privet.errors import LoopError, PlanError
from privet.mechanism.sums import PrivateSum

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


@runtime_checkable
class NoiseAware(Protocol):
    """An optimizer that wants to know how noisy its gradients are."""

    def note_noise(self, noise_std: float) -> None:
        """Learn the standard deviation of the noise in each coordinate of the next step's gradients; public."""
        ...


def tell_noise(optimizer: NoiseAware, private: PrivateSum, *, divisor: float, keep: Tensor | None) -> None:
    """Tell an optimizer how noisy the gradients are that were just written.

    Coordinates outside ``keep`` carry no noise in this step; the mean over all coordinates is what a running mean of
    squares sees under masks drawn afresh.

    Raises:
        PlanError: if the noise differs from coordinate to coordinate.
    """
    if private.noise_std is None:
        raise PlanError(
            f"{type(optimizer).__name__} corrects for noise that is the same in every coordinate, which this plan's is "
            "not. Use an optimizer without the correction, such as torch.optim.Adam."
        )
    share = 1.0 if keep is None else float(keep.double().mean())
    optimizer.note_noise(private.noise_std / divisor * math.sqrt(share))


# Without noise a tenth of its variance is nothing, and a gradient of zero must not be divided by zero.
_LEAST_GUARD = 1e-16


class DPAdam(Optimizer):
    """Adam with the noise variance taken out of its second moment.

    The update is ``lr * mean / sqrt(max(square - noise_variance, guard))`` with bias-corrected running means of the
    gradients, of their squares, and of the variance of the noise, which may change from step to step. The session tells
    the variance; it is known from the plan and from released values.

    Args:
        parameters: As for any torch optimizer.
        lr: Learning rate.
        betas: How much of the running means of gradients and squares is kept in each step.
        guard: Least value of the corrected second moment. Where the gradients are all noise the corrected moment is
            around zero, and this decides the size of the step. None, the default, is a tenth of the noise variance,
            which keeps such steps calm.
        weight_decay: Added to the gradient as ``weight_decay * weight``.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        guard: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        """Check the constants and start with nothing averaged."""
        defaults = {
            "lr": checks.non_negative("lr", lr),
            "betas": tuple(checks.probability("betas", beta, allow_zero=True) for beta in betas),
            "guard": None if guard is None else checks.positive("guard", guard),
            "weight_decay": checks.non_negative("weight_decay", weight_decay),
            "steps_taken": 0,
            "noise_variance": 0.0,
        }
        super().__init__(parameters, defaults)
        self._noise_std: float | None = None

    def note_noise(self, noise_std: float) -> None:
        """Learn the noise of the next step's gradients."""
        self._noise_std = checks.non_negative("noise_std", noise_std)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # torch's returns the closure's loss
        """Move the weights by one step.

        Raises:
            LoopError: for a closure, which would evaluate the loss outside the guarantee, or if nobody said how noisy
                the gradients are.
        """
        if closure is not None:
            raise LoopError("A closure would evaluate the loss outside the guarantee. Call step() without one.")
        if self._noise_std is None:
            raise LoopError(
                f"{type(self).__name__} does not know how noisy its gradients are. Train through privatize(), which "
                "tells it, or call note_noise() before every step."
            )
        for group in self.param_groups:
            self._step_group(group, self._noise_std**2)
        self._noise_std = None

    def _step_group(self, group: dict[str, Any], variance: float) -> None:
        weights = [value for value in group["params"] if value.grad is not None]
        gradients = self._decayed(group, weights, [value.grad for value in weights])
        means = [self._running(value, "mean") for value in weights]
        squares = [self._running(value, "square") for value in weights]
        (keep_mean, keep_square), group["steps_taken"] = group["betas"], group["steps_taken"] + 1
        group["noise_variance"] += (1 - keep_square) * (variance - group["noise_variance"])
        if not weights:
            return
        torch._foreach_lerp_(means, gradients, 1 - keep_mean)
        torch._foreach_mul_(squares, keep_square)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - keep_square)
        seen = 1 - keep_square ** group["steps_taken"]
        # all three running means start at zero and are corrected by the same factor
        moments = list(torch._foreach_sub(squares, group["noise_variance"]))
        torch._foreach_div_(moments, seen)
        guard = group["guard"] if group["guard"] is not None else 0.1 * group["noise_variance"] / seen
        torch._foreach_clamp_min_(moments, max(guard, _LEAST_GUARD))
        torch._foreach_sqrt_(moments)
        torch._foreach_addcdiv_(weights, means, moments, -group["lr"] / (1 - keep_mean ** group["steps_taken"]))

    def _decayed(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        if not group["weight_decay"] or not weights:
            return gradients
        return list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))

    def _running(self, weight: Tensor, name: str) -> Tensor:
        state = self.state[weight]
        if name not in state:
            state[name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        kept: Tensor = state[name]
        return kept


class DPAdamW(DPAdam):
    """:class:`DPAdam` with decoupled weight decay: the weights shrink by ``lr * weight_decay`` in every step."""

    def _decayed(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        if group["weight_decay"] and weights:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        return gradients
