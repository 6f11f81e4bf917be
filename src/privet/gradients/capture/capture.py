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

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from privet.errors import UnsupportedModel
from privet.gradients.capture.autograd_graph import nodes_behind
from privet.gradients.capture.composites import DECOMPOSED, EXPANDING
from privet.gradients.capture.in_place import Function, apart_from_views, with_own_history, writes
from privet.gradients.capture.marks import (
    GENERATIONS,
    MARK,
    PLAIN,
    REACHED,
    SHIFT,
    WRITTEN,
    changed_by,
    is_batch,
    mark_batch,
    mark_reached,
    tensors_in,
)  # fmt: skip
from privet.gradients.capture.norm_statistics import with_statistics
from privet.gradients.capture.rearranging import rearranges
from privet.gradients.capture.recorded import Recording, Region, Source, Use, listen, send_back
from privet.gradients.capture.recurrent_layers import COMPOSITES, PACKING, Composite, kept_inside, remember_order
from privet.gradients.capture.rows import declare_if_public, declare_rows
from privet.gradients.capture.views import undo_of
from privet.isolation.asking import ASKING, LENGTHS
from privet.isolation.backward import wrapped
from privet.isolation.follow import Follower, Programs, version_of
from privet.isolation.lines import user_line
from privet.isolation.place import Cause, Fault, Place, Verdict, single
from privet.isolation.tracer import EARLIER

__all__ = [
    "HALF", "Capture", "Function", "Recording", "Region", "Source", "Use", "is_batch", "mark_batch",
    "send_back", "tensors_in",
]  # fmt: skip

_MADE = "_privet_made"  # set on tensors that were computed from parameters before our eyes, with or without gradients
_NODES: frozenset[Any] = frozenset([Tensor.grad_fn.__get__])  # type: ignore[union-attr]
_EXCHANGES: frozenset[Any] = frozenset([Tensor.data.__set__])  # type: ignore[attr-defined]

HALF = (torch.float16, torch.bfloat16)


