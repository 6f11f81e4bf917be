"""Acts of a program that a follower is told of, beside the calls that it compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode

from privet.isolation.asking import SHOWING_MEMORY, read_by
from privet.isolation.drawing import DrawnStates, GlobalDraws, state_of
from privet.isolation.lines import is_asked_by_privet, is_asked_by_torch, is_within, is_written_out
from privet.isolation.place import Cause, Fault, Verdict
from privet.isolation.processes import FORKS
from privet.isolation.reads import Read, checks_only, may_read
from privet.isolation.signs import Function
from privet.isolation.suspicions import Suspicions
from privet.isolation.tracer import Tracer

_GRAPH = ("torch", "autograd", "graph.py")  # torch's own way to hand out nodes


class Code(Protocol):
    """Follows code of the user's own while it runs in the backward pass."""

    def enter(self) -> None:
        """Follow code that begins now."""

    def exit(self) -> None:
        """Follow no longer what began last."""


class Acting:
    """Notes about one forward pass, and the tracer that looks at it."""

    __slots__ = (
        "_drawn", "_draws", "_errors", "_num_examples", "_num_forks", "_num_made", "_seed", "_sees_all", "_suspected",
        "code", "has_hooks", "judge_gradient", "nodes", "places", "tracer",
    )  # fmt: skip
    _draws: GlobalDraws | None
    _drawn: DrawnStates
    _errors: list[Read]
    _num_examples: int
    _num_forks: int
    _num_made: int
    _seed: int
    _sees_all: bool
    _suspected: Suspicions | None
    code: Code | None
    has_hooks: bool
    judge_gradient: Callable[[Verdict, Verdict, str], None] | None
    nodes: dict[Any, dict[int, Verdict]]
    places: dict[tuple[Any, int], Verdict]
    tracer: Tracer | None

    @property
    def _suspicions(self) -> Suspicions:
        """Acts of the program beside its calls; most programs have none."""
        if self._suspected is None:
            self._suspected = Suspicions(self._seed)
        return self._suspected

    @property
    def _watched_draws(self) -> GlobalDraws:
        """What the program draws from the global generators; most programs draw nothing."""
        if self._draws is None:
            self._draws = GlobalDraws(self._drawn, self._seed)
        return self._draws

    @property
    def has_code(self) -> bool:
        """Whether code of the user's own will run in the backward pass."""
        return bool(self.nodes) or self.has_hooks

    def note_reading(self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a call that hands numbers to Python without an operation."""
        if self.tracer is None:
            return
        self.tracer.harmless = checks_only(function, args, kwargs)
        given = read_by(function, args, kwargs)
        if not given or (is_asked_by_torch() and not is_written_out()):
            return
        made = [tensor for tensor in given if self.tracer.has_made(tensor)]
        if any(self.tracer.reads(tensor) for tensor in given):
            self.tracer.read(getattr(function, "__name__", str(function)))
            self._suspicions.hand_out(given)
        elif made and function in SHOWING_MEMORY:
            self.tracer.hand_out(made)
            self._suspicions.hand_out(made)

    def note_generator(self, generator: Generator) -> None:
        """Note a generator of the program's own that numbers are drawn from."""
        self._suspicions.draws_again |= self._drawn.has(state_of(generator))

    def doubt(self) -> Cause | None:
        """Return why acts of the program leave it without a proof."""
        if self._draws is not None and (self._draws.is_reseeded or self._draws.is_set_back):
            self._suspicions.note_draws(self._draws)
        if self._num_forks != FORKS.number:
            return Cause(Fault.NO_RULE, "os.fork", "it copies the process, and nobody sees what the copy reads")
        return self._suspicions.doubt or (None if self.tracer is None else self.tracer.trace.doubt)

    def note_node(self) -> None:
        """Note that the user asks for a node of the graph, on which hooks may be put unseen."""
        if is_asked_by_privet():  # by another session, whose batch is open at the same time
            return
        if not is_asked_by_torch() or is_within(_GRAPH):
            self._sees_all, self._suspicions.asks_for_nodes = False, True

    def note_length(self, tensor: Tensor) -> None:
        """Note that the user asks for a length; one that depends on numbers of the examples is a read."""
        if self.tracer is None:
            return
        if self.tracer.spec(tensor).has_own_length and not is_asked_by_torch():
            self.tracer.read("a length")

    def note_error(self, function: Function) -> None:
        """Note a call that failed: code that catches the error learns something about its arguments."""
        if self.tracer is None:  # which sees errors by itself
            name = f"an error of {getattr(function, '__name__', str(function))}"
            self._errors.append(may_read(name, self._num_made))

    def note_hook(self) -> None:
        """Note that user code will run in the backward pass: the program must be traced every time."""
        self._sees_all, self.has_hooks = False, True

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
        self._suspected = None
        self.judge_gradient = self.code = None
        if self.tracer is not None:
            self.tracer.release()
