"""Watches a forward pass: a torch function mode that sees every operation while a physical batch is out.

The model is not wrapped, patched or hooked. Operations that consume a trainable parameter are recorded with their
arguments, and a hook on the output keeps the gradient that later flows back. Functional uses, tied weights and bare
parameters are therefore seen exactly like layers.

Three kinds of tensor are told apart:

* *batch* tensors descend from the examples handed out; their first axis is the example axis;
* *derived* tensors are computed from parameters alone (a transposed or normalised weight, position embeddings): they
  are followed as if they were parameters, and their gradients are pulled back to the parameters at the end;
* everything else is a public constant.

A call of a program that was proven before is recognised by its follower, and most such calls need no second
examination: they are run and marked as they were when the program was new.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _is_any_autocast_enabled as is_autocast_on
from torch.autograd.graph import get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from privet.errors import NoExampleRule, UnsupportedModel
from privet.gradients.capture.composites import ATTENTION, DECOMPOSED, attention
from privet.gradients.capture.in_place import Function, apart_from_views, with_own_history, writes
from privet.gradients.capture.norm_statistics import with_statistics
from privet.gradients.capture.observer import Call, Observer
from privet.gradients.capture.recorded import (
    GENERATIONS,
    MARK,
    PLAIN,
    SHIFT,
    WRITTEN,
    KnownCall,
    KnownUse,
    Recording,
    Region,
    Source,
    Use,
    is_batch,
    tensors_in,
)
from privet.gradients.capture.recurrent_layers import COMPOSITES, Composite, kept_inside
from privet.gradients.capture.rounding import as_seen
from privet.isolation.asking import ASKING, EXCHANGING, LENGTHS
from privet.isolation.backward import wrapped
from privet.isolation.follow import Follower
from privet.isolation.lines import user_line
from privet.isolation.place import Cause, Fault, Place, Verdict, single
from privet.isolation.programs import Programs
from privet.isolation.signs import version_of
from privet.isolation.tracer import EARLIER

_NODES: frozenset[Any] = frozenset([Tensor.grad_fn.__get__])  # type: ignore[union-attr]
_WANTS_GRADIENTS: frozenset[Any] = frozenset([Tensor.requires_grad.__set__])  # type: ignore[attr-defined]
# Calls that are more than an operation with a result: questions, hooks, exchanged memory, gradients.
_UNUSUAL = ASKING | _NODES | EXCHANGING | _WANTS_GRADIENTS | {Tensor.register_hook, torch.autograd.grad}
_NUMBER = (1 << SHIFT) - 1


class Capture(TorchFunctionMode):
    """The mode that is active while a physical batch is out."""

    def __init__(
        self,
        sources: Mapping[int, Source],
        batch_size: int,
        expansions: dict[int, bool] | None = None,
        *,
        follows_memory: bool = False,
        programs: Programs | None = None,
        may_trace: bool = True,
    ) -> None:
        """Track these parameters, by id; a physical batch holds ``batch_size`` examples.

        ``expansions`` is a memory shared between batches of one model: which expand() of a parameter, counted through a
        forward pass, has been seen not to follow the batch size. ``follows_memory`` makes the recording able to say
        how much memory the forward pass left behind. ``programs`` are those that were proven to keep examples apart;
        others are proven on the way where ``may_trace`` allows it.
        """
        super().__init__()
        self._programs = programs
        active = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        # two sessions may have physical batches open at once: each has a slot of its own
        self._slot = _free_slot(active) if active else 0
        self._stance: Any = None
        self._generation = next(GENERATIONS) - 1  # the batch was marked just before, or is marked from now on
        self._mark = self._generation << SHIFT  # of results that descend from the examples
        self._follows_memory = follows_memory
        self.recording = Recording(batch_size=batch_size, tracked=dict(sources))
        self._expansions = {} if expansions is None else expansions
        self._observer: Observer | None = None  # made when a call must be examined
        if programs is not None:
            self.recording.follower = Follower(
                programs, batch_size, self._place_of, self._number_of, self.recording.tracked, may_trace=may_trace,
                slot=self._slot,
            )  # fmt: skip

    def open(self) -> None:
        """Watch from now on. Compiled parts of a model run uncompiled meanwhile: nobody can look into compiled code."""
        if "torch._dynamo" in sys.modules:
            self._stance = torch.compiler.set_stance("force_eager")
        self.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> Recording:
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None
        if self.recording.follower is not None and self.recording.follower.tracer is not None:
            self.recording.follower.leave()
        above: list[Any] = []
        while (top := _pop_mode()) is not self:  # type: ignore[no-untyped-call]
            above.append(top)
        for mode in reversed(above):
            _push_mode(mode)  # type: ignore[no-untyped-call]
        recording: Recording = self.recording
        return recording

    def _place_of(self, tensor: Tensor) -> Verdict:
        """Return where the examples lie in a tensor of the batch: the data set's items are its rows."""
        mark, size = getattr(tensor, MARK, 0), self.recording.batch_size
        if not mark:
            return Cause(Fault.MIXES, "the program", EARLIER, user_line()) if self._was_written(tensor) else None
        if mark >> SHIFT < self._generation:
            return Cause(Fault.MIXES, "the program", EARLIER, user_line())
        if size == 1:
            return single(0)
        if not mark & _NUMBER:
            return Cause(Fault.NO_RULE, "the program", "a tensor was made where nobody looked", user_line())
        if tensor.dim() == 0 or tensor.shape[0] != size:
            return Cause(Fault.NO_RULE, "the batch", "one of its tensors has not one row per example")
        return Place(0, 1, 1, 0, size)

    def _number_of(self, tensor: Tensor) -> Any:
        """Return the signature of a tensor that the program did not make: a parameter, a batch tensor or a constant."""
        source = self.recording.tracked.get(id(tensor))
        if source is not None and not source.derived:
            return source.parameters
        mark = getattr(tensor, MARK, 0)
        if mark:
            number = mark & _NUMBER
            # writes into the batch are made by calls that are compared, or by code that shows none
            written = version_of(tensor) - getattr(tensor, WRITTEN, 0) if number else 0
            return (number, mark >> SHIFT < self._generation, tensor.shape, tensor.dtype, written)
        return (-1, self._was_written(tensor), tensor.shape, tensor.dtype, tensor.requires_grad)

    def _was_written(self, tensor: Tensor) -> bool:
        return self._programs is not None and self._programs.was_written(tensor)

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation; examine it unless it is a call of a known program that was examined before."""
        recording = self.recording
        follower = recording.follower
        if func is ATTENTION and self._has_learned_mask(args, kwargs or {}):
            with self:
                return attention(*args, **(kwargs or {}))
        # a known call is no unusual one
        if follower is None or (func is not follower.expected.known and (func in _UNUSUAL or writes(func))):
            return self._run_unusual(func, args, kwargs or {})
        known: KnownCall | None = follower.before(func, args, kwargs)
        if known is None or self._follows_memory:
            return self._examine(func, args, kwargs or {}, follower)
        use, statistics = known.use, None
        if use is not None and is_autocast_on():
            args = self._as_seen(func, args)
        try:
            if use is not None and use.has_statistics:
                result, statistics = self._run(func, args, kwargs or {})
            else:
                result = func(*args, **kwargs) if kwargs else func(*args)
        except Exception:
            if known.is_private:
                follower.note_error(func)
            raise
        if type(result) is not Tensor:
            return self._observe(Call(func, args, kwargs or {}, statistics), result, follower)
        if use is not None:
            call = Call(func, args, kwargs or {}, statistics)
            if not use.fits((*args, *call.kwargs.values()), result):
                return self._observe(call, result, follower)
            result = self._repeat_use(use, call, result)
        recording.last_known = known
        if known.is_private:
            setattr(result, MARK, self._mark)
            recording.program.append(func)
        follower.after_known(result, is_use=use is not None)
        return result

    def _as_seen(self, func: Function, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a layer with its examples as autocast rounds them."""
        seen = as_seen(func, args)
        if seen is not args and (mark := getattr(args[0], MARK, 0)):
            setattr(seen[0], MARK, mark)
        return seen

    def _has_learned_mask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the mask of an attention is made of parameters alone: only inner operations show its gradient."""
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        is_learned = isinstance(mask, Tensor) and mask.is_floating_point() and id(mask) in self.recording.tracked
        return is_learned and torch.is_grad_enabled() and not (kwargs.get("is_causal") or (len(args) > 5 and args[5]))

    def _repeat_use(self, known: KnownUse, call: Call, output: Tensor) -> Tensor:
        """Record a use of parameters as it was recorded when the program was new."""
        values = (*call.args, *call.kwargs.values())
        if output._is_view():
            output = with_own_history(output, tensors_in(values))
        use = Use(
            function=call.function, args=call.args, kwargs=call.kwargs, statistics=call.statistics,
            sources=[source for _, source in known.sources],
            output_shape=output.shape, output_dtype=output.dtype, edge=get_gradient_edge(output),
            versions=[(values[place], values[place]._version) for place, _ in known.inputs],
        )  # fmt: skip
        self.recording.uses.append(use)
        return output

    def _run_unusual(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that is more than an operation with a result, or that is not followed."""
        if func in _WANTS_GRADIENTS:
            # torch refuses to say so again of a result, and examples may be leaves that want gradients already
            return None if args[1] and args[0].requires_grad else func(*args)
        if func is torch.autograd.grad and (kwargs.get("create_graph") or (len(args) > 4 and args[4])):
            raise UnsupportedModel(
                "A gradient is part of the loss (torch.autograd.grad with create_graph=True: a gradient penalty, a "
                "physics-informed loss), and no rule gives per-example gradients of gradients. Leave the term out."
            )
        node_before = None
        if writes(func) and args and isinstance(args[0], Tensor):
            beside = self._beside(func, args, kwargs)
            if beside is not None:
                with self:
                    return args[0].copy_(beside(args[0].clone(), *args[1:], **kwargs))
            node_before = args[0].grad_fn
        follower = self.recording.follower
        if (func in _NODES or func is Tensor.register_hook) and id(args[0]) in self.recording.tracked:
            self.recording.asks_derived = True
        if follower is not None and func in _NODES and is_batch(args[0]):
            follower.note_node()
        if follower is not None and func in ASKING:
            if func in LENGTHS:
                follower.note_length(args[0])
            follower = None
        if follower is not None and func is Tensor.register_hook and is_batch(args[0]):
            follower.note_hook()
            args = (args[0], wrapped(args[1], args[0], follower), *args[2:])
        if follower is not None:
            follower.before(func, args, kwargs)
        result = self._examine(func, args, kwargs, follower, node_before)
        if func is Tensor.register_hook:
            self._listen_last(args[0])
        return result

    def _examine(
        self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], follower: Follower | None,
        node_before: Any = None,
    ) -> Any:  # fmt: skip
        """Run an operation and examine its effect on examples and parameters."""
        place = -1 if follower is None else follower.place
        if self.recording.tracked.keys() & map(id, args):
            args = self._as_seen(func, args)
        try:
            result, statistics = self._run(func, args, kwargs)
        except Exception:
            if follower is not None and any(map(is_batch, tensors_in(args))):
                follower.note_error(func)
            raise
        if func in EXCHANGING and follower is not None:
            follower.declare(args[0], follower.verdict(args[1]))
            setattr(args[0], MARK, getattr(args[1], MARK, 0))
        if isinstance(result, Tensor) or type(result) not in PLAIN or writes(func):
            call = Call(func, args, kwargs, statistics, node_before)
            result = self._observe(call, result, follower)
            if follower is not None and call.known is not None and func not in _UNUSUAL:
                follower.note(place, call.known)
        return result

    def _observe(self, call: Call, result: Any, follower: Follower | None) -> Any:
        """Record an operation that was just run, and number its results."""
        num_uses = len(self.recording.uses)
        result = self._the_observer().observe(call, result)
        if follower is not None and type(result) is Tensor:
            follower.after((result,))
        elif follower is not None:
            made = tensors_in(call.args[:1] if result is None and writes(call.function) else result)
            follower.after([tensor for tensor in made if not isinstance(tensor, nn.Parameter)])
        if self._follows_memory and not torch.compiler.is_compiling():
            for use in self.recording.uses[num_uses:]:
                self._follow_memory(use.args)
            self._follow_memory((result, kept_inside(call.function, result)))
        return result

    def _the_observer(self) -> Observer:
        if self._observer is None:
            self._observer = Observer(
                self.recording, mark=self._mark, programs=self._programs, expansions=self._expansions
            )
        return self._observer

    def _beside(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Function | None:
        # __setitem__ of a parameter is refused by the observer, in its own words
        tracked = self.recording.tracked
        if func is Tensor.__setitem__ or not is_batch(args[0]) or not torch.is_grad_enabled():
            return None
        adds = any(id(tensor) in tracked for tensor in tensors_in((args[1:], kwargs)))
        try:
            return apart_from_views(func, args) if adds else None
        except NoExampleRule as error:
            self.recording.hidden = error
            return None

    def _listen_last(self, output: Tensor) -> None:
        """Hear of an output's gradient after the hook that was just put on it: the layer gets what that returns."""
        edge = get_gradient_edge(output)
        for use in self.recording.uses:
            if use.edge == edge and use.handle is not None:
                use.handle.remove()
                use.listen(output)

    def _follow_memory(self, result: Any) -> None:
        for tensor in tensors_in(result):
            with suppress(NotImplementedError, RuntimeError):  # tensors of tensors have no memory of their own
                storage = tensor.untyped_storage()
                made = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self.recording.made[storage._cdata] = (made, storage.nbytes())

    def _run(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the operation's result, and a normalisation's statistics where it hands them out."""
        composite = COMPOSITES.get(func)
        if composite is not None and any(map(is_batch, tensors_in(args))):
            return self._run_composite(composite, func, args), None
        decomposed = DECOMPOSED.get(func)
        if decomposed is None:
            return with_statistics(func, args, kwargs) or (func(*args, **kwargs), None)
        with self:  # let the mode see the parts of a composite operation
            return decomposed(*args, **kwargs), None

    def _run_composite(self, composite: Composite, func: Function, args: tuple[Any, ...]) -> Any:
        noted: set[int] = set()

        def note(part: Function, part_args: tuple[Any, ...], output: Tensor) -> None:
            noted.update(map(id, tensors_in(part_args)))
            self._the_observer().observe_part(part, part_args, output)
            if self._follows_memory and not torch.compiler.is_compiling():
                self._follow_memory((part_args, output))  # no other call of its inside is seen

        given = tensors_in(args)
        # its loops keep their results for the backward pass, so a tensor that a program changes in place must be a copy
        try:
            result = tuple(tensor.clone() if tensor._is_view() else tensor for tensor in composite(note, *args))
        except NoExampleRule as error:
            self.recording.hidden = error
            return func(*args)
        tracked = self.recording.tracked
        self.recording.regions.append(
            Region(
                outputs=[tensor.grad_fn for tensor in result],
                inputs=[tensor for tensor in given if id(tensor) not in tracked],
                sources=[tensor for tensor in given if id(tensor) in tracked],
            )
        )
        if any(id(tensor) in tracked and id(tensor) not in noted for tensor in given):
            self.recording.hidden = NoExampleRule(
                f"Operation '{func.__name__}' was given a state that is computed from parameters alone. Make one copy "
                "per example of it, for instance start.expand(-1, batch_size, -1)."
            )
        return result


def _free_slot(active: Sequence[TorchFunctionMode]) -> int:
    """Return the first slot that no other capture uses."""
    taken = {mode._slot for mode in active if isinstance(mode, Capture)}
    return next(slot for slot in itertools.count() if slot not in taken)
