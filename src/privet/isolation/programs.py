"""Programs that were proven, and the finding on one forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from privet.isolation.drawing import Drawn, DrawnStates
from privet.isolation.place import Verdict
from privet.isolation.reads import Read
from privet.isolation.signs import Entry, Expected, all_expected, kind_of
from privet.isolation.traces import Trace

CONSTANT = "_privet_constant"  # the attribute of a tensor that no call has made: its mark
Kind = tuple[Any, ...]
"""The functions that a program calls, and the shapes of one example: the same for batches of other sizes."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Mark:
    """The number of a constant, kept among its attributes; the constant may be a parameter or buffer of the user's.

    No weak reference points to the constant itself: ``torch.utils.swap_tensors`` refuses tensors that have one. It
    swaps the attributes with the memory, so a mark stays with the memory that it was given to.
    """

    number: int
    attributes: dict[str, Any]  # of the constant, this mark among them

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return set, ()  # a copy of the constant is another constant; torch.load accepts an empty set


@dataclass(slots=True, eq=False)
class Known:
    """A program that was proven for one number of examples.

    Attributes:
        entries: Its calls up to the one that makes the losses.
        verdicts: Where the examples lie in the result of each call, by number of the result.
        made_after: How many calls there were when each result was made.
        uses: Where they lie where parameters meet them, in order.
        losses: The number of the losses among the results.
        node: The kind of node that sends gradients back from the losses.
        kind: What it has in common with batches of other sizes.
        notes: For each call, a note of the observer of the forward pass, or None; see :meth:`Follower.before`.
        draws: Which calls draw from a global generator, and where.
        expected: The calls, compiled into comparisons, and the end.
        prepared: How an engine computes the gradients of this program, if it has prepared that.
    """

    entries: list[Entry]
    verdicts: list[Verdict]
    made_after: list[int]
    uses: list[Verdict]
    losses: int
    node: type
    kind: Kind
    notes: Sequence[Any]
    draws: Mapping[int, Drawn]
    expected: Sequence[Expected]
    prepared: Any = None

    def beginning(self, num_calls: int, num_made: int, num_uses: int) -> Log:
        """Return the log of its first calls, for a program that begins with the same calls."""
        return Log(
            entries=self.entries[:num_calls], notes=dict(enumerate(self.notes[:num_calls])), draws=dict(self.draws),
            verdicts=self.verdicts[:num_made], made_after=self.made_after[:num_made],
            uses=self.uses[:num_uses],
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class Log:
    """The calls and results of an unknown program so far; the attributes are those of :class:`Known`."""

    entries: list[Entry] = field(default_factory=list)
    notes: dict[int, Any] = field(default_factory=dict)
    draws: dict[int, Drawn] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    made_after: list[int] = field(default_factory=list)
    uses: list[Verdict] = field(default_factory=list)

    def up_to(self, losses: int, node: type, parameters: Mapping[frozenset[int], Tensor]) -> Known:
        """Return the program that ends with the call that made a result; ``parameters`` are given by their names."""
        end = self.made_after[losses]
        num_made = sum(after <= end for after in self.made_after)
        entries, notes = self.entries[:end], [self.notes.get(place) for place in range(end)]
        return Known(
            entries=entries, verdicts=self.verdicts[:num_made], made_after=self.made_after[:num_made], uses=self.uses,
            losses=losses, node=node, kind=kind_of(entries), notes=notes, draws=self.draws,
            expected=all_expected(entries, notes, self.draws, parameters),
        )  # fmt: skip


@dataclass(slots=True)
class Programs:
    """All programs of a session that were proven."""

    by_size: dict[int, list[Known]] = field(default_factory=dict)
    written: dict[int, StorageWeakRef] = field(default_factory=dict)  # public memory that examples were written into
    drawn: DrawnStates = field(default_factory=DrawnStates)  # from which generators have drawn
    traces_all: bool = False  # whether known programs are traced, too
    most: int = 1024
    _marks: WeakSet[Mark] = field(default_factory=WeakSet)

    def of(self, num_examples: int) -> list[Known]:
        """Return those of one number of examples, the latest used first."""
        return [] if self.traces_all else self.by_size.get(num_examples, [])

    def mark(self, constant: Tensor, number: int) -> None:
        """Give a constant its number."""
        attributes = vars(constant)
        mark = attributes[CONSTANT] = Mark(number, attributes)
        self._marks.add(mark)

    def unmark(self) -> None:
        """Take the numbers off all constants, when a session ends."""
        for mark in list(self._marks):
            mark.attributes.pop(CONSTANT, None)
        self._marks.clear()

    def write(self, tensor: Tensor) -> None:
        """Remember memory that was public and holds examples from now on."""
        with suppress(NotImplementedError, RuntimeError):
            storage = tensor.untyped_storage()
            self.written[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def was_written(self, tensor: Tensor) -> bool:
        """Whether examples were written into the memory of a tensor that knows nothing of it."""
        if not self.written:
            return False
        try:
            key = tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            return False
        found = self.written.get(key)
        if found is not None and found.expired():  # type: ignore[no-untyped-call]
            del self.written[key]
            return False
        return found is not None

    def add(self, num_examples: int, program: Known) -> None:
        """Remember a program; the oldest is forgotten, and proven again, when there are too many."""
        found = self.by_size.setdefault(num_examples, [])
        found.insert(0, program)
        del found[self.most :]


@dataclass(frozen=True, slots=True)
class Proof:
    """The finding on one forward pass.

    Attributes:
        losses: Where the examples lie in the losses, or why they have no place.
        uses: Where they lie where parameters meet them.
        reads: Numbers that were handed to Python.
        trace: The trace of the tracer; None if the program was recognised.
        kind: What it has in common with batches of other sizes.
        numbers: Floats and constants that it used.
        is_whole: Whether the trace, if there is one, begins with the program.
        known: The program that was recognised, if it was.
        has_code: Whether code of the user's own runs in its backward pass, which is followed there.
    """

    losses: Verdict
    uses: Sequence[Verdict]
    reads: Sequence[Read]
    trace: Trace | None
    kind: Kind = ()
    numbers: Sequence[Any] = ()
    is_whole: bool = False
    known: Known | None = None
    has_code: bool = False

    @property
    def calls(self) -> Kind:
        """The functions that were called."""
        return self.kind[:-1]

    @property
    def refused(self) -> Sequence[Read]:
        """The reads that no rule allows; a read after the losses were made does not reach them."""
        made = self.trace.losses if self.trace is not None else None
        return [read for read in self.reads if not read.allowed_because and (made is None or made >= read.serial)]
