"""Programs that were proven, and what a forward pass was found to be."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from privet.isolation.place import Verdict
from privet.isolation.reads import Read
from privet.isolation.signs import Entry, Expected, Function, expected
from privet.isolation.tracer import Trace


@dataclass(slots=True)
class Known:
    """A program that was proven for one number of examples.

    Attributes:
        entries: Its calls up to the one that makes the losses.
        verdicts: Where the examples lie in the result of each call, by number of the result.
        made_after: How many calls there were when each result was made.
        uses: Where they lie where parameters meet them, in order.
        losses: The number of the losses among the results.
        node: The kind of node that sends gradients back from the losses.
        expected: The calls, compiled into comparisons.
    """

    entries: list[Entry]
    verdicts: list[Verdict]
    made_after: list[int]
    uses: list[Verdict]
    losses: int
    node: type
    expected: list[Expected] = field(init=False)

    def __post_init__(self) -> None:
        self.expected = [expected(entry) for entry in self.entries]


@dataclass(slots=True)
class Programs:
    """All programs of a session that were proven."""

    by_size: dict[int, list[Known]] = field(default_factory=dict)
    written: dict[int, StorageWeakRef] = field(default_factory=dict)  # public memory that examples were written into
    most: int = 1024

    def of(self, num_examples: int) -> list[Known]:
        """Return those of one number of examples, the latest used first."""
        return self.by_size.get(num_examples, [])

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
    """What was found out about one forward pass.

    Attributes:
        losses: Where the examples lie in the losses, or why they have no place.
        uses: Where they lie where parameters meet them.
        reads: Numbers that were handed to Python.
        trace: What the tracer saw; None if the program was recognised.
        calls: The functions that were called, which tells kinds of programs apart; empty if it was recognised.
    """

    losses: Verdict
    uses: Sequence[Verdict]
    reads: Sequence[Read]
    trace: Trace | None
    calls: tuple[Function, ...]

    @property
    def refused(self) -> Sequence[Read]:
        """The reads that no rule allows; what is read after the losses were made does not reach them."""
        made = self.trace.losses if self.trace is not None else None
        return [read for read in self.reads if not read.allowed_because and (made is None or made >= read.serial)]
