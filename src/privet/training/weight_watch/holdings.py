"""The tensors that a model and its optimizer hold: their places in memory and torch's counters of changes in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# Attributes of optimizers that hold settings, or that are read by themselves.
_PUBLIC = ("state", "param_groups", "defaults")

Place: TypeAlias = tuple[Any, ...]
"""Identity, counter of changes, address and layout of one tensor."""


class Holdings:
    """The tensors of a model and its optimizer; the modules are walked again only when one holds another object.

    Attributes:
        parameters: The parameters of the model, by name.
        tensors: The parameters and buffers of the model, by name.
        everything: The same and the state of the optimizer, as ``places`` found them last.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._owners: dict[int, str] = {}
        self._walk()
        self.everything: dict[str, Tensor] = {}

    def _walk(self) -> None:
        modules = list(self._model.modules())
        # scripted modules keep theirs in something else than dictionaries
        self._held = [held.values for m in modules for held in (m._parameters, m._buffers, m._modules)]
        self._ids = self._held_ids()
        self.parameters = dict(self._model.named_parameters())
        # a parameter that was replaced keeps its name: the optimizer still holds it
        self._owners |= {id(value): name for name, value in self.parameters.items()}
        # one tensor may be held under several names, and one of them may be given another
        self.tensors: dict[str, Tensor] = dict(self._model.named_buffers()) | self.parameters

    def _held_ids(self) -> list[int]:
        return list(map(id, chain.from_iterable([values() for values in self._held])))

    def places(self) -> dict[str, Place]:
        """Return the place and the counter of every tensor by name, the optimizer's state included."""
        if self._held_ids() != self._ids:
            self._walk()
        self.everything = self.tensors | _of_optimizer(self._optimizer, self._owners)
        found: dict[str, Place] = {}
        with torch._C.DisableTorchFunction():
            for name, tensor in self.everything.items():
                try:
                    version, address = tensor._version, tensor.data_ptr()
                except RuntimeError:  # made in inference mode, or a wrapper without memory of its own
                    version = address = 0
                facts = (id(tensor), version, address, tensor.dtype, tensor.device, tensor.is_neg(), tensor.is_conj())
                is_strided = tensor.layout is torch.strided
                found[name] = (*facts, tensor.shape, tensor.stride()) if is_strided else facts
        return found

    def counters(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the identities of the objects that the modules hold, and the counter and address of each tensor."""
        found = []
        with torch._C.DisableTorchFunction():
            for tensor in self.tensors.values():
                try:
                    found.append((tensor._version, tensor.data_ptr()))
                except RuntimeError:  # as above
                    found.append((0, 0))
        return self._held_ids(), found


def _of_optimizer(optimizer: Optimizer, owners: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the tensors that an optimizer keeps from step to step; its settings are public and left out."""
    left: list[tuple[str, Any, int]] = []
    for owner, kept in optimizer.state.items():
        name = owners.get(id(owner), f"no parameter of the model {len(left)}")
        left.append((f"the optimizer's state of {name}", kept, 3))
    for key, value in vars(optimizer).items():
        if key not in _PUBLIC:
            left.append((f"the optimizer: {key}", value, 3))
    found: dict[str, Tensor] = {}
    for name, value, depth in left:  # grows while it is walked through
        if isinstance(value, Tensor):
            found[name] = value
        elif depth and isinstance(value, dict):
            for place, (key, item) in enumerate(value.items()):
                left.append((f"{name}: {key if isinstance(key, str) else f'item {place}'}", item, depth - 1))
        elif depth and isinstance(value, list | tuple):
            for place, item in enumerate(value):
                left.append((f"{name} {place}", item, depth - 1))
        elif depth and isinstance(value, Optimizer):
            for place, kept in enumerate(value.state.values()):
                left.append((f"{name}: state {place}", kept, depth - 1))
            left.append((name, {key: item for key, item in vars(value).items() if key not in _PUBLIC}, depth))
    return found


def changes_between(before: Mapping[str, Place], now: Mapping[str, Place]) -> dict[str, str]:
    """Name the tensors that were replaced, moved or counted as changed, each with the kind of change."""
    return {
        name: _how(before.get(name), now.get(name)) for name in now.keys() | before if now.get(name) != before.get(name)
    }


def _how(before: Place | None, now: Place | None) -> str:
    if before is None or now is None or before[0] != now[0]:
        return "the object"
    return "its place" if before[2:] != now[2:] else "its version"


def likely_cause(changes: Mapping[str, str], parameters: Mapping[str, nn.Parameter]) -> str:
    """Name the usual cause of such changes."""
    kinds, trained = set(changes.values()), {name for name, p in parameters.items() if p.requires_grad}
    if "the object" in kinds:
        return (
            "Tensors were added, removed or replaced: likely by assigning a parameter, parametrizing or merging a "
            "layer, or loading the optimizer's state."
        )
    if "its place" in kinds:
        return "Tensors lie elsewhere or otherwise: likely p.data = ..., set_(), model.to() or model.half()."
    if "its bits" in kinds:
        return (
            "It was written past torch's counters: likely through .data, a numpy array that shares its memory, or a "
            "library of its own."
        )
    if trained <= changes.keys():
        return (
            "Every trained parameter changed: likely the step of another optimizer (trainers such as those of "
            "transformers and Lightning make one of their own), load_state_dict(), or averages that were swapped in."
        )
    if not changes.keys() & parameters.keys():
        return "Only buffers or optimizer state changed: likely a forward pass outside the step, or load_state_dict()."
    return "Likely an assignment in place, another optimizer's step, or load_state_dict()."


def listed(names: Iterable[str]) -> str:
    """Return the first names of a list, for an error message."""
    names = sorted(names)
    shown = ", ".join(repr(name) for name in names[:8])
    return f"[{shown}]" if len(names) <= 8 else f"[{shown} and {len(names) - 8} more]"
