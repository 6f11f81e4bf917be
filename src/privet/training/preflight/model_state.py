"""The state of a model between two forward passes: buffers, numbers and containers of its modules."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from privet.errors import UnsupportedModel
from privet.gradients.sharding.local import local_part

_OWN_TO_TORCH = frozenset(vars(nn.Module()))


class ModelState:
    """A copy of the state that a forward pass must not change, for comparison and restoration."""

    def __init__(self, model: nn.Module, settle: Callable[[], None] = lambda: None) -> None:
        """Copy the buffers and weights of the model, and record the numbers and containers of its modules.

        ``settle`` makes a sharded model hold its shards alone.
        """
        self._model, self._settle = model, settle
        self._kinds = {name: type(module).__name__ for name, module in model.named_modules()}
        self._tensors = {name: value.detach().clone() for name, value in self._now()}
        self._notes = _notes(model)

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        self._settle()
        yield from ((name, local_part(value)) for name, value in self._model.named_buffers())
        yield from ((name, local_part(value)) for name, value in self._model.named_parameters())

    def check_unchanged(self) -> None:
        """Refuse a model that a forward pass has changed.

        Raises:
            UnsupportedModel: the message names the module and the changed attribute.
        """
        if self._changed():
            raise UnsupportedModel(
                f"{self.describe_changes()} was changed by a forward pass, which carries private data past the noise "
                "or makes later steps differ from those that were tried. Put the layers that own it into eval() mode, "
                "or replace them."
            )

    def accept_flags(self) -> None:
        """Take flags as they are now: a first forward pass may set some, as libraries do that put in hooks when needed.

        Later ones must leave them as they are.
        """
        for name, value in _notes(self._model).items():
            if isinstance(value, bool) and isinstance(self._notes.get(name, False), bool):
                self._notes[name] = value

    def describe_changes(self) -> str:
        """Return the names of the changed values; the program as a whole if no visible value changed."""
        return ", ".join(self._changed()) or "The model or its loss function"

    def _changed(self) -> list[str]:
        now, notes = dict(self._now()), _notes(self._model)
        parameters = {name for name, _ in self._model.named_parameters()}
        tensors = [
            self._described(name, "parameter" if name in parameters else "buffer")
            for name in sorted(now.keys() | self._tensors)
            if not _same(now.get(name), self._tensors.get(name))
        ]
        numbers = sorted(name for name in notes.keys() | self._notes if notes.get(name) != self._notes.get(name))
        return tensors + [self._described(name, "attribute") for name in numbers]

    def _described(self, name: str, what: str) -> str:
        module, _, key = name.rpartition(".")
        return f"The {what} '{key}' of module '{module}' ({self._kinds.get(module, 'unknown')})"

    def restore(self) -> None:
        """Restore buffers and weights that a forward pass changed."""
        for name, value in self._now():
            before = self._tensors.get(name)
            if before is not None and before.shape == value.shape and not _same(value, before):
                with torch.no_grad():
                    value.copy_(before)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return one is other
    # NaN is not equal to itself, so it is replaced; most tensors have none
    return torch.equal(one, other) or torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _notes(model: nn.Module) -> dict[str, Any]:
    """Return numbers by value and containers by length. A change of other tensors shows in the losses only."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in _OWN_TO_TORCH:
                continue
            if isinstance(value, int | float | str):
                found[f"{name}.{key}"] = value
            elif isinstance(value, list | tuple | set | dict | deque):
                found[f"{name}.{key}"] = len(value)
    return found
