"""What a model must be for per-example gradients to exist, checked before any training, with the fix for each fault."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from privet.errors import UnsupportedModel
from privet.gradients.capture import Recording
from privet.mechanism.layout import Layout


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """Silence torch's remarks on operations that vmap runs one by one: slower, equally exact, not the user's doing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        yield


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One reason why a model cannot be trained privately as it is."""

    name: str
    kind: str
    problem: str
    fix: str

    def __str__(self) -> str:
        """Name, problem and fix in two sentences."""
        return f"Layer '{self.name}' ({self.kind}) {self.problem}. {self.fix}"


def find_problems(model: nn.Module) -> list[Finding]:
    """List every layer that is known to mix examples or to keep statistics of private data.

    Trainable or not makes no difference: a frozen batch norm in training mode leaks through its running averages.
    """
    findings: list[Finding] = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            fix = (
                "Replace it, for instance by nn.GroupNorm (privet.replace_batchnorm(model) does), or put it into "
                "eval() mode with statistics from public data."
            )
            if not module.track_running_stats:
                fix = "Replace it, for instance by nn.GroupNorm: privet.replace_batchnorm(model) does."
            problem = "mixes the examples of a batch, so no per-example gradient exists"
            findings.append(Finding(name=name, kind=kind, problem=problem, fix=fix))
        elif isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
            findings.append(
                Finding(
                    name=name,
                    kind=kind,
                    problem="keeps running statistics of private data in its buffers, outside the guarantee",
                    fix="Set track_running_stats=False.",
                )
            )
    return findings


def check_model(model: nn.Module) -> None:
    """Refuse a model with known faults, naming each of them.

    Raises:
        UnsupportedModel: with one line per fault.
    """
    findings = find_problems(model)
    if findings:
        raise UnsupportedModel("\n".join(str(finding) for finding in findings))
    complex_names = [name for name, value in model.named_parameters() if value.requires_grad and value.is_complex()]
    if complex_names:
        raise UnsupportedModel(
            f"Parameters {complex_names} are complex; norms are defined here for real parameters. Store the real and "
            "imaginary parts as two real parameters."
        )


def replace_batchnorm(model: nn.Module, *, max_groups: int = 32) -> nn.Module:
    """Exchange every batch norm of ``model``, in place, for a group norm of the same width, and return the model.

    The largest divisor of the channel count up to ``max_groups`` becomes the number of groups. Scale and shift are
    carried over; running statistics have no counterpart and are dropped.
    """
    for name, module in list(model.named_modules()):
        if not isinstance(module, _BatchNorm):
            continue
        channels = module.num_features
        groups = max(divisor for divisor in range(1, max_groups + 1) if channels % divisor == 0)
        norm = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)
        if module.affine:
            norm.weight, norm.bias = module.weight, module.bias
        if not name:
            return norm
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, norm)
    return model


def parameters_behind(
    node: Any, parameters: Sequence[nn.Parameter], *, stop: AbstractSet[Any] = frozenset()
) -> set[int]:
    """Return the positions of the parameters that autograd reaches from ``node`` without crossing ``stop``."""
    position = {id(parameter): index for index, parameter in enumerate(parameters)}
    seen, queue, found = set(), [node], set()
    while queue:
        current = queue.pop()
        if current is None or current in seen or current in stop:
            continue
        seen.add(current)
        variable = getattr(current, "variable", None)
        if variable is not None and id(variable) in position:
            found.add(position[id(variable)])
        queue.extend(child for child, _ in current.next_functions)
    return found


def check_coverage(losses: Tensor, recording: Recording, parameters: Sequence[nn.Parameter], layout: Layout) -> None:
    """Refuse a program in which a parameter reaches the loss unseen, or never reaches it at all.

    An unseen use would only lose signal (norms and sums come from the same notes, so the bound holds), but the gradient
    would be wrong. A parameter without any use would be moved by noise alone.
    """
    noted = {position for use in recording.uses for source in use.sources for position in source.parameters}
    reached = parameters_behind(losses.grad_fn, parameters)
    unseen = sorted(layout.names[position] for position in reached - noted)
    if unseen:
        raise UnsupportedModel(
            f"Parameters {unseen} reach the loss through an operation that could not be observed (a compiled region or "
            "a custom autograd function). Call the model uncompiled, or freeze these parameters."
        )
    idle = sorted(layout.names[position] for position in range(len(parameters)) if position not in reached)
    if idle:
        raise UnsupportedModel(
            f"Parameters {idle} took no part in the loss, so training would only add noise to them. Freeze them with "
            "requires_grad_(False), or remove them."
        )
