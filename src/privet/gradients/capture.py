"""Watches a forward pass and notes every operation that consumes a trainable parameter.

The model is not wrapped, patched or hooked. While a physical batch is out, a torch function mode sees every operation;
those that touch a parameter are noted with their arguments, and a hook on the output keeps the gradient that later
flows back. Functional uses, tied weights and bare parameters are therefore seen exactly like layers.

Three kinds of tensor are told apart:

* *batch* tensors descend from the examples handed out; their first axis is the example axis;
* *derived* tensors are computed from parameters alone (a transposed or normalised weight, position embeddings): they
  are followed as if they were parameters, and their gradients are pulled back to the parameters at the end;
* everything else is a public constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

_MARK = "_privet_batch"

Function = Callable[..., Any]


def mark_batch(tensors: Iterable[Tensor]) -> None:
    """Mark tensors as descending from the private examples."""
    for tensor in tensors:
        setattr(tensor, _MARK, True)


def is_batch(value: object) -> bool:
    """Tell whether a value descends from the private examples."""
    return getattr(value, _MARK, False) is True


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in an argument, looking into lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A tracked tensor: a parameter, or something computed from parameters alone."""

    tensor: Tensor
    parameters: frozenset[int]  # positions in the layout
    derived: bool


@dataclass(kw_only=True, eq=False)
class Use:
    """One operation that consumed tracked tensors together with private examples."""

    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sources: Sequence[Source]
    output_shape: torch.Size
    edge: GradientEdge
    is_root: bool  # nothing upstream of it needs gradients: backward may stop here
    out_grad: Tensor | None = None
    receive: Callable[[Use], None] | None = None
    versions: tuple[tuple[Tensor, int], ...] = ()

    @property
    def name(self) -> str:
        """The operation's name, for messages."""
        return getattr(self.function, "__name__", str(self.function))


@dataclass(kw_only=True)
class Recording:
    """What one forward pass did with the parameters."""

    batch_size: int
    uses: list[Use] = field(default_factory=list)
    tracked: dict[int, Source] = field(default_factory=dict)
    creates_batch_axis: bool = False  # an expand() of a parameter was read as one copy per example


class Capture(TorchFunctionMode):
    """The mode that is active while a physical batch is out."""

    def __init__(self, parameters: Sequence[nn.Parameter], batch_size: int) -> None:
        """Track these parameters; a physical batch holds ``batch_size`` examples."""
        super().__init__()
        self.recording = Recording(batch_size=batch_size)
        for position, parameter in enumerate(parameters):
            source = Source(tensor=parameter, parameters=frozenset([position]), derived=False)
            self.recording.tracked[id(parameter)] = source

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then note it if it consumed a tracked tensor."""
        kwargs = kwargs or {}
        result = self._run(func, args, kwargs)
        if isinstance(result, Tensor | tuple | list) or _writes(func):
            self._note(func, args, kwargs, result)
        return result

    def _run(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        decomposed = _DECOMPOSED.get(func)
        if decomposed is None:
            return func(*args, **kwargs)
        with self:  # let the mode see the parts of a composite operation
            return decomposed(*args, **kwargs)

    def _note(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        tracked = self.recording.tracked
        sources: list[Source] = []
        private = needs_grad = False
        for tensor in tensors_in((args, kwargs)):
            source = tracked.get(id(tensor))
            if source is not None:
                sources.append(source)
            elif is_batch(tensor):
                private = True
                needs_grad = needs_grad or tensor.requires_grad
        if private:
            mark_batch(tensors_in(result))
            if _writes(func):
                mark_batch(tensors_in(args[:1]))
                mark_batch(tensors_in(kwargs.get("out")))
        if not sources or func in _DECOMPOSED:
            return
        for output in tensors_in(result):
            if not output.requires_grad or id(output) in tracked:
                continue
            if private:
                self._note_use(func, args, kwargs, sources, output, is_root=not needs_grad)
            elif self._makes_batch_axis(func, sources, output):
                self.recording.creates_batch_axis = True
                mark_batch([output])
                self._note_use(func, args, kwargs, sources, output, is_root=True)
            else:
                parameters = frozenset().union(*(source.parameters for source in sources))
                tracked[id(output)] = Source(tensor=output, parameters=parameters, derived=True)

    def _note_use(
        self,
        func: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sources: Sequence[Source],
        output: Tensor,
        *,
        is_root: bool,
    ) -> None:
        use = Use(
            function=func,
            args=args,
            kwargs=kwargs,
            sources=sources,
            output_shape=output.shape,
            edge=get_gradient_edge(output),
            is_root=is_root,
            versions=tuple((tensor, tensor._version) for tensor in tensors_in((args, kwargs)) if is_batch(tensor)),
        )
        output.register_hook(lambda gradient: _keep(use, gradient))  # type: ignore[no-untyped-call]
        self.recording.uses.append(use)

    def _makes_batch_axis(self, func: Function, sources: Sequence[Source], output: Tensor) -> bool:
        # parameter.expand(batch, ...): the one common way in which a parameter grows an example axis by itself
        if func not in _EXPANDING or output.dim() == 0 or output.shape[0] != self.recording.batch_size:
            return False
        source = sources[0].tensor
        return source.dim() < output.dim() or source.shape[0] == 1


def _keep(use: Use, gradient: Tensor) -> None:
    use.out_grad = gradient
    if use.receive is not None:
        use.receive(use)


def _writes(func: Function) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


def _decompose(function: Function) -> Function:
    """Return a copy of a composite Python function that no longer hands itself to the mode as a whole."""
    assert isinstance(function, FunctionType), "only Python functions hand themselves over as a whole"
    names = {**function.__globals__, "has_torch_function": lambda *_: False}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_DECOMPOSED: dict[Function, Function] = {
    nn.functional.multi_head_attention_forward: _decompose(nn.functional.multi_head_attention_forward),
}

_EXPANDING: frozenset[Function] = frozenset(
    [
        Tensor.expand, Tensor.expand_as, Tensor.repeat, Tensor.tile,
        torch.broadcast_to, Tensor.broadcast_to, torch.tile,
    ]
)  # fmt: skip
