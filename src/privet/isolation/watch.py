"""What a session knows about the programs it ran: which were proven by rule, which were only tried, what was waived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from privet.errors import UnsupportedModel
from privet.isolation.follow import Programs, Proof
from privet.isolation.place import Cause, Fault, Place
from privet.isolation.reads import Read
from privet.isolation.sizes import compare
from privet.isolation.tracer import Trace

# The longest reason that a ledger takes.
_LONGEST = 200


ONE_SIZE = "the program met batches of one size only"


class Check(Enum):
    """A check that a user may waive, in so many words; what is waived stands in the guarantee."""

    READS = "numbers of the examples that the program reads into Python"
    EXPERIMENTS = "experiments on made-up examples"


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A check that the user answers for.

    Attributes:
        check: Which check is not held.
        because: Why nothing can go wrong, in the user's words; printed with the guarantee.
    """

    check: Check
    because: str

    def __str__(self) -> str:
        """Return the assumption that takes the place of the check."""
        return f"the user vouches for {self.check.value}: {self.because}"


@dataclass(slots=True)
class _Family:
    """Programs that differ in the number of examples alone."""

    trace: Trace | None = None
    step: int = 0  # in which it was traced: from one step to the next the program's own numbers may change
    met: int = 0  # the step in which it was met first
    is_compared: bool = False


@dataclass(kw_only=True)
class Watch:
    """Judges the programs of one session.

    Guarantee:
        A program whose proof is accepted gives every example a loss that depends on that example, on public values and
        on randomness alone. Its rules hold for the calls that were made, so another program is judged anew.
    """

    waivers: Sequence[Waiver] = ()
    programs: Programs = field(default_factory=Programs)
    step: int = 0
    _families: dict[Any, _Family] = field(default_factory=dict)
    _tried: dict[str, None] = field(default_factory=dict)
    _waived: dict[str, None] = field(default_factory=dict)

    @property
    def tried(self) -> tuple[str, ...]:
        """Why some of what ran was tried by experiment instead of proven by rule; empty if all was proven."""
        return (*self._tried, *self._waiting)

    @property
    def settled(self) -> tuple[str, ...]:
        """What may have been told as tried and is proven by now."""
        return () if self._waiting else (ONE_SIZE,)

    @property
    def _waiting(self) -> tuple[str, ...]:
        return (ONE_SIZE,) if any(not family.is_compared for family in self._families.values()) else ()

    @property
    def has_tried(self) -> bool:
        """Whether any program was only tried."""
        return bool(self._tried)

    def num_kinds_besides(self, calls: tuple[Callable[..., Any], ...]) -> int:
        """How many kinds of programs were met, besides that of some calls; batches of other sizes are of one kind."""
        return len(self._families) + len(self._tried) - (calls in self._families)

    @property
    def waived(self) -> tuple[str, ...]:
        """The waivers that were needed."""
        return tuple(self._waived)

    @property
    def wants_two_sizes(self) -> bool:
        """Whether a program waits to be compared with itself on another number of examples.

        Not at every step for ever: a program that is another at every call (layers skipped at random) may never be.
        """
        if not self._families:
            return True
        is_turn = self.step & (self.step - 1) == 0
        return any(
            family.trace is not None and (is_turn or family.met >= self.step - 1) for family in self._families.values()
        )

    def has_waived(self, check: Check) -> bool:
        """Whether the user answers for a check; noted for the guarantee if so."""
        for waiver in self.waivers:
            if waiver.check is check:
                self._waived[str(waiver)[:_LONGEST]] = None
                return True
        return False

    def judge(self, proof: Proof) -> bool:
        """Return whether a forward pass is proven to keep its examples apart; False if only experiments can tell.

        Raises:
            UnsupportedModel: if it mixes them, or reads numbers of theirs into Python, naming the line.
        """
        if proof.trace is None:
            return True
        self._check_reads(proof.refused)
        if isinstance(proof.losses, Cause):
            if proof.losses.fault is Fault.MIXES:
                raise mixes(proof.losses)
            if proof.trace.num_examples == 1:  # nobody to mix with
                return True
            self.note_tried(str(proof.losses))
            return False
        if proof.trace.num_examples == 1:  # nobody to mix with
            return True
        faults = [verdict for verdict in proof.uses if isinstance(verdict, Cause)]
        if faults:
            self.note_tried(str(faults[0]))
            return False
        if not all(isinstance(verdict, Place) for verdict in proof.uses):
            self.note_tried("a parameter makes rows of its own")
            return False
        self._check_sizes(proof.calls, proof.trace)
        return True

    def note_tried(self, reason: str) -> None:
        """Note that something was not proven by rule."""
        self._tried[reason[:_LONGEST]] = None

    def check_backward(self, trace: Trace) -> None:
        """Refuse user code of a backward pass that reads numbers into Python.

        Raises:
            UnsupportedModel: naming the line.
        """
        self._check_reads([read for read in trace.reads if not read.allowed_because])

    def _check_reads(self, refused: Sequence[Read]) -> None:
        if refused and not self.has_waived(Check.READS):
            read = refused[0]
            raise UnsupportedModel(
                f"The program reads numbers of the examples into Python ({read.operation} at {read.line}). What Python "
                "does with them cannot be followed: it may choose or scale the losses of other examples. Keep them in "
                "torch (torch.where instead of if), leave the line out, or, if no loss depends on it, say so: "
                "privatize(..., waive=[Waiver(check=Check.READS, because='...')])."
            )

    def _check_sizes(self, calls: tuple[Callable[..., Any], ...], trace: Trace) -> None:
        family = self._families.setdefault(calls, _Family(met=self.step))
        if family.is_compared:
            return
        if family.trace is None or family.step != self.step:
            family.trace, family.step = trace, self.step
            return
        if family.trace.num_examples == trace.num_examples:
            return
        comparison = compare(family.trace, trace)
        if comparison.fault is not None:
            raise mixes(comparison.fault)
        family.is_compared = comparison.is_possible
        if comparison.is_possible:
            family.trace = None


def mixes(cause: Cause) -> UnsupportedModel:
    """Return the error that names what mixes examples, and where."""
    where = f" ({cause.line})" if cause.line else ""
    return UnsupportedModel(
        f"Operation '{cause.operation}'{where} mixes the examples of a batch: {cause.reason}. No example's gradient "
        "can then be bounded by itself. Usual causes: batch normalisation, a loss averaged over the batch or divided "
        "by a count of it, in-batch negatives, statistics of the batch (also detached ones). Make each example's loss "
        "depend on that example alone."
    )
