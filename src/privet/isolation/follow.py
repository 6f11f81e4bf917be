"""Recognises a program that was proven, and proves one that was not, while it runs.

The calls of a forward pass make a sequence: which operation, on which earlier results, with which whole numbers. As
long as it is a sequence that was proven before, nothing else happens. Where it departs from all of them a tracer takes
over, with what the proof of the common beginning says of the tensors made so far.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode

from privet.isolation.asking import READING
from privet.isolation.lines import is_asked_by_privet, is_asked_by_torch, is_within
from privet.isolation.place import Cause, Fault, Place, Verdict
from privet.isolation.programs import CONSTANT, Fresh, Known
from privet.isolation.programs import Programs as Programs
from privet.isolation.programs import Proof as Proof
from privet.isolation.reads import Read, checks_only, may_read
from privet.isolation.signs import (
    GIVEN,
    RESULT,
    VERSION,
    Entry,
    Function,
    Numbered,
    Sign,
    collect,
    kind_of,
    num_numbers_in,
    sign_of,
    without_versions,
    writes_since,
)
from privet.isolation.suspicions import Suspicions
from privet.isolation.tracer import Trace, Tracer, tracer

_SHIFT = 24
_MOST_RESULTS = 1 << _SHIFT
_FOLLOWERS = itertools.count(1)
_CONSTANTS = itertools.count(1)
_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_GRAPH = ("torch", "autograd", "graph.py")  # torch's own way to hand out nodes


class Follower:
    """Follows one forward pass.

    Guarantee:
        A call passes for an expected one only if function, number and kinds of arguments, values (but not floats),
        numbers of results among them, names of other tensors, and the number of results so far are the same.
    """

    def __init__(
        self,
        programs: Programs,
        num_examples: int,
        place_of: Callable[[Tensor], Verdict],
        number_of: Callable[[Tensor], Any],
        parameters: Mapping[int, Numbered],
        *,
        may_trace: bool = True,
        slot: int = 0,
    ) -> None:
        """Expect the program that ran last.

        Args:
            programs: Those that were proven.
            num_examples: How many examples the batch has.
            place_of: Says where the examples lie in a tensor of the batch.
            number_of: Names a tensor that no call has made: a parameter, one of the batch, a constant.
            parameters: Those that ``number_of`` names by their numbers, by identity; spares most of its calls.
            may_trace: Whether another program may be proven.
            slot: Tells followers apart that are active at the same time.
        """
        self._slot, self._attribute = slot, f"_privet_serial_{slot}"
        self._programs, self._num_examples, self._place_of = programs, num_examples, place_of
        self._number_of, self._parameters = number_of, parameters
        found = programs.of(num_examples)  # the latest used first
        self._candidate = found[0] if found else None
        self._num_calls = self._num_made = self._num_uses = 0
        # of these, what a known program has in common with this one is copied when they part
        self._entries: list[Entry] = []
        self._notes: dict[int, Any] = {}
        self._verdicts: list[Verdict] = []
        self._made_after: list[int] = []  # how many calls there were when each result was made
        self._finished: Known | None = None
        self._errors: list[Read] = []
        self._losses: int | None = None
        self._node: type = type(None)
        self._uses: list[Verdict] = []
        self._number = next(_FOLLOWERS) << _SHIFT
        self._may_trace, self._sees_all = may_trace, True
        self.is_lost = False  # whether the program is new, and no proof was allowed
        self._numbers: list[Any] = []  # which the calls leave open
        self._is_whole, self._is_kept = True, True
        self._suspicions = Suspicions()
        self._seeds: Sequence[Verdict] = ()
        self.tracer: Tracer | None = None
        self.nodes: dict[Any, dict[int, Verdict]] = {}  # of the user's own autograd functions: their results' places
        self.places: dict[tuple[Any, int], Verdict] = {}  # of every tensor with gradients, by its node
        self.has_hooks = False
        self.judge_gradient: Callable[[Verdict, Verdict, str], None] | None = None
        if self._candidate is None:
            self._begin_trace()

    def before(self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Note a call before it is carried out.

        Returns the note that :meth:`note` left for this call when its program was new, if the call is recognised.
        """
        # this runs for every call of every batch: nothing is built, and nothing is called that is written in Python
        candidate, place = self._candidate, self._num_calls
        self._num_calls = place + 1
        self._is_kept = (hooks := _hooks(True)) is None
        if not self._is_kept:
            self._suspicions.note_hooks(hooks, function, args, kwargs)
        if candidate is not None and place < len(candidate.expected):
            wanted, names, made, length, pick, exact, types, results, given, kinds, others, numeric = (
                candidate.expected[place]
            )
            values: Sequence[Any] = (*args, *kwargs.values()) if kwargs else args
            if (
                (wanted is function or wanted == function)
                and made == self._num_made
                and length == len(values)
                and names == (tuple(kwargs) if kwargs else ())
                and (pick is None or (tuple(map(type, picked := pick(values))) == types and picked == exact))
            ):
                attribute, first = self._attribute, self._number
                for index, number, version in results:
                    value = values[index]
                    if getattr(value, attribute, 0) - first != number or isinstance(value.grad_fn, BackwardCFunction):
                        break
                    if version >= 0 and value._version - getattr(value, VERSION, 0) != version:
                        break
                else:
                    for index, kind, name in given:
                        value = values[index]
                        if type(value) is not kind:
                            break
                        source = self._parameters.get(id(value))
                        if source is not None and not source.derived:
                            if source.parameters != name:
                                break
                        elif getattr(value, attribute, 0) >= first or self._number_of(value) != name:
                            break
                    else:
                        for index, kind in kinds:
                            if type(values[index]) is not kind:
                                break
                        else:
                            for other in others:
                                value = values[other.index]
                                if other.seen is None or value is not other.seen:
                                    if sign_of(value, self._sign) != other.sign:
                                        break
                                    other.note(value)
                            else:
                                for index, sign in numeric:
                                    value = values[index]
                                    if type(value) is float:
                                        self._numbers.append(value)
                                    elif sign[0] is GIVEN:
                                        self._numbers.append(getattr(value, CONSTANT, 0) or self._constant(value))
                                    else:
                                        collect(sign, value, self._constant, self._generator, self._numbers)
                                return candidate.notes[place]
        return self._before_another(function, args, kwargs)

    def _before_another(self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Note a call that is not the expected one."""
        values = (*args, *kwargs.values())
        signs = tuple([sign_of(value, self._sign) for value in values])
        entry, place = Entry(function, tuple(kwargs), self._num_made, signs), self._num_calls - 1
        if self._candidate is not None:
            begun = self._candidate.entries[:place]
            for other in self._programs.of(self._num_examples):
                if place < len(other.entries) and other.entries[place] == entry and other.entries[:place] == begun:
                    self._candidate = other
                    self._collect(signs, values)
                    return other.notes[place]
            if place == len(self._candidate.entries):
                self._finished = self._candidate  # what follows may have nothing to do with the losses
            elif without_versions(entry) == without_versions(self._candidate.entries[place]):
                self._suspicions.was_written = True
            self._is_whole = self._is_whole and place == 0
            self._depart()
        self._entries.append(entry)
        if self._finished is None:  # the numbers of what follows the losses have no part in them
            self._collect(signs, values)
        self._note_reading(function, args, kwargs)
        return None

    @property
    def place(self) -> int:
        """The number of the call that :meth:`before` saw last."""
        return self._num_calls - 1

    def note(self, place: int, note: Any) -> None:
        """Leave a note for a call; once its program is proven, :meth:`before` returns it wherever the call recurs."""
        self._notes[place] = note

    def _collect(self, signs: Sequence[Sign], values: Sequence[Any]) -> None:
        for sign, value in zip(signs, values, strict=True):
            collect(sign, value, self._constant, self._generator, self._numbers)

    def _note_reading(self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self.tracer is None:
            return
        self.tracer.harmless = checks_only(function, args, kwargs)
        if function in READING and self._is_private(args) and not is_asked_by_torch():
            self.tracer.read(getattr(function, "__name__", str(function)))
            self._suspicions.hand_out([arg for arg in args if isinstance(arg, Tensor)])

    def _is_private(self, args: Sequence[Any]) -> bool:
        assert self.tracer is not None
        return any(self.tracer.verdict(arg) is not None for arg in args if isinstance(arg, Tensor))

    def _depart(self) -> None:
        assert self._candidate is not None
        self._seeds = self._candidate.verdicts
        self._copy_from(self._candidate, num_calls=self._num_calls - 1)  # without the one that is made now
        self._candidate = None
        self._begin_trace()

    def _copy_from(self, candidate: Known, *, num_calls: int) -> None:
        """Take over what a known program has in common with this one."""
        self._entries = candidate.entries[:num_calls]
        self._notes = dict(enumerate(candidate.notes[:num_calls]))
        self._verdicts = candidate.verdicts[: self._num_made]
        self._made_after = candidate.made_after[: self._num_made]
        self._uses = candidate.uses[: self._num_uses]

    def _begin_trace(self) -> None:
        if not self._may_trace:
            self.is_lost = True
            return
        self.tracer = tracer(self._num_examples, self._first_seen, slot=self._slot)
        # unlike a bare push this tells torch's compiler, too, that a mode is active
        self.tracer.__enter__()  # type: ignore[no-untyped-call]

    def _first_seen(self, tensor: Tensor) -> Verdict:
        """Return what is known of a tensor that was made before the tracer was there."""
        number = self._number_of_result(tensor)
        if number is None:
            return self._place_of(tensor)
        return self._seeds[number] if number < len(self._seeds) else None

    def after(self, outputs: Sequence[Tensor]) -> None:
        """Number the results of the call that was just carried out."""
        if not self._is_kept:
            self._suspicions.repeatable.note_results(outputs)
        for output in outputs:
            setattr(output, self._attribute, self._number + self._num_made)
            # relative, since what shares the memory of a weight shares its count, too
            setattr(output, VERSION, -1 if output.is_inference() else output._version)
            self._num_made += 1
            if self._candidate is None:
                self._made_after.append(self._num_calls)
                self._verdicts.append(None if self.tracer is None else self.tracer.verdict(output))

    def use(self, output: Tensor) -> None:
        """Note the output of an operation in which a parameter met the examples."""
        self._num_uses += 1
        if self._candidate is None:
            self._uses.append(None if self.tracer is None else self.tracer.verdict(output))

    def verdict(self, tensor: Tensor) -> Verdict:
        """Return where the examples lie in a tensor that was seen as argument or result of a call."""
        if self.tracer is not None:
            return self.tracer.verdict(tensor)
        number = self._number_of_result(tensor)
        if self._candidate is not None and number is not None:
            return self._candidate.verdicts[number]
        return self._place_of(tensor)

    def declare(self, output: Tensor, verdict: Verdict) -> None:
        """Say that a tensor made from parameters alone has one row per example."""
        if self.tracer is not None:
            self.tracer.give(output, verdict)

    def note_node(self) -> None:
        """Note that the user asks for a node of the graph, on which hooks may be put that nobody sees."""
        if is_asked_by_privet():  # by another session, whose batch is open at the same time
            return
        if not is_asked_by_torch() or is_within(_GRAPH):
            self._sees_all, self._suspicions.asks_for_nodes = False, True

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
            self._errors.append(may_read(name, self._num_made))

    def exchange(self, tensor: Tensor, given: Tensor) -> None:
        """Note that a tensor was given the memory of another."""
        if self.tracer is not None:
            self.tracer.give(tensor, self.tracer.verdict(given))

    def note_hook(self) -> None:
        """Note that user code will run in the backward pass: the program must be traced every time."""
        self._sees_all, self.has_hooks = False, True

    def _sign(self, tensor: Tensor) -> Sign:
        number = self._number_of_result(tensor)
        if number is not None:
            node: object = tensor.grad_fn
            if node is not None and self.tracer is not None:
                self.places[node, tensor.output_nr] = self.tracer.verdict(tensor)
            kind = self._note_node(node, tensor) if isinstance(node, BackwardCFunction) else None
            return (RESULT, type(tensor), number, kind, writes_since(tensor))
        if self.tracer is not None and self.tracer.verdict(tensor) is not None:
            self._sees_all = self._sees_all and self._place_of(tensor) is not None
        return (GIVEN, type(tensor), self._number_of(tensor))

    def _generator(self, generator: torch.Generator) -> None:
        self._suspicions.draws_again |= self._programs.has_drawn(generator)

    def _constant(self, tensor: Tensor) -> Any:
        """Return which constant a tensor is; one that is new to a program that was not traced may be a result."""
        number: int = getattr(tensor, CONSTANT, 0)
        if number:
            return number
        number = next(_CONSTANTS)
        setattr(tensor, CONSTANT, number)
        self._programs.mark(tensor)
        is_known = self.tracer is not None and not self.tracer.has_made(tensor)
        return number if is_known else Fresh(number)

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
        self._suspicions.handed_out.clear()
        self.judge_gradient = None
        if self.tracer is not None:
            self.tracer.release()

    def prove(self, losses: Tensor) -> Proof:
        """End the forward pass and say what was found; a program without fault will be recognised."""
        self._losses = self._number_of_result(losses)
        candidate = self._candidate
        # the usual case: a known program from beginning to end, and nothing after its losses
        if candidate is not None and self._num_calls == len(candidate.entries) and candidate.losses == self._losses:
            is_same = candidate.node is type(losses.grad_fn) and not self._errors
            if is_same and self._doubt() is None:
                numbers = tuple(self._numbers)
                return Proof(self._whole(), candidate.uses, (), None, candidate.kind, numbers, known=candidate)
        if self._candidate is not None:
            self._copy_from(self._candidate, num_calls=self._num_calls)
        end = len(self._entries) if self._losses is None else self._made_after[self._losses]
        candidate = self._finished or self._candidate
        node: object = losses.grad_fn
        self._node = type(node)
        if isinstance(node, BackwardCFunction):
            self._note_node(node, losses)
        late = self._suspicions.write_after(self._entries[end:], end, self._losses, self._made_after)
        if late is not None:
            reads = [*self._errors, *(() if self.tracer is None else self.tracer.trace.reads)]
            return Proof(late, self._uses, reads, Trace(num_examples=self._num_examples), kind_of(self._entries[:end]))
        is_known = candidate is not None and candidate.losses == self._losses and len(candidate.entries) == end
        doubt = self._doubt()
        is_known = is_known and doubt is None and not self._errors
        if is_known and candidate is not None and candidate.node is self._node:
            self.is_lost = False
            return Proof(self._whole(), candidate.uses, (), None, candidate.kind, tuple(self._numbers), known=candidate)
        if self.tracer is None:
            # it ended earlier than the program it began like: what came before was proven then
            verdict = doubt or self._ended_early(self._candidate)
            return Proof(
                verdict, self._uses, self._errors, Trace(num_examples=self._num_examples), kind_of(self._entries[:end])
            )
        spec, trace = self.tracer.spec(losses), self.tracer.trace
        verdict, trace.losses, trace.memory_of_losses = spec.verdict, spec.serial, spec.memory
        trace.end()
        if isinstance(verdict, Place) and not verdict.is_single and verdict != self._whole():
            verdict = Cause(Fault.MIXES, "the loss function", "its losses are not one per example, in order")
        if doubt is not None and not isinstance(verdict, Cause):
            verdict = doubt
        if verdict is None:
            verdict = Cause(Fault.NO_RULE, "the loss function", "its losses do not lie along the examples")
        reads, entries = [*self._errors, *trace.reads], self._entries[:end]
        numbers = tuple(self._numbers[: num_numbers_in(entries)])
        return Proof(verdict, self._uses, reads, trace, kind_of(entries), numbers, self._is_whole)

    def _doubt(self) -> Cause | None:
        return self._suspicions.doubt or (None if self.tracer is None else self.tracer.trace.doubt)

    def _number_of_result(self, tensor: Tensor) -> int | None:
        number: int = getattr(tensor, self._attribute, 0) - self._number
        return number if 0 <= number < _MOST_RESULTS else None

    def _ended_early(self, candidate: Known | None) -> Verdict:
        if candidate is not None and self._losses is not None and candidate.verdicts[self._losses] == self._whole():
            return self._whole()
        return Cause(Fault.NO_RULE, "the loss function", "it ends in another way than before")

    def _whole(self) -> Place:
        return Place(0, 1, 1, 0, self._num_examples)

    def remember(self) -> None:
        """Let the program be recognised from now on, if its calls show all that it does."""
        if self.tracer is None or not self._sees_all or self._losses is None or self.tracer.trace.is_hidden:
            return
        end = self._made_after[self._losses]
        num_made = sum(after <= end for after in self._made_after)
        known = Known(
            entries=self._entries[:end], verdicts=self._verdicts[:num_made], made_after=self._made_after[:num_made],
            uses=self._uses, losses=self._losses, node=self._node, kind=kind_of(self._entries[:end]),
            notes=[self._notes.get(place) for place in range(end)],
        )  # fmt: skip
        self._programs.add(self._num_examples, known)