class Capture(TorchFunctionMode):
    """The mode that is active while a physical batch is out."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        batch_size: int,
        expansions: dict[int, bool] | None = None,
        *,
        follows_memory: bool = False,
        programs: Programs | None = None,
        may_trace: bool = True,
    ) -> None:
        """Track these parameters; a physical batch holds ``batch_size`` examples.

        ``expansions`` is a memory shared between batches of one model: which expand() of a parameter, counted through a
        forward pass, has been seen not to follow the batch size. ``follows_memory`` makes the recording able to tell
        what the forward pass left behind. ``programs`` are those that were proven to keep examples apart; others are
        proven on the way where ``may_trace`` allows it.
        """
        super().__init__()
        self._programs = programs
        self.slot = 0
        self.stance: Any = None
        self._oldest = next(GENERATIONS) - 1  # the batch was marked just before, or is marked from now on
        self._follows_memory = follows_memory
        self._expansions = {} if expansions is None else expansions
        self._num_expansions = 0
        self._statistics: tuple[Tensor, Tensor] | None = None
        self._behind: Any = None
        self.recording = Recording(batch_size=batch_size)
        for position, parameter in enumerate(parameters):
            source = Source(tensor=parameter, parameters=frozenset([position]), derived=False)
            self.recording.tracked[id(parameter)] = source
        if programs is not None:
            self.recording.follower = Follower(
                programs, batch_size, self._place_of, self._number_of, self.recording.tracked, may_trace=may_trace,
                slot=_free_slot(self),
            )  # fmt: skip

    def _place_of(self, tensor: Tensor) -> Verdict:
        """Return where the examples lie in a tensor of the batch: the data set's items are its rows."""
        mark, size = getattr(tensor, MARK, 0), self.recording.batch_size
        if not mark:
            return Cause(Fault.MIXES, "the program", EARLIER, user_line()) if self._was_written(tensor) else None
        if mark >> SHIFT < self._oldest:
            return Cause(Fault.MIXES, "the program", EARLIER, user_line())
        if size == 1:
            return single(0)
        if not mark & ((1 << SHIFT) - 1):
            return Cause(Fault.NO_RULE, "the program", "a tensor was made where nobody looked", user_line())
        if tensor.dim() == 0 or tensor.shape[0] != size:
            return Cause(Fault.NO_RULE, "the batch", "one of its tensors has not one row per example")
        return Place(0, 1, 1, 0, size)

    def _number_of(self, tensor: Tensor) -> Any:
        """Return what tells a parameter, a tensor of the batch or a constant from others."""
        source = self.recording.tracked.get(id(tensor))
        if source is not None and not source.derived:
            return source.parameters
        mark = getattr(tensor, MARK, 0)
        is_stale = mark >> SHIFT < self._oldest if mark else self._was_written(tensor)
        number = mark & ((1 << SHIFT) - 1)
        # what is written into the batch is written by calls that are compared, or by code that shows none
        written = version_of(tensor) - getattr(tensor, WRITTEN, 0) if number else 0
        return (number, is_stale, tensor.shape, tensor.dtype, written)

    def _was_written(self, tensor: Tensor) -> bool:
        return self._programs is not None and self._programs.was_written(tensor)

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then note it if it consumed a tracked tensor."""
        kwargs = kwargs or {}
        if func is torch.autograd.grad and (kwargs.get("create_graph") or (len(args) > 4 and args[4])):
            raise UnsupportedModel(
                "A gradient is part of the loss (torch.autograd.grad with create_graph=True: a gradient penalty, a "
                "physics-informed loss), and no rule gives per-example gradients of gradients. Leave the term out."
            )
        self._statistics = self._behind = None
        if writes(func) and args and isinstance(args[0], Tensor):
            beside = self._beside(func, args, kwargs)
            if beside is not None:
                with self:
                    return args[0].copy_(beside(args[0].clone(), *args[1:], **kwargs))
            self._behind = args[0].grad_fn
        follower = self.recording.follower
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
        try:
            result = self._run(func, args, kwargs)
        except Exception:
            if follower is not None and any(map(is_batch, tensors_in(args))):
                follower.note_error(func)
            raise
        if func in _EXCHANGES and follower is not None:
            follower.exchange(args[0], args[1])
            setattr(args[0], MARK, getattr(args[1], MARK, 0))
        if isinstance(result, Tensor) or type(result) not in PLAIN or writes(func):
            result = self._note(func, args, kwargs, result)
            if func is Tensor.register_hook:
                self._listen_last(args[0])
            if follower is not None and type(result) is Tensor:
                follower.after((result,))
            elif follower is not None:
                made = tensors_in(args[:1] if result is None and writes(func) else result)
                follower.after([tensor for tensor in made if not isinstance(tensor, nn.Parameter)])
            if self._follows_memory and not torch.compiler.is_compiling():
                self._follow((result, kept_inside(func, result)))
        return result

    def _beside(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Function | None:
        # __setitem__ of a parameter is refused below, in its own words
        tracked = self.recording.tracked
        if func is Tensor.__setitem__ or not is_batch(args[0]) or not torch.is_grad_enabled():
            return None
        adds = any(id(tensor) in tracked for tensor in tensors_in((args[1:], kwargs)))
        return apart_from_views(func, args) if adds else None

    def _listen_last(self, output: Tensor) -> None:
        edge = get_gradient_edge(output)
        for use in self.recording.uses:
            if use.edge == edge and use.handle is not None:
                use.handle.remove()  # a hook may replace the gradient, and the layer gets what it returns
                use.handle = listen(use, output)

    def _follow(self, result: Any) -> None:
        for tensor in tensors_in(result):
            with suppress(NotImplementedError, RuntimeError):  # tensors of tensors have no memory of their own
                storage = tensor.untyped_storage()
                made = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self.recording.made[storage._cdata] = (made, storage.nbytes())

    def _run(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        composite = COMPOSITES.get(func)
        if composite is not None and any(map(is_batch, tensors_in(args))):
            return self._run_composite(composite, func, args)
        decomposed = DECOMPOSED.get(func)
        if decomposed is None:
            normalised = with_statistics(func, args, kwargs)
            if normalised is not None:
                result, self._statistics = normalised
                return result
            return func(*args, **kwargs)
        with self:  # let the mode see the parts of a composite operation
            return decomposed(*args, **kwargs)

    def _run_composite(self, composite: Composite, func: Function, args: tuple[Any, ...]) -> Any:
        noted: set[int] = set()

        def note(part: Function, part_args: tuple[Any, ...], output: Tensor) -> None:
            noted.update(map(id, tensors_in(part_args)))
            self._note_part(part, part_args, output)

        given = tensors_in(args)
        # its loops keep their results for the backward pass, so what a program changes in place must be a copy
        result = tuple(tensor.clone() if tensor._is_view() else tensor for tensor in composite(note, *args))
        tracked = self.recording.tracked
        self.recording.regions.append(
            Region(
                outputs=[tensor.grad_fn for tensor in result],
                inputs=[tensor for tensor in given if id(tensor) not in tracked],
                sources=[tensor for tensor in given if id(tensor) in tracked],
            )
        )
        if any(id(tensor) in self.recording.tracked and id(tensor) not in noted for tensor in tensors_in(args)):
            raise UnsupportedModel(
                f"Operation '{func.__name__}' was given a state that is computed from parameters alone. Make one copy "
                "per example of it, for instance start.expand(-1, batch_size, -1)."
            )
        return result

    def _note(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        tracked = self.recording.tracked
        sources: list[Source] = []
        private = reached = made = False
        given = tensors_in(args)
        if kwargs:
            given += tensors_in(kwargs)
        for tensor in given:
            source = self._source_of(tensor)
            if source is not None:
                sources.append(source)
            elif is_batch(tensor):
                private = True
                # what was detached on the way leads back to no use, whatever else it is joined with
                reached = reached or (tensor.requires_grad and getattr(tensor, REACHED, False))
            else:
                made = made or getattr(tensor, _MADE, False)
        if sources or private:
            self.recording.program.append(func)
        if private:
            if sources and isinstance(result, Tensor) and not writes(func):
                result = with_own_history(result, given)
            changed = changed_by(func, args, kwargs, result)
            if func is Tensor.to and any(result is tensor and not is_batch(tensor) for tensor in given):
                return result  # a constant that had the type of the examples already
            if self._programs is not None and writes(func) and args and not is_batch(args[0]):
                for tensor in tensors_in(args[:1]):
                    self._programs.write(tensor)
            self._mark(changed)
            if reached or sources:
                mark_reached(changed)
            remember_order(func, args, kwargs, result)
            self.recording.packs = self.recording.packs or func is PACKING
            if not self.recording.is_half:
                self.recording.is_half = any(tensor.dtype in HALF for tensor in changed)
            if not self.recording.rearranges:
                self.recording.rearranges = rearranges(func, args, kwargs, self.recording.batch_size, is_batch)
        elif sources or made:
            for tensor in changed_by(func, args, kwargs, result):
                setattr(tensor, _MADE, True)
        if not sources or func in DECOMPOSED or (private and func in COMPOSITES):
            return result
        if func is Tensor.__setitem__ and private and torch.is_grad_enabled():
            raise UnsupportedModel(
                "A parameter is written into a part of another tensor (x[...] = parameter), which cannot be followed. "
                "Build the tensor with torch.cat, torch.stack or torch.where instead."
            )
        # an assignment into a tensor returns nothing: what it changed is its output
        written = args[:1] if result is None and writes(func) else result
        for index, output in enumerate(tensors_in(written)):
            if not output.requires_grad or not torch.is_grad_enabled():
                continue
            if id(output) in tracked:
                if writes(func) and private and tracked[id(output)].derived:
                    raise UnsupportedModel(
                        f"Operation '{func.__name__}' writes examples into a tensor that is computed from parameters "
                        "alone, which cannot be followed. Use the ordinary form of the operation."
                    )
                continue
            if private:
                declare_if_public(self.recording, sources[0].tensor, output)
                self._note_use(func, args, kwargs, sources, output, is_root=not reached, output_index=index)
            elif self._makes_batch_axis(func, args, sources, output):
                self._mark([output])
                declare_rows(self.recording, sources[0].tensor, output)
                mark_reached([output])
                self._note_use(func, args, kwargs, sources, output, is_root=True)
            else:
                parameters = frozenset().union(*(source.parameters for source in sources))
                undo = undo_of(func, sources[0].tensor, output) if len(sources) == 1 else None
                tracked[id(output)] = Source(
                    tensor=output, parameters=parameters, derived=True, made_from=sources[0], undo=undo,
                    version=output._version,
                )  # fmt: skip
        return result

    def _mark(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            setattr(tensor, MARK, self._oldest << SHIFT)

    def _note_use(
        self,
        func: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sources: Sequence[Source],
        output: Tensor,
        *,
        is_root: bool,
        output_index: int = 0,
    ) -> None:
        used = [tensor for tensor in tensors_in((args, kwargs)) if is_batch(tensor)]
        used += [source.tensor for source in sources if source.derived]
        use = Use(
            function=func,
            args=args,
            kwargs=kwargs,
            sources=[source.intact for source in sources],
            output_shape=output.shape,
            output_dtype=output.dtype,
            edge=get_gradient_edge(output),
            is_root=is_root,
            output_index=output_index,
            statistics=self._statistics,
            versions=tuple((tensor, tensor._version) for tensor in used),
            written=output if writes(func) else None,
            behind_written=self._behind,
        )
        if self._follows_memory and not torch.compiler.is_compiling():
            self._follow((args, output))  # inside a composite operation no other call is seen
        use.handle = listen(use, output)
        self.recording.uses.append(use)
        if self.recording.follower is not None:
            self._declare_beside(used, output, self.recording.follower)
            self.recording.follower.use(output)

    def _declare_beside(self, used: Sequence[Tensor], output: Tensor, follower: Follower) -> None:
        """Say where the examples lie in what a parameter made of public numbers beside them.

        Public numbers may belong to anyone. The rules then hold whatever becomes of them to the place that is given
        here, so a wrong one is refused.
        """
        size = self.recording.batch_size
        if size == 1 or follower.tracer is None or follower.verdict(output) is not None:
            return
        alike = [follower.verdict(tensor) for tensor in used if tensor.shape == output.shape]
        place = next((verdict for verdict in alike if isinstance(verdict, Place)), None)
        if place is None and output.dim() and output.shape[0] == size:
            place = Place(0, 1, 1, 0, size)
        follower.declare(output, place)

    def _note_part(self, func: Function, args: tuple[Any, ...], output: Tensor) -> None:
        """Note a part of a composite operation: its tracked arguments' gradients follow from ``output``'s."""
        tracked = self.recording.tracked
        sources = [tracked[id(tensor)] for tensor in tensors_in(args) if id(tensor) in tracked]
        if sources:
            flows = any(self._follows_a_use(tensor) for tensor in tensors_in(args) if id(tensor) not in tracked)
            self._note_use(func, args, {}, sources, output, is_root=not flows)

    def _follows_a_use(self, tensor: Tensor) -> bool:
        """Whether backward from here comes to a noted use; inside a composite operation no mark says so."""
        noted = {use.edge.node for use in self.recording.uses if use.edge is not None}
        return not noted.isdisjoint(nodes_behind([tensor.grad_fn]))

    def _source_of(self, tensor: Tensor) -> Source | None:
        """Return what a tensor is followed as, if it is one or was computed from parameters alone."""
        source = self.recording.tracked.get(id(tensor))
        if source is not None and (not source.derived or source.tensor._version == source.version):
            return source
        # made by a custom function, or written in part: nothing but the graph says from what
        is_made = source is not None or getattr(tensor, _MADE, False)
        if not is_made or is_batch(tensor) or not tensor.requires_grad or tensor.is_leaf:
            return None
        nodes = nodes_behind([tensor.grad_fn])
        if any(use.edge is not None and use.edge.node in nodes for use in self.recording.uses):
            return None
        behind = (self.recording.tracked.get(id(getattr(node, "variable", None))) for node in nodes)
        parameters = frozenset().union(*(found.parameters for found in behind if found is not None))
        if not parameters:
            return None
        source = Source(tensor=tensor, parameters=parameters, derived=True, version=tensor._version)
        self.recording.tracked[id(tensor)] = source
        return source

    def _makes_batch_axis(
        self, func: Function, args: tuple[Any, ...], sources: Sequence[Source], output: Tensor
    ) -> bool:
        # parameter.expand(batch, ...), and a table looked up at constants [batch, time], such as positions or kinds of
        # tokens: the common ways in which a parameter grows an example axis by itself
        is_lookup = func is nn.functional.embedding and isinstance(args[0], Tensor) and args[0].dim() > 1
        if (func not in EXPANDING and not is_lookup) or output.dim() == 0:
            return False
        number, self._num_expansions = self._num_expansions, self._num_expansions + 1
        if is_lookup:
            follows = output.shape[0] == self.recording.batch_size
        else:
            follows = self._follows_batch(sources[0].tensor, output)
        # a length that happens to equal this batch's size has differed from another batch's
        self._expansions[number] = follows and self._expansions.get(number, True)
        return self._expansions[number]

    def _follows_batch(self, source: Tensor, output: Tensor) -> bool:
        size = self.recording.batch_size
        if output.shape[0] == size and (source.dim() < output.dim() or source.shape[0] == 1):
            return True
        # initial states of recurrent layers and attention's extra keys: [rows, 1, width] -> [rows, batch, width]
        return source.dim() == 3 and source.shape == (output.shape[0], 1, *output.shape[2:]) and output.shape[1] == size


def _free_slot(capture: Capture) -> int:
    """Return the first slot that no other capture uses: two sessions may have physical batches open at once."""
    active = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [mode for mode in active if isinstance(mode, Capture)]
    capture.slot = next(slot for slot in itertools.count() if all(mode.slot != slot for mode in modes))
    return capture.slot
