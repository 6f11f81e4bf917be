"""The parameters that a run trains, and the optimizers that may train them."""

from __future__ import annotations

from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from privet.errors import PlanError


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the named parameters that training would change, in a fixed order."""
    return [(name, value) for name, value in model.named_parameters() if value.requires_grad]


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that covers more or fewer parameters than the model trains, or that re-evaluates losses.

    Raises:
        PlanError: naming the parameters that are missing, foreign or frozen.
    """
    if isinstance(optimizer, LBFGS):
        raise PlanError(
            "LBFGS evaluates the loss several times per step, outside the guarantee. Use a first-order optimizer."
        )
    if isinstance(optimizer, SparseAdam):
        raise PlanError("SparseAdam takes sparse gradients, and noise is added to every coordinate. Use Adam.")
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise PlanError(
            f"{type(optimizer).__name__} is a wrapper of another optimizer, which could step without it. Pass the "
            "plain torch optimizer, before Accelerate or another library prepares it."
        )
    owned = {id(value) for group in optimizer.param_groups for value in group["params"]}
    named = {id(value): name for name, value in model.named_parameters()}
    missing = [name for name, value in trainable_parameters(model) if id(value) not in owned]
    foreign = sum(1 for identity in owned if identity not in named)
    if missing:
        raise PlanError(
            f"The optimizer does not hold the trainable parameters {missing}. Add them to it, or freeze them with "
            "requires_grad_(False)."
        )
    if foreign:
        raise PlanError(
            f"The optimizer holds {foreign} parameter(s) that are not part of the model. Every parameter it moves must "
            "go through the private step: make one session per model and optimizer."
        )
