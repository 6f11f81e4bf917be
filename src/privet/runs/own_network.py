"""A user's own network as a recipe names it: its code, its weights, and the parameters that are trained."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from privet.datasets.info import DatasetInfo
from privet.errors import ArgumentError, RecipeError
from privet.models.adapters import add_adapters
from privet.runs.consent import Code
from privet.runs.recipes.network_settings import NetworkSettings
from privet.runs.user_models import build_from
from privet.runs.weight_files import read_weights

_ADAPTER_RANK = 8
_SHOWN = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnNetwork:
    """A user's own network, ready to be trained.

    Attributes:
        model: The network; parameters that stay as they are require no gradient.
        trained: Names of the trained parameters.
        frozen: How many numbers stay as they are.
        fresh: Names of the tensors of a new head, which the file of weights does not give.
        left_out: Names in the file of weights that the new head replaces.
    """

    model: nn.Module
    trained: tuple[str, ...]
    frozen: int
    fresh: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def told(self) -> tuple[str, ...]:
        """Return what is trained and what is new, in sentences."""
        number = sum(value.numel() for value in self.model.parameters() if value.requires_grad)
        found = [f"Trained: {_listed(self.trained)} ({number:,} numbers). Left as they are: {self.frozen:,} numbers."]
        if self.fresh:
            found.append(f"Not taken from the weights, and initialised anew: {_listed(self.fresh)}.")
        if self.left_out:
            found.append(f"In the file of weights and not used: {_listed(self.left_out)}.")
        return tuple(found)


def own_network(settings: NetworkSettings, info: DatasetInfo) -> OwnNetwork:
    """Run the user's code with consent, load the weights, and freeze what is not trained.

    Guarantee: nothing is run but the file whose fingerprint the recipe holds, with the files beside it that it imports
    and that are in the fingerprint, and installed packages; and only if the user of this machine has named it. Weights
    are read as safetensors, which hold no code. No record is read.

    Raises:
        RecipeError: code or weights are not those of the recipe, may not be run, or do not fit each other or the data.
    """
    code = Code.read(settings.reference)
    if code.sha256 != settings.sha256:
        raise _changed(settings.file, code.sha256, settings.sha256)
    code.refuse_strangers()
    model = build_from(code, settings.reference)
    _check_state(model, settings)
    chosen = _CHOICES.get(settings.train, _matching)(model, settings)
    _check_outputs(model, info, settings)
    fresh, left_out = _load(model, settings, chosen) if settings.weights is not None else ((), ())
    if settings.train == _ADAPTERS:
        _add_adapters(model, chosen, settings)
    else:
        for name, value in model.named_parameters():
            value.requires_grad_(name in chosen.trained)
    parameters = dict(model.named_parameters())
    return OwnNetwork(
        model=model,
        trained=tuple(name for name, value in parameters.items() if value.requires_grad),
        frozen=sum(value.numel() for value in parameters.values() if not value.requires_grad),
        fresh=fresh,
        left_out=left_out,
    )


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """The parameters to train, and the parts that the weights may lack or have in another shape.

    Attributes:
        trained: Names of parameters.
        heads: Beginnings of names: of modules, with a dot, or whole names.
    """

    trained: frozenset[str]
    heads: tuple[str, ...]

    def may_be_new(self, name: str) -> bool:
        return any(name == head or name.startswith(head) for head in self.heads if head.endswith(".") or name == head)


def last_part(model: nn.Module) -> str:
    """Return the name of the last module with parameters of its own, in the order in which they are registered.

    Raises:
        RecipeError: there is none, or it is the network itself.
    """
    last = ""
    for name, part in model.named_modules():
        last = name if next(part.parameters(recurse=False), None) is not None else last
    if not last:
        raise RecipeError(
            "The network has no module with parameters that could be its head. Give a pattern of names, as in "
            "--train 'classifier.*', or train all: --train all."
        )
    return last


def _head(model: nn.Module, settings: NetworkSettings) -> _Chosen:
    start = f"{last_part(model)}."
    return _Chosen(
        trained=frozenset(name for name, _ in model.named_parameters() if name.startswith(start)), heads=(start,)
    )


def _all(model: nn.Module, settings: NetworkSettings) -> _Chosen:
    names = frozenset(name for name, _ in model.named_parameters())
    if not names:
        raise RecipeError(f"{settings.title} has no parameters, so that nothing can be trained.")
    return _Chosen(trained=names, heads=_head(model, settings).heads if settings.weights is not None else ())


def _matching(model: nn.Module, settings: NetworkSettings) -> _Chosen:
    pattern, names = settings.train, [name for name, _ in model.named_parameters()]
    found = [name for name in names if name.startswith(f"{pattern}.") or fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise RecipeError(
            f"No parameter of {settings.title} has a name like {pattern!r}, which says what is trained. Give head, "
            f"all, adapters, or a pattern for these names: {_listed(names)}."
        )
    modules = {name.rpartition(".")[0] for name in found}
    return _Chosen(trained=frozenset(found), heads=(*found, *(f"{name}." for name in modules if name)))


_ADAPTERS = "adapters"
_CHOICES: Mapping[str, Callable[[nn.Module, NetworkSettings], _Chosen]] = {
    "head": _head,
    "all": _all,
    _ADAPTERS: _head,
}


def _add_adapters(model: nn.Module, chosen: _Chosen, settings: NetworkSettings) -> None:
    """Add adapters to the linear layers of all but the head, which is trained as it is."""
    name = last_part(model)
    head = model.get_submodule(name)
    model.set_submodule(name, nn.Identity())
    try:
        add_adapters(model, rank=settings.adapter_rank or _ADAPTER_RANK)
    except ArgumentError as error:
        raise RecipeError(f"{settings.title} cannot be given adapters: {error}") from None
    model.set_submodule(name, head.requires_grad_(True))


def _load(model: nn.Module, settings: NetworkSettings, chosen: _Chosen) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copy the weights into the network; return the names that are new, and those of the file that are not used."""
    given, own = _weights(settings), model.state_dict()
    places = {name: (value.data_ptr(), value.shape, value.stride()) for name, value in own.items() if value.numel()}
    present = {places[name] for name in given if name in places}  # a tensor with two names is stored once
    missing = [name for name in own if name not in given and places.get(name) not in present]
    unexpected = sorted(name for name in given if name not in own)
    misshapen = [name for name in own if name in given and given[name].shape != own[name].shape]
    wrong = {
        "missing in the file": [name for name in missing if not chosen.may_be_new(name)],
        "unknown to the network": [name for name in unexpected if not chosen.may_be_new(name)],
        "of another shape": [
            f"{name} ({list(given[name].shape)} in the file, {list(own[name].shape)} in the network)"
            for name in misshapen
            if not chosen.may_be_new(name)
        ],
    }
    told = [f"{what}: {_listed(names)}" for what, names in wrong.items() if names]
    if told:
        raise RecipeError(
            f"{settings.weights} does not hold the weights of {settings.title}; {'; '.join(told)}. A head for other "
            "classes may differ if it is trained and named so: --train head, or --train with a pattern of its names."
        )
    with torch.no_grad():
        for name, value in given.items():
            if name in own and name not in misshapen:
                if value.is_floating_point() != own[name].is_floating_point():
                    raise RecipeError(
                        f"{name} is {value.dtype} in {settings.weights}, {own[name].dtype} in the network."
                    )
                own[name].copy_(value)
    fresh = {*missing, *misshapen}
    return tuple(name for name in own if name in fresh), tuple(unexpected)


