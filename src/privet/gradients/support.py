"""What a model must be for per-example gradients to exist, checked before any training, with the fix for each fault."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from privet.errors import UnsupportedModel
from privet.gradients.graph import nodes_behind

# Channels in a group of a norm that replaces a batch norm: fewer leave little of what tells examples apart.
_LEAST_CHANNELS = 4


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
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag) and (module.max_norm or module.scale_grad_by_freq):
            findings.append(
                Finding(
                    name=name,
                    kind=kind,
                    problem="rescales rows by what the whole batch looks up, so one example changes another's gradient",
                    fix="Set max_norm=None and scale_grad_by_freq=False.",
                )
            )
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            findings.append(
                Finding(
                    name=name,
                    kind=kind,
                    problem="makes sparse gradients, and noise is added to every row of a table anyway",
                    fix="Set sparse=False.",
                )
            )
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
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"A model is a torch.nn.Module, got {type(model).__name__}.")
    findings = find_problems(model)
    if findings:
        raise UnsupportedModel("\n".join(str(finding) for finding in findings))
    shapeless = [name for name, value in model.named_parameters() if isinstance(value, UninitializedParameter)]
    if shapeless:
        raise UnsupportedModel(
            f"Parameters {shapeless} have no shape yet, because their layers are lazy. Run the model once on a made-up "
            "batch first."
        )
    complex_names = [name for name, value in model.named_parameters() if value.requires_grad and value.is_complex()]
    if complex_names:
        raise UnsupportedModel(
            f"Parameters {complex_names} are complex; norms are defined here for real parameters. Store the real and "
            "imaginary parts as two real parameters."
        )
    kinds = {value.dtype for value in model.parameters() if value.requires_grad}
    if torch.float64 in kinds and len(kinds) > 1:
        raise UnsupportedModel(
            f"Trainable parameters are of different precision ({', '.join(sorted(map(str, kinds)))}), and sums are "
            "formed in one. Convert the model, for instance by model.float()."
        )


def replace_batchnorm(model: nn.Module, *, max_groups: int = 32) -> nn.Module:
    """Exchange every batch norm of ``model``, in place, for a group norm of the same width, and return the model.

    The number of groups is the largest divisor of the channel count up to ``max_groups`` that leaves four channels to a
    group, and one where there is none. A one-dimensional batch norm may stand behind a linear layer, where a channel is
    a single number, so all its channels form one group: a group of one number would be constant, whatever the input.
    Scale and shift are carried over; running statistics have no counterpart and are dropped.

    Raises:
        UnsupportedModel: a one-dimensional batch norm has a single channel, and no norm within an example replaces it.
    """
    for name, module in list(model.named_modules()):
        if not isinstance(module, _BatchNorm):
            continue
        channels = module.num_features
        groups = _num_groups(module, max_groups)
        norm = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)
        if module.affine:
            norm.weight, norm.bias = module.weight, module.bias
        if not name:
            return norm
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, norm)
    return model


def _num_groups(module: _BatchNorm, max_groups: int) -> int:
    channels = module.num_features
    if isinstance(module, nn.BatchNorm1d):
        if channels == 1:
            raise UnsupportedModel(
                "A batch norm of one channel and one dimension has no replacement: normalised within its example, a "
                "single number is always zero. Remove the layer."
            )
        return 1
    most = min(max_groups, channels // _LEAST_CHANNELS)
    return max((divisor for divisor in range(1, most + 1) if channels % divisor == 0), default=1)


def parameters_behind(
    node: Any, parameters: Sequence[nn.Parameter], *, stop: AbstractSet[Any] = frozenset()
) -> set[int]:
    """Return the positions of the parameters that autograd reaches from ``node`` without crossing ``stop``."""
    position = {id(parameter): index for index, parameter in enumerate(parameters)}
    variables = (id(getattr(current, "variable", None)) for current in nodes_behind([node], stop))
    return {position[variable] for variable in variables if variable in position}
