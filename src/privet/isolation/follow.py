"""Recognises a program that was proven, and proves one that was not, while it runs.

The calls of a forward pass make a sequence: which operation, on which earlier results, with which whole numbers. As
long as it is a sequence that was proven before, nothing else happens. Where it departs from all of them a tracer takes
over, with the verdicts that the proof of the common beginning gives on the tensors made so far.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from privet.isolation.acts import Acting
from privet.isolation.again import Hooks
from privet.isolation.constants import glance_at
from privet.isolation.drawing import Drawn
from privet.isolation.place import Cause, Fault, Place, Rows, Verdict
from privet.isolation.processes import FORKS
from privet.isolation.programs import CONSTANT, Known, Log, Mark, Programs, Proof
from privet.isolation.reads import Read
from privet.isolation.signs import (
    GIVEN,
    NOTHING,
    RESULT,
    VERSION,
    Constant,
    Entry,
    Expected,
    Fresh,
    Function,
    Numbered,
    Rest,
    Sign,
    collect,
    is_equal,
    is_plain,
    kind_of,
    num_numbers_in,
    sign_of,
    without_versions,
    writes_since,
)
from privet.isolation.suspicions import Suspicions
from privet.isolation.tracer import Tracer, tracer
from privet.isolation.traces import Trace

_SHIFT = 24
_MOST_RESULTS = 1 << _SHIFT
_FOLLOWERS = itertools.count(1)
_CONSTANTS = itertools.count(1)
_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_num_nodes = torch._C._autograd._get_sequence_nr  # the number of nodes of the graph that this thread has made
_SOME = object()  # hooks on saved tensors, whichever: every call under them is noted


class Follower(Acting):
    """Follows one forward pass.

    Guarantee:
        A call passes for an expected one only if function, number and kinds of arguments, values (but not floats),
        numbers of results among them, names of other tensors, and the number of results so far are the same.
    """

    # looked up at every call of every batch, which slots make cheaper
    __slots__ = (
        "_attribute", "_candidate", "_finished", "_has_unseen_nodes", "_hooks", "_is_whole", "_log",
        "_losses", "_may_trace", "_node", "_num_nodes", "_num_uses", "_number", "_number_of", "_numbers", "_parameters",
        "_place_of", "_programs", "_seeds", "_serials", "_slot", "_whole", "expected", "is_lost",
    )  # fmt: skip

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
            may_trace: Whether a new program may be traced and proven.
            slot: Tells followers apart that are active at the same time.
        """
        self._slot, self._attribute = slot, f"_privet_serial_{slot}"
        self._programs, self._num_examples, self._place_of = programs, num_examples, place_of
        self._number_of, self._parameters = number_of, parameters
        found = None if programs.traces_all else programs.by_size.get(num_examples)  # the latest used first
        self._candidate = found[0] if found else None
        self.expected = NOTHING if self._candidate is None else self._candidate.expected[0]  # the next call
        self._num_made = self._num_uses = 0
        self._log = Log()  # the common beginning with a known program is copied when they part
        self._finished: Known | None = None
        self._errors: list[Read] = []
        self._losses: int | None = None
        self._node: type = type(None)
        self._number = next(_FOLLOWERS) << _SHIFT
        self._serials = itertools.count(self._number)  # counts without arithmetic on long numbers
        # a result can have a user-written node only if a node was made outside of the calls that are seen
        self._num_nodes, self._has_unseen_nodes = _num_nodes(), False
        self._may_trace, self._sees_all = may_trace, True
        self.is_lost = False  # whether the program is new, and no proof was allowed
        self._numbers: list[Any] = []  # which the calls leave open
        self._is_whole = True
        self._hooks: object = None  # on saved tensors, at the last call
        self._whole = Place(0, 1, 1, 0, num_examples)  # where the examples lie in losses that are one for each
        self._seed, self._num_forks = torch.initial_seed(), FORKS.number
        self._suspected: Suspicions | None = None
        self._draws, self._drawn = None, programs.drawn
        self._seeds: Sequence[Verdict] = ()
        self.tracer: Tracer | None = None
        self.nodes: dict[Any, dict[int, Verdict]] = {}  # of the user's own autograd functions: their results' places
        self.places: dict[tuple[Any, int], Verdict] = {}  # of every tensor with gradients, by its node
        self.has_hooks = False
        self.judge_gradient: Callable[[Verdict, Verdict, str], None] | None = None
        self.code = None
        if self._candidate is None:
            self._begin_trace()

    def before(self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        """Note a call before it is carried out.

        Returns the note that :meth:`note` left for this call when its program was new, if the call is recognised.
        """
        # this runs for every call of every batch: nothing is built, and hardly anything is called that is Python
        if (hooks := _hooks(True)) is not self._hooks:
            self._note_hooks(hooks, function, args, kwargs)
        call = self.expected
        self.expected = call.following
        values: Sequence[Any] = args
        if kwargs:
            values = (*args, *kwargs.values())
            if len(values) != call.num_values or tuple(kwargs) != call.names:
                return self._before_another(call, function, args, kwargs)
        elif len(args) != call.num_unnamed:
            return self._before_another(call, function, args, kwargs)
        if (call.function is not function and call.function != function) or call.made != self._num_made:
            return self._before_another(call, function, args, kwargs)
        if _num_nodes() != self._num_nodes:
            self._has_unseen_nodes = True
        try:
            for index, number, version in call.results:
                value = values[index]
                if getattr(value, self._attribute, 0) - self._number != number:
                    is_other = True
                    break
                if (value._version and writes_since(value)) != version:
                    is_other = True
                    break
            else:
                is_other = self._has_unseen_nodes and self._has_user_node(call, values)
        except RuntimeError:  # in inference mode torch does not count writes
            is_other = True
        if is_other:
            return self._before_another(call, function, args, kwargs)
        for index, item, kind in call.fixed:
            value = values[index]
            if type(value) is not kind or (
                value is not item and (value != item if kind is int else not is_equal(value, item, kind))
            ):
                return self._before_another(call, function, args, kwargs)
        if call.rest is not None and not self._are_expected(call.rest, values):
            return self._before_another(call, function, args, kwargs)
        if call.real >= 0:
            value = values[call.real]
            if type(value) is not float:
                return self._before_another(call, function, args, kwargs)
            self._numbers.append(value)
        return call.note

    def _has_user_node(self, call: Expected, values: Sequence[Any]) -> bool:
        return any(isinstance(values[index].grad_fn, BackwardCFunction) for index, _, _ in call.results)

    def _are_expected(self, rest: Rest, values: Sequence[Any]) -> bool:
        """Compare the arguments that few calls have, and collect the numbers that they leave open."""
        given, others, kinds, numeric, drawn = rest
        if drawn is not Drawn.NOTHING and self._watched_draws.expect(drawn):
            self._suspicions.note_draws(self._watched_draws)
        for index, kind, name in given:
            value = values[index]
            is_made = getattr(value, self._attribute, 0) >= self._number
            if type(value) is not kind or is_made or self._number_of(value) != name:
                return False
        for index, kind in kinds:
            if type(values[index]) is not kind:
                return False
        for index, sign in others:
            if sign_of(values[index], self._sign) != sign:
                return False
        for index, sign in numeric:
            collect(sign, values[index], self._constant, self.note_generator, self._numbers)
        return True

    def _note_hooks(
        self, hooks: Hooks | None, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> None:
        """Note whether autograd keeps the tensors of a call as they are."""
        self._hooks = None if hooks is None else _SOME
        if hooks is not None:
            self._suspicions.note_hooks(hooks, function, args, kwargs or {})

    def _before_another(
        self, call: Expected, function: Function, args: Sequence[Any], given: Mapping[str, Any] | None
    ) -> Any:
        """Note a call that is not the expected one, or that only its signs show to be it."""
        kwargs = given or {}
        values = (*args, *kwargs.values())
        signs = tuple([sign_of(value, self._sign) for value in values])
        tuples = {index: value for index, value in enumerate(values) if type(value) is tuple and is_plain(signs[index])}
        entry, place = Entry(function, tuple(kwargs), self._num_made, signs, tuples), call.place
        if self._candidate is not None:
            begun = self._candidate.entries[:place]
            for other in self._programs.of(self._num_examples):
                if place < len(other.entries) and other.entries[place] == entry and other.entries[:place] == begun:
                    self._candidate, self.expected = other, other.expected[place + 1]
                    self._collect(signs, values)
                    return other.notes[place]
            if place == len(self._candidate.entries):
                self._finished = self._candidate  # later calls may have nothing to do with the losses
            elif without_versions(entry) == without_versions(self._candidate.entries[place]):
                self._suspicions.was_written = True
            self._is_whole = self._is_whole and place == 0
            self._depart(place)
        self._log.entries.append(entry)
        if self._finished is None:  # numbers of calls after the losses have no part in them
            self._collect(signs, values)
        self.note_reading(function, args, kwargs)
        return None

    @property
    def place(self) -> int:
        """The number of the call that :meth:`before` saw last."""
        return self._num_calls - 1

    @property
    def _num_calls(self) -> int:
        return len(self._log.entries) if self._candidate is None else self.expected.place

    def note(self, place: int, note: Any) -> None:
        """Leave a note for a call; once its program is proven, :meth:`before` returns it wherever the call recurs."""
        self._log.notes[place] = note

    def _collect(self, signs: Sequence[Sign], values: Sequence[Any]) -> None:
        for sign, value in zip(signs, values, strict=True):
            collect(sign, value, self._constant, self.note_generator, self._numbers)

    def _depart(self, num_calls: int) -> None:
        """Leave the known program after some calls."""
        assert self._candidate is not None
        self._seeds = self._candidate.verdicts
        self._log = self._candidate.beginning(num_calls, self._num_made, self._num_uses)
        self._candidate, self.expected = None, NOTHING
        self._begin_trace()

    def _begin_trace(self) -> None:
        if not self._may_trace:
            self.is_lost = True
            return
        self.tracer = tracer(
            self._num_examples, self._first_seen, slot=self._slot, is_trained=self._is_trained,
            draws=self._watched_draws,
        )  # fmt: skip
        # unlike a bare push this tells torch's compiler, too, that a mode is active
        self.tracer.__enter__()  # type: ignore[no-untyped-call]

    def _is_trained(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter that steps change; without a session any parameter may be."""
        if self._parameters:
            return id(tensor) in self._parameters
        return isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad

    def _first_seen(self, tensor: Tensor) -> Verdict:
        """Return the verdict on a tensor that was made before the tracer was there."""
        number = self._number_of_result(tensor)
        if number is None:
            return self._place_of(tensor)
        return self._seeds[number] if number < len(self._seeds) else None

    def after(self, outputs: Sequence[Tensor]) -> None:
        """Number the results of the call that was just carried out."""
        if self._hooks is not None:
            self._suspicions.repeatable.note_results(outputs)
        for output in outputs:
            setattr(output, self._attribute, next(self._serials))
            # relative, since a view of a weight shares its count of writes
            setattr(output, VERSION, -1 if output.is_inference() else output._version)
            if self._candidate is None:
                self._log.made_after.append(self._num_calls)
                self._log.verdicts.append(None if self.tracer is None else self.tracer.verdict(output))
        self._num_made += len(outputs)
        self._num_nodes = _num_nodes()
        if self._draws is not None and self._draws.latest is not Drawn.NOTHING:
            if self._candidate is None:
                self._log.draws[self._num_calls - 1] = self._draws.latest
            self._draws.latest = Drawn.NOTHING

    def after_known(self, output: Tensor, *, is_use: bool) -> None:
        """Number the only result of a call that was recognised; ``is_use`` if a parameter met the examples in it."""
        self._num_uses += is_use  # without gradients a known call makes no use
        if self._hooks is not None:
            self._suspicions.repeatable.note_results((output,))
        setattr(output, self._attribute, next(self._serials))
        self._num_made += 1
        try:
            if output._version:
                setattr(output, VERSION, output._version)
        except RuntimeError:  # in inference mode torch does not count
            setattr(output, VERSION, -1)
        self._num_nodes = _num_nodes()

    def use(self, output: Tensor) -> None:
        """Note the output of an operation in which a parameter met the examples."""
        self._num_uses += 1  # without gradients a known call makes no use
        if self._candidate is None:
            self._log.uses.append(None if self.tracer is None else self.tracer.verdict(output))

    def verdict(self, tensor: Tensor) -> Verdict:
        """Return where the examples lie in a tensor that was seen as argument or result of a call."""
        if self.tracer is not None:
            return self.tracer.verdict(tensor)
        number = self._number_of_result(tensor)
        if self._candidate is not None and number is not None:
            return self._candidate.verdicts[number]
        return self._place_of(tensor)

    def declare(self, output: Tensor, verdict: Verdict) -> None:
        """Say where the examples lie in a tensor: one that was made from parameters alone, or given other memory."""
        if self.tracer is not None:
            self.tracer.give(output, verdict)

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

    def _constant(self, tensor: Tensor) -> Any:
        """Return which constant a tensor is; one that is new to a program that was not traced may be a result."""
        mark: Mark | None = getattr(tensor, CONSTANT, None)
        if mark:
            return Constant(mark.number, self._glance(tensor))
        number = next(_CONSTANTS)
        self._programs.mark(tensor, number)
        is_known = self.tracer is not None and not self.tracer.has_made(tensor)
        return Constant(number, self._glance(tensor)) if is_known else Fresh(number)

    def _glance(self, tensor: Tensor) -> bytes | None:
        return None if self._is_trained(tensor) else glance_at(tensor)

    def _note_node(self, node: Any, output: Tensor) -> type:
        """Note a result whose gradient goes through the user's own code."""
        kind = type(node)
        if not kind.__module__.startswith("privet.") and self.tracer is not None:
            self.nodes.setdefault(node, {})[output.output_nr] = self.tracer.verdict(output)
            self._sees_all = False
        return kind

    def prove(self, losses: Tensor) -> Proof:
        """End the forward pass and return the finding; a program without fault will be recognised."""
        candidate = self._candidate
        node: object = losses.grad_fn
        # torch chooses among its own nodes as it likes
        users_node = type(node) if isinstance(node, BackwardCFunction) else type(None)
        # the usual case: a known program from beginning to end, and nothing after its losses
        if candidate is not None and self.expected.place == len(candidate.entries):
            is_same = getattr(losses, self._attribute, 0) - self._number == candidate.losses and not self._errors
            is_same = is_same and candidate.node is users_node and self._num_forks == FORKS.number
            is_usual = self._suspected is None and torch.initial_seed() == self._seed
            if is_same and (is_usual or self._suspicions.doubt is None):
                numbers = tuple(self._numbers)
                return Proof(self._whole, candidate.uses, (), None, candidate.kind, numbers, known=candidate)
        self._losses = self._number_of_result(losses)
        if self._candidate is not None:
            self._log = self._candidate.beginning(self._num_calls, self._num_made, self._num_uses)
        end = len(self._log.entries) if self._losses is None else self._log.made_after[self._losses]
        candidate, kind = self._finished or self._candidate, kind_of(self._log.entries[:end])
        self._node = users_node
        if self._node is not type(None):
            self._note_node(losses.grad_fn, losses)
        late = self._suspicions.write_after(self._log.entries[end:], end, self._losses, self._log.made_after)
        if late is not None:
            reads = [*self._errors, *(() if self.tracer is None else self.tracer.trace.reads)]
            return Proof(
                late, self._log.uses, reads, Trace(num_examples=self._num_examples), kind_of(self._log.entries[:end])
            )
        is_known = candidate is not None and candidate.losses == self._losses and len(candidate.entries) == end
        doubt = self.doubt()
        is_known = is_known and doubt is None and not self._errors
        if is_known and candidate is not None and candidate.node is self._node:
            self.is_lost = False
            return Proof(self._whole, candidate.uses, (), None, candidate.kind, tuple(self._numbers), known=candidate)
        if self.tracer is None:
            # it ended earlier than the known program with the same beginning, which was proven with that program
            verdict = doubt or self._ended_early(self._candidate)
            trace, kind = Trace(num_examples=self._num_examples), kind_of(self._log.entries[:end])
            return Proof(verdict, self._log.uses, self._errors, trace, kind, tuple(self._numbers))
        spec, trace = self.tracer.spec(losses), self.tracer.trace
        verdict, trace.losses, trace.memory_of_losses = spec.verdict, spec.serial, spec.memory
        trace.end()
        # one of several examples must not have all the losses
        is_elsewhere = isinstance(verdict, Place) and verdict != self._whole and self._num_examples > 1
        if is_elsewhere or isinstance(verdict, Rows):
            verdict = Cause(Fault.MIXES, "the loss function", "its losses are not one per example, in order")
        if doubt is not None and not isinstance(verdict, Cause):
            verdict = doubt
        if verdict is None:
            verdict = Cause(Fault.NO_RULE, "the loss function", "its losses do not lie along the examples")
        reads = [*self._errors, *trace.reads]
        numbers = tuple(self._numbers[: num_numbers_in(self._log.entries[:end])])
        return Proof(verdict, self._log.uses, reads, trace, kind, numbers, self._is_whole, has_code=self.has_code)

    def _number_of_result(self, tensor: Tensor) -> int | None:
        number: int = getattr(tensor, self._attribute, 0) - self._number
        return number if 0 <= number < _MOST_RESULTS else None

    def _ended_early(self, candidate: Known | None) -> Verdict:
        if candidate is not None and self._losses is not None and candidate.verdicts[self._losses] == self._whole:
            return self._whole
        return Cause(Fault.NO_RULE, "the loss function", "it ends in another way than before")

    def remember(self) -> None:
        """Let the program be recognised from now on, if its calls show all that it does."""
        if self.tracer is None or not self._sees_all or self._losses is None or self.tracer.trace.is_hidden:
            return
        named = {source.parameters: source.tensor for source in self._parameters.values() if not source.derived}
        self._programs.add(self._num_examples, self._log.up_to(self._losses, self._node, named))
