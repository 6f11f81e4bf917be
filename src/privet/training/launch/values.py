"""The values in a call of torch: results, tensors of other devices, and the modes in which the call is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.overrides
from torch import Tensor

from privet.isolation.again import hooks_on_saved_tensors, is_of_checkpoint

Function = Callable[..., Any]

# A tensor of another device is compared by value; larger ones would take too long at every step.
_LARGEST_SNAPSHOT = 4096


class NotRecordable(RuntimeError):
    """A program does something that cannot be done again without its Python code."""


@dataclass(slots=True, eq=False, repr=False)
class Slot:
    """A result of a call.

    Attributes:
        stand_in: The tensor that a dry run hands out in its place: of the same shape, all of it one number in memory.
        form: A tensor without memory that answers questions about strides.
    """

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    stand_in: Tensor | None = None
    form: Tensor | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> Slot:
        """Return the slot of a result."""
        if type(tensor) is not Tensor or tensor.layout is not torch.strided:
            raise NotRecordable(f"a result is a {type(tensor).__name__} of layout {tensor.layout}")
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)

    def make_stand_in(self) -> Tensor:
        """Return the stand-in; it is made at the first call."""
        if self.stand_in is None:
            # it has memory, however little: whoever prints it, in an error message say, must not read beyond
            one = torch.zeros((), dtype=self.dtype, device=self.device)
            self.stand_in = one.expand(self.shape).detach().requires_grad_(self.requires_grad)
            self.form = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
            setattr(self.stand_in, STANDS_FOR, self)
        return self.stand_in


STANDS_FOR = "_privet_stands_for"  # on a stand-in: its slot


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A small tensor of another device than the model's, by value: operations read it when they are launched.

    Attributes:
        value: A copy.
        slot: Which call made it, if one did.
        original: The tensor itself.
    """

    value: Tensor
    slot: Slot | None
    original: Tensor

    @classmethod
    def of(cls, tensor: Tensor, slot: Slot | None) -> Snapshot:
        """Copy a tensor."""
        if tensor.numel() > _LARGEST_SNAPSHOT:
            raise NotRecordable(f"a tensor of {tensor.numel()} numbers is handed over from {tensor.device}")
        return cls(copy_of(tensor), slot, tensor)

    @property
    def present(self) -> Tensor:
        """The tensor that was seen, which goes by its own name; the copy if it has other values by now."""
        return self.original if self.is_equal_to(self.original) else self.value

    def is_equal_to(self, value: object) -> bool:
        """Whether a tensor has the same values now. Whoever watches calls sees nothing of the comparison."""
        mine = self.value
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            if not isinstance(value, Tensor) or value.dtype != mine.dtype or value.device != mine.device:
                return False
            return value.shape == mine.shape and bool(torch.equal(value.detach(), mine))


class Ambient(NamedTuple):
    """The modes of torch that a call depends on.

    Attributes:
        grad: Whether gradients are enabled.
        autocast: The precision of autocast; None if it is off.
        part: The number of the activation checkpoint that the call belongs to; zero for none.
    """

    grad: bool
    autocast: torch.dtype | None
    part: int


class AmbientReader:
    """Reads the modes of torch at each call of one run."""

    def __init__(self, device: torch.device) -> None:
        """Read those for calls on this device."""
        self._kind = device.type
        self._hooks: Any = None
        self._num_parts = 0
        self._part = 0

    def read(self) -> Ambient:
        """Return the present modes."""
        hooks = hooks_on_saved_tensors()
        if hooks is not self._hooks:
            self._enter(hooks)
        is_on = torch.is_autocast_enabled(self._kind)
        dtype = torch.get_autocast_dtype(self._kind) if is_on else None
        return Ambient(torch.is_grad_enabled(), dtype, self._part)

    def _enter(self, hooks: Any) -> None:
        if hooks is not None and (self._hooks is None or hooks[1] is not self._hooks[1]):
            if not is_of_checkpoint(hooks):
                raise NotRecordable("hooks on saved tensors are set")
            self._num_parts += 1
        self._hooks, self._part = hooks, self._num_parts if hooks is not None else 0


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy; whoever watches calls sees nothing of it."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return tensor.detach().clone()


def filled(value: Any, of: Callable[[Any], Any]) -> Any:
    """Return an argument with everything inside its lists, tuples, dictionaries and slices replaced."""
    kind = type(value)
    if kind is list:
        return [filled(item, of) for item in value]
    if kind is dict:
        return {name: filled(item, of) for name, item in value.items()}
    if kind is slice:
        return slice(filled(value.start, of), filled(value.stop, of), filled(value.step, of))
    if isinstance(value, tuple) and kind is not torch.Size:
        items = [filled(item, of) for item in value]
        if kind is tuple:
            return tuple(items)
        return kind(*items) if hasattr(kind, "_fields") else kind(items)  # a named tuple, or torch's own kind of it
    return of(value)


def leaves_in(value: Any) -> Iterator[Any]:
    """Yield everything inside the lists, tuples, dictionaries and slices of a value."""
    if isinstance(value, list | tuple) and type(value) is not torch.Size:
        for item in value:
            yield from leaves_in(item)
    elif type(value) is dict:
        for item in value.values():
            yield from leaves_in(item)
    elif type(value) is slice:
        yield from (value.start, value.stop, value.step)
    else:
        yield value


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A function that returns copies of a result that it had; it goes by the name of the function itself."""

    function: Function
    result: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a copy."""
        with torch._C.DisableTorchFunction():
            return filled(self.result, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)

    def __eq__(self, other: object) -> bool:
        return bool(self.function == (other.function if isinstance(other, Constant) else other))

    def __hash__(self) -> int:
        return hash(self.function)

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", str(self.function))

    def show(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a copy; whoever watches calls sees one of the function."""
        if torch.overrides._get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            return torch.overrides.handle_torch_function(self, (), *args, **kwargs)
        return self()


def check_plain(value: object) -> None:
    """Refuse an argument that cannot be compared with that of a later call."""
    if isinstance(value, torch.Generator):
        raise NotRecordable("a generator of random numbers is an argument")
    if isinstance(value, np.ndarray):
        raise NotRecordable("a numpy array is an argument")


@contextmanager
def applied(ambient: Ambient, device: torch.device) -> Iterator[None]:
    """Set the modes of a call for the length of the block; checkpoints are set by the program itself."""
    before = torch.is_grad_enabled()
    is_on = ambient.autocast is not None
    _enable_gradients(ambient.grad)
    try:
        with ExitStack() as modes:
            if is_on or torch.is_autocast_enabled(device.type):
                modes.enter_context(torch.autocast(device.type, dtype=ambient.autocast, enabled=is_on))
            yield
    finally:
        _enable_gradients(before)


def _enable_gradients(is_enabled: bool) -> None:
    with torch._C.DisableTorchFunction():  # a switch is a call that a watcher would see
        torch._C._set_grad_enabled(is_enabled)
