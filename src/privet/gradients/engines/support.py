"""Conditions for per-example gradients of a model, checked before any training, with the fix for each fault."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import is_parametrized

from privet.errors import UnsupportedModel
from privet.gradients.capture.autograd_graph import nodes_behind
from privet.gradients.sharding.local import is_sharded

# Channels in a group of a norm that replaces a batch norm: fewer remove most differences between examples.
_LEAST_CHANNELS = 4
# Where torch keeps DataParallel, DistributedDataParallel, FSDP, DTensor and pipelines, and what is none of those there.
_SPREADING = ("torch.nn.parallel.", "torch.distributed.")
_CHECKPOINTING = "torch.distributed.algorithms._checkpoint."

# Effects of torch's own batch norms.
_PLAIN_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


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
    is_sharding: bool = False  # whether it is the doing of FSDP2, which sessions know

    def __str__(self) -> str:
        """Name, problem and fix in two sentences."""
        return f"Layer '{self.name}' ({self.kind}) {self.problem}. {self.fix}"


def find_problems(model: nn.Module) -> list[Finding]:
    """List every layer that is known to mix examples, to keep statistics of private data or to share its work.

    Trainable or not makes no difference: a frozen batch norm in training mode leaks through its running averages.
    """
    findings = find_wrappers(model)
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


def find_wrappers(model: nn.Module) -> list[Finding]:
    """List every module and parameter that is spread over processes or devices.

    Told by where their classes come from, whatever they are called: all of torch's ways to spread a model live in two
    packages.
    """
    parts: list[tuple[str, object]] = [*model.named_modules(), *model.named_parameters()]
    return [
        Finding(
            name=name,
            kind=type(part).__name__,
            problem="is spread over several processes or devices, of which this session sees one",
            fix="Pass the plain module, before it is wrapped or sharded (often .module), in a single process.",
            is_sharding=hasattr(type(part), "_get_fsdp_state") or hasattr(part, "_local_tensor"),
        )
        for name, part in parts
        if any(_spreads(kind.__module__) for kind in type(part).__mro__)
    ]


def _spreads(module: str) -> bool:
    return module.startswith(_SPREADING) and not module.startswith(_CHECKPOINTING)


def check_model(model: nn.Module, *, may_shard: bool = False) -> None:
    """Refuse a model with known faults, naming each of them; ``may_shard`` if FSDP2 may have sharded it.

    Raises:
        UnsupportedModel: with one line per fault.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"A model is a torch.nn.Module, got {type(model).__name__}.")
    findings = find_problems(model)
    if may_shard and is_sharded(model):  # how it is sharded is checked where its shards are found
        findings = [finding for finding in findings if not finding.is_sharding]
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


Remake = Callable[[nn.Module, nn.GroupNorm], nn.Module]
"""Takes a layer that is a batch norm and more, and the group norm for its norm; returns the replacement."""


def replace_batchnorm(
    model: nn.Module, *, max_groups: int = 32, remake: Mapping[type[nn.Module], Remake] | None = None
) -> nn.Module:
    """Exchange every batch norm of ``model``, in place, for a group norm of the same width, and return the model.

    The number of groups is the largest divisor of the channel count up to ``max_groups`` that leaves four channels to a
    group, and one where there is none. A one-dimensional batch norm may stand behind a linear layer, where a channel is
    a single number, so all its channels form one group: a group of one number would be constant, whatever the input.
    Scale and shift are carried over; running statistics have no counterpart and are dropped.

    Args:
        model: The model; it is left as it was if a layer is refused.
        max_groups: The most groups a norm gets.
        remake: How to rebuild layers of exactly these types, which do more than normalise. For one that applies its
            ``act`` after the norm: ``{NormAct: lambda old, norm: nn.Sequential(norm, old.act)}``.

    Raises:
        UnsupportedModel: a layer is a batch norm and more (an activation inside, hooks, a parametrised weight), and
            ``remake`` does not say how to rebuild it; or a one-dimensional batch norm has a single channel, and no norm
            within an example replaces it.
    """
    made: dict[int, nn.Module] = {}
    places: list[tuple[str, nn.Module]] = []
    more: list[str] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, _BatchNorm):
            continue
        places.append((name, module))
        if id(module) in made:
            continue
        rebuilt = (remake or {}).get(type(module))
        if rebuilt is None and _does_more(module):
            more.append(f"'{name}' ({type(module).__name__})")
            continue
        norm = _group_norm(module, max_groups)
        made[id(module)] = norm if rebuilt is None else rebuilt(module, norm)
    if more:
        raise UnsupportedModel(
            f"Layers {', '.join(more)} are batch norms that do more than normalise (an activation or dropout inside, "
            "hooks, a parametrised weight), and a bare group norm in their place would lose that. Say how to rebuild "
            "them: replace_batchnorm(model, remake={TheirType: lambda old, norm: nn.Sequential(norm, old.act)})."
        )
    for name, module in places:
        if not name:
            return made[id(module)]
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[id(module)])
    return model


def _does_more(module: _BatchNorm) -> bool:
    """Whether a layer is more than torch's own batch norm: by its type, by its hooks, or by how its weight is made."""
    kind: Any = type(module)
    is_plain = kind.forward in _PLAIN_FORWARDS and kind.__call__ is nn.Module.__call__ and "forward" not in vars(module)
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not is_plain or any(hooks) or is_parametrized(module)


def _group_norm(module: _BatchNorm, max_groups: int) -> nn.GroupNorm:
    norm = nn.GroupNorm(_num_groups(module, max_groups), module.num_features, eps=module.eps, affine=module.affine)
    if module.affine and not is_parametrized(module):
        norm.weight, norm.bias = module.weight, module.bias
    return norm


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


def took_no_part(names: Sequence[str]) -> UnsupportedModel:
    """Return the error that names parameters without a part in the loss, with the line that freezes them."""
    line = f"for name in {list(names)}: model.get_parameter(name).requires_grad_(False)"
    return UnsupportedModel(
        f"Parameters {list(names)} took no part in the loss, so training would only add noise to them. Freeze them "
        f"before the optimizer is made, or remove them: {line}"
    )


def parameters_behind(
    node: Any, parameters: Sequence[nn.Parameter], *, stop: AbstractSet[Any] = frozenset()
) -> set[int]:
    """Return the positions of the parameters that autograd reaches from ``node`` without crossing ``stop``."""
    position = {id(parameter): index for index, parameter in enumerate(parameters)}
    variables = (id(getattr(current, "variable", None)) for current in nodes_behind([node], stop))
    return {position[variable] for variable in variables if variable in position}
