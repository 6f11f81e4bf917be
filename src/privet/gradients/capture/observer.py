"""Examines operations on examples and parameters, and records every use of a parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from privet.errors import NoExampleRule
from privet.gradients.capture.autograd_graph import nodes_behind
from privet.gradients.capture.composites import DECOMPOSED, EXPANDING
from privet.gradients.capture.in_place import Function, with_own_history, writes
from privet.gradients.capture.rearranging import rearranges
from privet.gradients.capture.recorded import (
    MARK,
    KnownCall,
    KnownUse,
    Recording,
    Source,
    Use,
    changed_by,
    is_batch,
    tensors_in,
)
from privet.gradients.capture.recurrent_layers import COMPOSITES, ORDERING, PACKING, remember_order
from privet.gradients.capture.views import Undo, looked_up, undo_of
from privet.isolation.follow import Follower
from privet.isolation.place import Place, single
from privet.isolation.programs import Programs

_DERIVED = "_privet_derived"  # set on tensors that were seen to be computed from parameters, with or without gradients
# Operations whose results must be examined every time.
_SPECIAL = DECOMPOSED.keys() | COMPOSITES.keys() | EXPANDING | ORDERING | {Tensor.to}


def rounding_of(tensors: Iterable[Tensor]) -> float:
    """Return the unit of the coarsest precision among tensors; integers have none."""
    kinds = {tensor.dtype for tensor in tensors}
    return max((torch.finfo(kind).eps for kind in kinds if kind.is_floating_point or kind.is_complex), default=0.0)


@dataclass(slots=True)
class Call:
    """An operation that was run, with facts about it besides its result.

    Attributes:
        function: The operation.
        args: Its arguments.
        kwargs: Its named arguments.
        statistics: Mean and inverse deviation, where a normalisation hands them out.
        node_before: The node of the first argument before it was changed in place, where it was.
        known: The findings for the next run of the same call in the same program; set when observed.
    """

    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    statistics: tuple[Tensor, Tensor] | None = None
    node_before: Any = None
    known: KnownCall | None = None


class Observer:
    """Observes the operations of one forward pass."""

    def __init__(
        self, recording: Recording, *, mark: int, programs: Programs | None, expansions: dict[int, bool]
    ) -> None:
        """Record into ``recording``; results that descend from the examples get this ``mark``."""
        self._recording, self._mark_value, self._programs = recording, mark, programs
        self._expansions, self._num_expansions = expansions, 0

    def observe(self, call: Call, result: Any) -> Any:
        """Record a call; return its result, with a history of its own where a change in place needs one."""
        func, args, kwargs = call.function, call.args, call.kwargs
        self._catch_up()
        sources: list[Source] = []
        private = derived = hidden = False
        given = tensors_in(args)
        if kwargs:
            given += tensors_in(kwargs)
        for tensor in given:
            source = self._source_of(tensor)
            if source is not None:
                sources.append(source)
            elif is_batch(tensor):
                private = True
            else:
                derived = derived or getattr(tensor, _DERIVED, False)
                hidden = hidden or tensor.requires_grad
        if sources or private:
            self._recording.program.append(func)
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
            remember_order(func, args, kwargs, result)
            self._note_traits(func, args, kwargs, changed)
        elif sources or derived:
            for tensor in changed_by(func, args, kwargs, result):
                setattr(tensor, _DERIVED, True)
        num_uses = len(self._recording.uses)
        if sources and func not in DECOMPOSED and not (private and func in COMPOSITES):
            self._record_sources(call, sources, result, private=private)
        is_unusual = derived or hidden or writes(func) or func in _SPECIAL
        if type(result) is Tensor and not is_unusual:
            self._note_known(call, sources, self._recording.uses[num_uses:], result, private=private)
        return result

    def _note_known(
        self, call: Call, sources: Sequence[Source], uses: Sequence[Use], result: Tensor, *, private: bool
    ) -> None:
        """Keep the findings on a plain call for its next run: one new tensor, and one use if it has parameters."""
        recording, use = self._recording, None
        if sources:
            values = (*call.args, *call.kwargs.values())
            places = {id(value): place for place, value in enumerate(values) if isinstance(value, Tensor)}
            is_plain = len(uses) == 1 and not any(source.derived for source in sources)
            if not private or not is_plain or len(places) != len(tensors_in(values)):
                return
            given = [(place, value) for place, value in enumerate(values) if is_batch(value)]
            inputs = [(place, (value.shape, value.dtype, value.device)) for place, value in given]
            use = KnownUse(
                sources=[(places[id(source.tensor)], source) for source in sources],
                inputs=inputs,
                output=(result.shape, result.dtype, result.device),
                has_statistics=call.statistics is not None,
            )
        elif call.statistics is not None:
            return
        call.known = KnownCall(
            is_private=private, use=use, rounding=recording.rounding, rearranges=recording.rearranges
        )

    def _catch_up(self) -> None:
        """Take over the findings on calls that were not observed."""
        known, self._recording.last_known = self._recording.last_known, None
        if known is not None:
            self._recording.rounding = max(self._recording.rounding, known.rounding)
            self._recording.rearranges |= known.rearranges

    def _note_traits(
        self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], changed: Iterable[Tensor]
    ) -> None:
        recording = self._recording
        recording.packs = recording.packs or func is PACKING
        recording.rounding = max(recording.rounding, rounding_of(changed))
        if not recording.rearranges:
            recording.rearranges = rearranges(func, args, kwargs, recording.batch_size, is_batch)

    def _record_sources(self, call: Call, sources: Sequence[Source], result: Any, *, private: bool) -> None:
        """Record the uses that a call makes of parameters, or the tensors that it computes from them alone."""
        func, args, tracked = call.function, call.args, self._recording.tracked
        if func is Tensor.__setitem__ and private and torch.is_grad_enabled():
            self._recording.hidden = NoExampleRule(
                "A parameter is written into a part of another tensor (x[...] = parameter), which cannot be followed. "
                "Build the tensor with torch.cat, torch.stack or torch.where instead."
            )
            return
        # an assignment into a tensor returns nothing: the changed tensor is its output
        written = args[:1] if result is None and writes(func) else result
        for index, output in enumerate(tensors_in(written)):
            if not output.requires_grad or not torch.is_grad_enabled():
                continue
            if id(output) in tracked:
                if writes(func) and private and tracked[id(output)].derived:
                    self._recording.hidden = NoExampleRule(
                        f"Operation '{func.__name__}' writes examples into a tensor that is computed from parameters "
                        "alone, which cannot be followed. Use the ordinary form of the operation."
                    )
                continue
            if private:
                self._declare_if_public(sources[0].tensor, output)
                self._record_use(call, sources, output, output_index=index)
            elif self._makes_batch_axis(func, args, sources, output):
                self._mark([output])
                self._declare_rows(sources[0].tensor, output)
                self._record_use(call, sources, output)
            else:
                parameters = frozenset().union(*(source.parameters for source in sources))
                undo = _undo_of(call, sources[0].tensor, output) if len(sources) == 1 else None
                tracked[id(output)] = Source(
                    tensor=output, parameters=parameters, derived=True, made_from=sources[0], undo=undo,
                    version=output._version,
                )  # fmt: skip

    def _mark(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            setattr(tensor, MARK, self._mark_value)

    def _record_use(self, call: Call, sources: Sequence[Source], output: Tensor, *, output_index: int = 0) -> None:
        used = [tensor for tensor in tensors_in((call.args, call.kwargs)) if is_batch(tensor)]
        used += [source.tensor for source in sources if source.derived]
        use = Use(
            function=call.function,
            args=call.args,
            kwargs=call.kwargs,
            sources=[source.intact for source in sources],
            output_shape=output.shape,
            output_dtype=output.dtype,
            edge=get_gradient_edge(output),
            output_index=output_index,
            statistics=call.statistics,
            versions=[(tensor, tensor._version) for tensor in used],
            written=output if writes(call.function) else None,
            node_before=call.node_before,
        )
        use.listen(output)
        self._recording.uses.append(use)
        if self._recording.follower is not None:
            self._declare_beside(used, output, self._recording.follower)
            self._recording.follower.use(output)

    def observe_part(self, func: Function, args: tuple[Any, ...], output: Tensor) -> None:
        """Record a part of a composite operation: the gradients of its tracked arguments follow from ``output``'s."""
        tracked = self._recording.tracked
        sources = [tracked[id(tensor)] for tensor in tensors_in(args) if id(tensor) in tracked]
        if sources:
            self._record_use(Call(func, args, {}), sources, output)

    def _source_of(self, tensor: Tensor) -> Source | None:
        """Return the source of a tensor that is a parameter or was computed from parameters alone."""
        source = self._recording.tracked.get(id(tensor))
        if source is not None and (not source.derived or source.tensor._version == source.version):
            return source
        # made by a custom function, or written in part: only the graph knows its parameters
        is_derived = source is not None or getattr(tensor, _DERIVED, False)
        if not is_derived or is_batch(tensor) or not tensor.requires_grad or tensor.is_leaf:
            return None
        nodes = nodes_behind([tensor.grad_fn])
        if any(use.edge is not None and use.edge.node in nodes for use in self._recording.uses):
            return None
        behind = (self._recording.tracked.get(id(getattr(node, "variable", None))) for node in nodes)
        parameters = frozenset().union(*(found.parameters for found in behind if found is not None))
        if not parameters:
            return None
        source = Source(tensor=tensor, parameters=parameters, derived=True, version=tensor._version)
        self._recording.tracked[id(tensor)] = source
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
            follows = output.shape[0] == self._recording.batch_size
        else:
            follows = self._follows_batch(sources[0].tensor, output)
        # a length that equals this batch's size by chance differed from an earlier batch's
        self._expansions[number] = follows and self._expansions.get(number, True)
        return self._expansions[number]

    def _follows_batch(self, source: Tensor, output: Tensor) -> bool:
        size = self._recording.batch_size
        if output.shape[0] == size and (source.dim() < output.dim() or source.shape[0] == 1):
            return True
        # initial states of recurrent layers and attention's extra keys: [rows, 1, width] -> [rows, batch, width]
        return source.dim() == 3 and source.shape == (output.shape[0], 1, *output.shape[2:]) and output.shape[1] == size

    def _declare_if_public(self, source: Tensor, output: Tensor) -> None:
        """Declare one row per example for a table that is looked up at constants in the shape of the examples."""
        follower = self._recording.follower
        is_public = follower is not None and follower.tracer is not None and follower.verdict(output) is None
        if is_public and output.dim() and output.shape[0] == self._recording.batch_size:
            self._declare_rows(source, output)

    def _declare_rows(self, source: Tensor, output: Tensor) -> None:
        """Declare the place of the examples in copies of a parameter, one for each example."""
        if self._recording.follower is not None:
            size = self._recording.batch_size
            is_first = output.shape[0] == size and (source.dim() < output.dim() or source.shape[0] == 1)
            axis = 0 if is_first or output.dim() < 3 else 1
            self._recording.follower.declare(output, single(0) if size == 1 else Place(axis, 1, 1, 0, size))

    def _declare_beside(self, used: Sequence[Tensor], output: Tensor, follower: Follower) -> None:
        """Declare where the examples lie in a parameter's product with public numbers, by the batch tensors beside it.

        Public numbers may belong to any example. The rules then hold all later results to the place that is given here,
        so a wrong one is refused.
        """
        size = self._recording.batch_size
        if size == 1 or follower.tracer is None or follower.verdict(output) is not None:
            return
        alike = [follower.verdict(tensor) for tensor in used if tensor.shape == output.shape]
        place = next((verdict for verdict in alike if isinstance(verdict, Place)), None)
        if place is None and output.dim() and output.shape[0] == size:
            place = Place(0, 1, 1, 0, size)
        follower.declare(output, place)


_OF_EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


def _undo_of(call: Call, old: Tensor, new: Tensor) -> Undo | None:
    rest, kwargs = call.args[1:], call.kwargs
    if call.function is functional.embedding:
        given = {**dict(zip(_OF_EMBEDDING, call.args, strict=False)), **kwargs}
        is_plain = given["weight"] is old and given.get("padding_idx") is None and given.get("max_norm") is None
        is_plain = is_plain and not given.get("scale_grad_by_freq") and not given.get("sparse")
        return looked_up(given["input"], old) if is_plain else None
    is_first = bool(call.args) and call.args[0] is old
    again = (lambda other: call.function(other, *rest, **kwargs)) if is_first else None
    return undo_of(call.function, again, old, new)
