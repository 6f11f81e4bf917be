"""Recognises a program that was proven, and proves one that was not, while it runs.

The calls of a forward pass make a sequence: which operation, on which earlier results, with which whole numbers. As
long as it is a sequence that was proven before, nothing else happens. Where it departs from all of them a tracer takes
over, with what the proof of the common beginning says of the tensors made so far.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode

from privet.isolation.lines import is_asked_by_torch, is_within
from privet.isolation.place import Cause, Fault, Place, Verdict
from privet.isolation.programs import Entry, Function, Known
from privet.isolation.programs import Programs as Programs
from privet.isolation.programs import Proof as Proof
from privet.isolation.reads import Read, checks_only, may_read
from privet.isolation.tracer import Trace, Tracer, tracer

_SHIFT = 24
_MOST_RESULTS = 1 << _SHIFT
_FOLLOWERS = itertools.count(1)
# Arguments that tell programs apart as they are.
_GRAPH = ("torch", "autograd", "graph.py")  # torch's own way to hand out nodes
_EXACT = frozenset(
    [int, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout, type(Ellipsis)]
)
# Calls that hand the numbers of a tensor to Python without an operation.
_READING: frozenset[Function] = frozenset(
    [
        Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.untyped_storage, Tensor.__repr__,
        Tensor.__format__, Tensor.apply_, Tensor.map_, Tensor.map2_,
        Tensor.data_ptr,
    ]
)  # fmt: skip
_ATTRIBUTES = [
    "shape",
    "dtype",
    "device",
    "requires_grad",
    "is_cuda",
    "layout",
    "ndim",
    "is_nested",
    "is_leaf",
    "is_sparse",
    "is_quantized",
    "is_mps",
    "is_meta",
]
ASKING: frozenset[Function] = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES),
        Tensor.size, Tensor.dim, Tensor.__len__, Tensor.is_floating_point, Tensor.is_contiguous, Tensor.stride,
        Tensor.numel, Tensor.is_complex, Tensor.element_size, Tensor.nelement, Tensor.__hash__,
    ]
)  # fmt: skip
"""Attributes and questions that say nothing about the numbers of a tensor."""


_SHARING: frozenset[Function] = frozenset([Tensor.data.__get__])  # type: ignore[attr-defined]
LENGTHS: frozenset[Function] = frozenset(
    [Tensor.shape.__get__, Tensor.size, Tensor.__len__, Tensor.numel, Tensor.nelement]  # type: ignore[attr-defined]
)
"""Those that tell lengths, which say something where they depend on the numbers of examples."""


class Follower:
    """Follows one forward pass."""

    def __init__(
        self,
        programs: Programs,
        num_examples: int,
        place_of: Callable[[Tensor], Verdict],
        *,
        may_trace: bool = True,
        slot: int = 0,
    ) -> None:
        """Expect the program that ran last.

        Args:
            programs: Those that were proven.
            num_examples: How many examples the batch has.
            place_of: Says where the examples lie in a tensor of the batch.
            may_trace: Whether another program may be proven.
            slot: Tells followers apart that are active at the same time.
        """
        self._slot, self._attribute = slot, f"_privet_serial_{slot}"
        self._programs, self._num_examples, self._place_of = programs, num_examples, place_of
        self._candidate = next(iter(programs.of(num_examples)), None)
        self._entries: list[Entry] = []
        self._notes: dict[int, Any] = {}
        self._verdicts: list[Verdict] = []
        self._made_after: list[int] = []  # how many calls there were when each result was made
        self._finished: Known | None = None
        self._errors: list[Read] = []
        self._asks_for_nodes, self._seed = False, torch.initial_seed()
        self._losses: int | None = None
        self._node: type = type(None)
        self._uses: list[Verdict] = []
        self._number = next(_FOLLOWERS) << _SHIFT
        self._may_trace, self._is_lost, self._sees_all = may_trace, False, True
        self._seeds: Sequence[Verdict] = ()
        self.tracer: Tracer | None = None
        self.nodes: dict[Any, dict[int, Verdict]] = {}  # of the user's own autograd functions: their results' places
        self.places: dict[tuple[Any, int], Verdict] = {}  # of every tensor with gradients, by its node
        self.has_hooks = False
        self.judge_gradient: Callable[[Verdict, Verdict, str], None] | None = None
        if self._candidate is None:
            self._begin_trace()

    @property
    def is_lost(self) -> bool:
        """Whether the program is another than all that were proven, and no proof was allowed."""
        return self._is_lost

    def before(
        self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], number_of: Callable[[Tensor], Any]
    ) -> Any:
        """Note a call before it is carried out; ``number_of`` names parameters and tensors of the batch.

        Returns the note that :meth:`note` left for this call when its program was new, if the call is recognised.
        """
        sign = self._sign
        entry = (function, *[sign(arg, number_of) for arg in args])
        if kwargs:
            entry += tuple((name, self._sign(value, number_of)) for name, value in kwargs.items())
        place = len(self._entries)
        self._entries.append(entry)
        if self._candidate is None:
            self._note_reading(function, args, kwargs)
            return None
        expected = self._candidate.entries
        if place < len(expected) and expected[place] == entry:
            return self._candidate.notes[place]
        for other in self._programs.of(self._num_examples):
            if other.entries[: place + 1] == self._entries:
                self._candidate = other
                return other.notes[place]
        if place == len(expected):
            self._finished = self._candidate  # what follows may have nothing to do with the losses
        self._depart()
        self._note_reading(function, args, kwargs)
        return None

    @property
    def place(self) -> int:
        """The number of the call that :meth:`before` saw last."""
        return len(self._entries) - 1

    def note(self, place: int, note: Any) -> None:
        """Leave a note for a call; once its program is proven, :meth:`before` returns it wherever the call recurs."""
        self._notes[place] = note

    def _note_reading(self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self.tracer is None:
            return
        self.tracer.harmless = checks_only(function, args, kwargs)
        if function in _READING and self._is_private(args) and not is_asked_by_torch():
            self.tracer.read(getattr(function, "__name__", str(function)))

    def _is_private(self, args: Sequence[Any]) -> bool:
        assert self.tracer is not None
        return any(self.tracer.verdict(arg) is not None for arg in args if isinstance(arg, Tensor))

    def _depart(self) -> None:
        assert self._candidate is not None
        self._seeds = self._candidate.verdicts
        self._verdicts = list(self._seeds[: len(self._verdicts)])
        self._uses = list(self._candidate.uses[: len(self._uses)])
        self._notes = dict(enumerate(self._candidate.notes[: self.place]))
        self._candidate = None
        self._begin_trace()

    def _begin_trace(self) -> None:
        if not self._may_trace:
            self._is_lost = True
            return
        self.tracer = tracer(self._num_examples, self._first_seen, slot=self._slot)
        # unlike a bare push this tells torch's compiler, too, that a mode is active
        self.tracer.__enter__()  # type: ignore[no-untyped-call]

    def _first_seen(self, tensor: Tensor) -> Verdict:
        """Return what is known of a tensor that was made before the tracer was there."""
        serial = getattr(tensor, self._attribute, 0)
        if serial >> _SHIFT == self._number >> _SHIFT:
            number = serial - self._number
            return self._seeds[number] if number < len(self._seeds) else None
        return self._place_of(tensor)

    def after(self, outputs: Iterable[Tensor]) -> None:
        """Number the results of the call that was just carried out."""
        for output in outputs:
            setattr(output, self._attribute, self._number + len(self._verdicts))
            self._made_after.append(len(self._entries))
            self._verdicts.append(None if self.tracer is None else self.tracer.verdict(output))

    def use(self, output: Tensor) -> None:
        """Note the output of an operation in which a parameter met the examples."""
        self._uses.append(None if self.tracer is None else self.tracer.verdict(output))

    def verdict(self, tensor: Tensor) -> Verdict:
        """Return where the examples lie in a tensor that was seen as argument or result of a call."""
        if self.tracer is not None:
            return self.tracer.verdict(tensor)
        serial = getattr(tensor, self._attribute, 0)
        if self._candidate is not None and serial >> _SHIFT == self._number >> _SHIFT:
            return self._candidate.verdicts[serial - self._number]
        return self._place_of(tensor)

    def declare(self, output: Tensor, verdict: Verdict) -> None:
        """Say that a tensor made from parameters alone has one row per example."""
        if self.tracer is not None:
            self.tracer.give(output, verdict)

    def note_node(self) -> None:
        """Note that the user asks for a node of the graph, on which hooks may be put that nobody sees."""
        if not is_asked_by_torch() or is_within(_GRAPH):
            self._sees_all, self._asks_for_nodes = False, True

    def note_length(self, tensor: Tensor) -> None:
        """Note that the user asks for a length; one that depends on numbers of the examples is a read."""
        if self.tracer is None or self._num_examples == 1:
            return
        if self.tracer.spec(tensor).has_own_length and not is_asked_by_torch():
            self.tracer.read("a length")

    def note_error(self, function: Function) -> None:
        """Note a call that failed: whoever catches the error learns something about its arguments."""
        if self.tracer is None:  # which sees errors by itself
            name = f"an error of {getattr(function, '__name__', str(function))}"
            self._errors.append(may_read(name, len(self._verdicts)))

    def exchange(self, tensor: Tensor, given: Tensor) -> None:
        """Note that a tensor was given the memory of another."""
        if self.tracer is not None:
            self.tracer.give(tensor, self.tracer.verdict(given))

    def note_hook(self) -> None:
        """Note that user code will run in the backward pass: the program must be traced every time."""
        self._sees_all, self.has_hooks = False, True

    def _sign(self, value: Any, number_of: Callable[[Tensor], Any]) -> Any:
        # this runs for every argument of every call of every batch, so the frequent cases come first
        kind = type(value)
        if kind in _EXACT:
            return value
        if kind is float:
            return float  # where examples lie does not depend on it
        if isinstance(value, Tensor):
            number = getattr(value, self._attribute, 0) - self._number
            if 0 <= number < _MOST_RESULTS:
                node: object = value.grad_fn
                if node is None:
                    return number
                if self.tracer is not None:
                    self.places[node, value.output_nr] = self.tracer.verdict(value)
                if isinstance(node, BackwardCFunction):
                    return (number, self._note_node(node, value))
                return number
            if self.tracer is not None and self.tracer.verdict(value) is not None:
                self._sees_all = self._sees_all and self._place_of(value) is not None
            return number_of(value)
        if kind in (list, tuple, torch.Size):
            return tuple([self._sign(item, number_of) for item in value])
        if kind is slice:
            return (slice, self._sign(value.start, number_of), self._sign(value.stop, number_of),
                    self._sign(value.step, number_of))  # fmt: skip
        if kind is dict:
            return tuple([(name, self._sign(item, number_of)) for name, item in value.items()])
        if isinstance(value, np.ndarray):
            return (np.ndarray, value.shape, blake2b(value.tobytes()).digest())
        if callable(value) or isinstance(value, range | np.generic | Enum | bytes | EllipsisType):
            return value
        if isinstance(value, torch.Generator | complex):
            return kind
        return object()  # it may be another number at every call: the program is proven anew every time

    def _note_node(self, node: Any, output: Tensor) -> type:
        """Note a result whose gradient goes through the user's own code."""
        kind = type(node)
        if not kind.__module__.startswith("privet.") and self.tracer is not None:
            self.nodes.setdefault(node, {})[output.output_nr] = self.tracer.verdict(output)
            self._sees_all = False
        return kind

    def leave(self) -> None:
        """Take the tracer off torch's stack, wherever it lies."""
        if self.tracer is None:
            return
        above: list[TorchDispatchMode] = []
        while (top := _get_current_dispatch_mode()) is not self.tracer:
            assert top is not None, "the tracer is on the stack"
            above.append(top)
            _pop_mode()
        self.tracer.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _push_mode(mode)

    def release(self) -> None:
        """Let go of every tensor."""
        self.nodes.clear()
        self.places.clear()
        self.judge_gradient = None
        if self.tracer is not None:
            self.tracer.release()

    def prove(self, losses: Tensor) -> Proof:
        """End the forward pass and say what was found; a program without fault will be recognised."""
        self._losses = self._number_of_result(losses)
        end = len(self._entries) if self._losses is None else self._made_after[self._losses]
        calls = tuple(entry[0] for entry in self._entries[:end])
        candidate = self._finished or self._candidate
        node: object = losses.grad_fn
        self._node = type(node)
        if isinstance(node, BackwardCFunction):
            self._note_node(node, losses)
        late = self._write_after(end)
        if late is not None:
            return Proof(late, self._uses, self._errors, Trace(num_examples=self._num_examples), calls)
        is_known = candidate is not None and candidate.losses == self._losses and len(candidate.entries) == end
        doubt = self._doubt()
        is_known = is_known and doubt is None and not self._errors
        if is_known and candidate is not None and candidate.node is self._node:
            self._is_lost = False
            return Proof(self._whole(), candidate.uses, (), None, calls, candidate)
        if self.tracer is None:
            # it ended earlier than the program it began like: what came before was proven then
            verdict = doubt or self._ended_early(self._candidate)
            uses = self._uses if self._candidate is None else self._candidate.uses[: len(self._uses)]
            return Proof(verdict, uses, self._errors, Trace(num_examples=self._num_examples), calls)
        spec, trace = self.tracer.spec(losses), self.tracer.trace
        verdict, trace.losses, trace.memory_of_losses = spec.verdict, spec.serial, spec.memory
        trace.end()
        if isinstance(verdict, Place) and not verdict.is_single and verdict != self._whole():
            verdict = Cause(Fault.MIXES, "the loss function", "its losses are not one per example, in order")
        if doubt is not None and not isinstance(verdict, Cause):
            verdict = doubt
        if verdict is None:
            verdict = Cause(Fault.NO_RULE, "the loss function", "its losses do not lie along the examples")
        return Proof(verdict, self._uses, [*self._errors, *self.tracer.trace.reads], self.tracer.trace, calls)

    def _doubt(self) -> Cause | None:
        """Return what no rule follows, wherever in the program it happens: also after the losses were made."""
        if self._asks_for_nodes:
            return Cause(Fault.NO_RULE, "the program", "it asks for a node of the graph, where hooks may be put")
        if torch.initial_seed() != self._seed:
            reason = "what an example draws from a seed that the program sets depends on its place in the batch"
            return Cause(Fault.NO_RULE, "manual_seed", reason)
        return None if self.tracer is None else self.tracer.trace.doubt

    def _write_after(self, end: int) -> Cause | None:
        """Return why the losses do not stand for their graph: something that was made with them was changed later."""
        shared: set[int] = set()  # reached past torch's counters
        for place, (function, *signs) in enumerate(self._entries[end:], end + 1):
            number = _number_in(signs[0]) if signs else None
            if number is None or self._losses is None:
                continue
            # torch itself notices other writes into what a backward pass needs
            if number <= self._losses and function in _SHARING:
                shared.update(result for result, after in enumerate(self._made_after) if after == place)
            if number in shared and _writes(function):
                name = getattr(function, "__name__", str(function))
                return Cause(Fault.MIXES, name, "it changes what the losses were computed from, after they were")
        return None

    def _number_of_result(self, tensor: Tensor) -> int | None:
        serial: int = getattr(tensor, self._attribute, 0)
        return serial - self._number if serial >> _SHIFT == self._number >> _SHIFT else None

    def _ended_early(self, candidate: Known | None) -> Verdict:
        if candidate is not None and self._losses is not None and candidate.verdicts[self._losses] == self._whole():
            return self._whole()
        return Cause(Fault.NO_RULE, "the loss function", "it ends in another way than before")

    def _whole(self) -> Place:
        return Place(0, 1, 1, 0, self._num_examples)

    def remember(self) -> None:
        """Let the program be recognised from now on, if its calls show all that it does."""
        if self.tracer is None or not self._sees_all or self._losses is None:
            return
        entries = self._entries[: self._made_after[self._losses]]
        verdicts = self._verdicts[: self._losses + 1]
        notes = [self._notes.get(place) for place in range(len(entries))]
        self._programs.add(self._num_examples, Known(entries, verdicts, self._uses, self._losses, self._node, notes))


def _number_in(sign: Any) -> int | None:
    """Return the number of the result that an argument's sign stands for, if it is one."""
    if type(sign) is int:
        return sign
    return sign[0] if type(sign) is tuple and len(sign) == 2 and isinstance(sign[1], type) else None


def _writes(function: Function) -> bool:
    name = getattr(function, "__name__", "")
    return name == "__setitem__" or name.startswith("__i") or (name[-1:] == "_" and name[-2:] != "__")