def _weights(settings: NetworkSettings) -> dict[str, Tensor]:
    assert settings.weights is not None
    content = read_weights(settings.weights)
    found = hashlib.sha256(content).hexdigest()
    if found != settings.weights_sha256:
        raise _changed(settings.weights, found, settings.weights_sha256 or "")
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RecipeError(
            f"{settings.weights} is not a safetensors file ({reason}). Files of torch.save may hold code and are not "
            "read: write the weights with safetensors.torch.save_model."
        ) from None


def _changed(path: str, found: str, wanted: str) -> RecipeError:
    return RecipeError(
        f"{path} is not the file that the recipe names: its SHA-256 begins with {found[:16]}, and the recipe's with "
        f"{wanted[:16]}. A run belongs to one network. Restore the file, or begin a new run."
    )


def _check_state(model: nn.Module, settings: NetworkSettings) -> None:
    """Refuse a network that stores more than parameters and buffers: a session watches these, and the model is these.

    What else a network stores may be anything that it has seen, and would be released with its weights.
    """
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    known |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    others = sorted(model.state_dict().keys() - known)
    if others:
        raise RecipeError(
            f"{settings.title} stores {_listed(others)}, which are neither parameters nor buffers (get_extra_state, or "
            "a hook of state_dict). A stored model holds nothing else: register what is needed as a buffer."
        )


@torch.no_grad()
def _check_outputs(model: nn.Module, info: DatasetInfo, settings: NetworkSettings) -> None:
    wanted = (2, info.task.num_outputs)
    was_training = model.training
    model.eval()
    try:
        found = model(info.made_up(2))
    except Exception as error:  # an error of the user's code is reported as it is
        raise RecipeError(
            f"{settings.title} fails on records of the shape {info.input_shape}: {type(error).__name__}: {error}."
        ) from error
    finally:
        model.train(was_training)
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != wanted:
        raise RecipeError(
            f"{settings.title} returns {shape} for two records, and the data need {wanted}: one row for a record, and "
            f"{info.task.num_outputs} outputs. Give its last layer {info.task.num_outputs} outputs."
        )


def _listed(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
