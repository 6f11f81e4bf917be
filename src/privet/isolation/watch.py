"""The programs that a session ran: which were proven by rule, which were only tried, and which checks were waived."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from privet.errors import UnsupportedModel
from privet.isolation.place import Cause, Fault, Place
from privet.isolation.programs import Kind, Programs, Proof
from privet.isolation.reads import Read
from privet.isolation.signs import agree
from privet.isolation.sizes import Comparison, compare
from privet.isolation.traces import Trace

# The longest reason that a ledger takes.
_LONGEST = 200


_OTHER_NUMBERS = "floats or constants that it uses depend on how many examples are in the batch"
ONE_SIZE = "the program met batches of one size only"


class Check(Enum):
    """A check that a user may waive explicitly; the guarantee names every waived check."""

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


# So many traces are kept to compare those of other sizes with: they are long.
_MOST_TRACES = 32


@dataclass(slots=True, eq=False)
class Family:
    """Programs that differ in the number of examples alone.

    Attributes:
        kind: The functions and shapes that they have in common.
        is_compared: Whether it was seen on two sizes, with the numbers that it uses now.
        trace: The trace of the run that was compared last, or that waits; None if it was dropped or is not whole.
        numbers: Floats and constants of the run that was compared last, or that waits.
        base: Those of the first run of all, in which a tracer saw the origin of each.
        step: The step of the run that waits: from one step to the next a program's own numbers may change.
        num_examples: The number of examples of that run.
        awaits_numbers: Whether only its numbers wait to be compared, since it was recognised.
    """

    kind: Kind
    base: Sequence[Any] = ()
    is_compared: bool = False
    trace: Trace | None = None
    numbers: Sequence[Any] = ()
    step: int = 0
    num_examples: int = 0
    awaits_numbers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """Evidence for the isolation of examples besides proof.

    Attributes:
        tried: Why some of the programs were tried by experiment instead of proven by rule; empty if all were proven.
        settled: Reasons that may have been given as tried, and are proven by now.
        waived: The waivers that were needed.
    """

    tried: tuple[str, ...] = ()
    settled: tuple[str, ...] = (ONE_SIZE,)
    waived: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Watch:
    """Judges the programs of one session.

    Attributes:
        waivers: The checks that the user answers for.
        programs: Those that were proven.
        step: The number of the step.
        cuts_until: The last step in which a batch is better cut in two than repeated, so that a program is seen on two
            sizes: while none was met, and until the step after one in which a program used other numbers.
        latest: The programs of the last batch, if they wait for a comparison.
        evidence: Another object whenever something changed.

    Guarantee:
        A program whose proof is accepted gives every example a loss that depends on that example, on public values and
        on randomness alone. Its rules hold for the calls that were made, so another program is judged anew.
    """

    waivers: Sequence[Waiver] = ()
    programs: Programs = field(default_factory=Programs)
    step: int = 0
    cuts_until: float = math.inf
    latest: Family | None = None
    evidence: Evidence = field(default_factory=Evidence)
    _probed: Family | None = None  # of which two sizes are wanted just now
    _decides: bool = True
    _families: dict[Kind, Family] = field(default_factory=dict)
    _tried: dict[str, None] = field(default_factory=dict)
    _waived: dict[str, None] = field(default_factory=dict)
    _begun: Proof | None = None  # whose backward pass runs code of the user's own, which is judged with the rest

    def __deepcopy__(self, memo: dict[int, Any]) -> Watch:
        """A copy of a model whose engine is hooked to it brings no session of its own."""
        return self

    @property
    def has_tried(self) -> bool:
        """Whether any program was only tried."""
        return bool(self._tried)

    def num_kinds_besides(self, calls: Kind) -> int:
        """How many kinds of programs were met, besides that of some calls; batches of other sizes are of one kind."""
        return sum(kind[:-1] != calls for kind in self._families) + len(self._tried)

    @property
    def has_met_none(self) -> bool:
        """Whether no program of several examples was judged yet."""
        return not self._families and not self._tried

    @contextmanager
    def running(self) -> Iterator[None]:
        """Judge a batch that a comparison may follow, if it leaves :attr:`latest` waiting."""
        self.latest, self._decides = None, False
        try:
            yield
        finally:
            self._decides = True

    @contextmanager
    def probing(self, family: Family) -> Iterator[None]:
        """Judge a repetition of a batch on another number of examples, with the same random numbers."""
        self._probed, self.programs.traces_all = family, True
        try:
            with self.repeating():
                yield
        finally:
            self._probed, self.programs.traces_all = None, False

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Let a batch run again with the same random numbers, which is no act of the program."""
        self.programs.drawn.is_repeating = True
        try:
            yield
        finally:
            self.programs.drawn.is_repeating = False

    def has_waived(self, check: Check) -> bool:
        """Whether the user answers for a check; noted for the guarantee if so."""
        for waiver in self.waivers:
            if waiver.check is check:
                self._note(self._waived, str(waiver))
                return True
        return False

    def judge(self, proof: Proof) -> bool:
        """Return whether a forward pass is proven to keep its examples apart; False if only experiments can tell.

        Raises:
            UnsupportedModel: if it mixes them, or reads numbers of theirs into Python, naming the line.
        """
        self._begun = None
        if proof.trace is None:
            self.check_numbers(proof)
            return True
        self._check_reads(proof.refused)
        if isinstance(proof.losses, Cause):
            if proof.losses.fault is Fault.MIXES:
                raise mixes(proof.losses)
            if proof.trace.num_examples == 1:  # a single example cannot be mixed
                return True
            self.note_tried(str(proof.losses))
            return False
        if proof.trace.num_examples == 1:  # a single example cannot be mixed
            return True
        if proof.has_code:
            self._begun = proof
        else:
            self._check_sizes(proof, proof.trace)
        return True

    def note_tried(self, reason: str) -> None:
        """Note that something was not proven by rule."""
        self._note(self._tried, reason)

    def _note(self, reasons: dict[str, None], reason: str) -> None:
        if reason[:_LONGEST] not in reasons:
            reasons[reason[:_LONGEST]] = None
            self._renew_evidence()

    def _renew_evidence(self) -> None:
        waiting = (ONE_SIZE,) if any(not family.is_compared for family in self._families.values()) else ()
        settled = () if waiting else (ONE_SIZE,)
        self.evidence = Evidence(tried=(*self._tried, *waiting), settled=settled, waived=tuple(self._waived))

    def check_backward(self, trace: Trace, doubt: Cause | None) -> None:
        """Judge the user's own code of a backward pass, and the program whose forward pass was judged before.

        Args:
            trace: The operations of that code, and its reads.
            doubt: Why its acts are not proven, if they are not.

        Raises:
            UnsupportedModel: naming the line.
        """
        proof, self._begun = self._begun, None
        self._check_reads([read for read in trace.reads if not read.allowed_because])
        if trace.num_examples == 1:  # a single example cannot be mixed
            return
        if doubt is not None and str(doubt)[:_LONGEST] not in self._tried:
            self.note_tried(f"the backward pass: {doubt}")
        if proof is not None and proof.trace is not None:
            self._check_sizes(proof, proof.trace.and_then(trace))

    def _check_reads(self, refused: Sequence[Read]) -> None:
        if refused and not self.has_waived(Check.READS):
            read = refused[0]
            raise UnsupportedModel(
                f"The program reads numbers of the examples into Python ({read.operation} at {read.line}). What Python "
                "does with them cannot be followed: it may choose or scale the losses of other examples. Read metrics "
                "after the line that computes the losses, which is allowed; keep other numbers in torch (torch.where "
                "instead of if), leave the line out, or, if no loss depends on it, say so: "
                "privatize(..., waive=[Waiver(check=Check.READS, because='...')])."
            )

    def check_numbers(self, proof: Proof) -> None:
        """Compare the numbers that a recognised program uses with those for which it was seen on two sizes.

        If they differ, the program waits in :attr:`latest` for a comparison with the new ones.
        """
        family = self._families.get(proof.kind)
        if family is None:
            return
        self.latest = family
        assert isinstance(proof.losses, Place), "a program that is recognised was proven"
        size = proof.losses.num
        if family.is_compared:
            uses_numbers = family.numbers or proof.numbers
            if uses_numbers and not agree(family.numbers, proof.numbers, family.base):
                self.cuts_until = self.step + 1
                self._wait(family, proof, None, size)
        elif family.awaits_numbers and family.step == self.step and family.num_examples != size:
            family.is_compared = agree(family.numbers, proof.numbers, family.base)
            self._renew_evidence()
            if not family.is_compared:  # by chance, or for its size: the same draws will tell
                self._wait(family, proof, None, size)

    def _wait(self, family: Family, proof: Proof, trace: Trace | None, size: int) -> None:
        family.is_compared, family.step, family.numbers, family.num_examples = False, self.step, proof.numbers, size
        family.trace, family.awaits_numbers = trace if proof.is_whole else None, trace is None
        self._renew_evidence()

    def _check_sizes(self, proof: Proof, trace: Trace) -> None:
        """Compare a program with itself on another number of examples.

        A trace that departed from a known program in its middle is compared with nothing: two more are made then.
        """
        family = self._families.get(proof.kind)
        if self._probed is not None and self._probed is not family:
            return  # by chance, or for its size, it took another way: nothing is known of the one that waits
        if family is None:
            self.cuts_until = -1.0 if math.isinf(self.cuts_until) else self.cuts_until
            self.latest = self._families[proof.kind] = Family(kind=proof.kind, base=proof.numbers)
            self._wait(self.latest, proof, trace, trace.num_examples)
            return
        self.latest, other = family, family.trace if proof.is_whole else None
        is_other_size = other is not None and other.num_examples != trace.num_examples
        comparison = compare(other, trace) if other is not None and is_other_size else Comparison(False)
        same = agree(family.numbers, proof.numbers, family.base)
        if comparison.is_possible and comparison.fault is None and same:
            self._settle(family, proof, trace)
        elif self._probed is not None:
            self._decide(family, proof, trace, comparison, same=same)
        elif family.is_compared or family.step != self.step or not self._decides:
            if family.is_compared and not same:
                self.cuts_until = self.step + 1
            self._wait(family, proof, trace, trace.num_examples)
        elif comparison.fault is not None:
            raise mixes(comparison.fault)

    def _settle(self, family: Family, proof: Proof, trace: Trace) -> None:
        family.is_compared, family.numbers, family.trace, family.step = True, proof.numbers, trace, self.step
        self._renew_evidence()
        kept = [found for found in self._families.values() if found.is_compared and found.trace is not None]
        for found in kept[:-_MOST_TRACES]:
            found.trace = None

    def _decide(self, family: Family, proof: Proof, trace: Trace, found: Comparison, *, same: bool) -> None:
        """Refuse a difference between two runs of one step that draw the same random numbers."""
        if found.is_possible and found.fault is not None:
            raise mixes(found.fault)
        if not same:
            raise mixes(Cause(Fault.MIXES, "the program", _OTHER_NUMBERS))
        if family.trace is None and proof.is_whole:
            family.trace, family.numbers = trace, proof.numbers


def mixes(cause: Cause) -> UnsupportedModel:
    """Return the error that names the operation that mixes examples, and its line."""
    where = f" ({cause.line})" if cause.line else ""
    return UnsupportedModel(
        f"Operation '{cause.operation}'{where} mixes the examples of a batch: {cause.reason}. No example's gradient "
        "can then be bounded by itself. Usual causes: batch normalisation, a loss averaged over the batch or divided "
        "by a count of it, in-batch negatives, statistics of the batch (also detached ones). Make each example's loss "
        "depend on that example alone."
    )
