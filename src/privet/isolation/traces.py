"""The operations of a program on the examples of one physical batch, as a tracer saw them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from privet.isolation.call import Call
from privet.isolation.constants import OnDevice
from privet.isolation.place import Cause
from privet.isolation.reads import Read


@dataclass(slots=True)
class Entry:
    """One operation of a trace: the arguments of its rule, and the numbers that came from Python."""

    call: Call
    mutated: tuple[int, ...] = ()  # serial numbers of the specs that it wrote to
    constant: bytes | OnDevice | None = None  # the numbers of a tensor that was made by Python
    line: str = ""  # where it was asked for


@dataclass(kw_only=True)
class Trace:
    """The operations of a program on the examples of one physical batch."""

    num_examples: int
    entries: list[Entry] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    constants: dict[int, bytes | OnDevice] = field(default_factory=dict)  # small public tensors made elsewhere
    doubt: Cause | None = None  # a call of foreign code, which may do more with the examples than compute its results
    losses: int | None = None  # the serial number of the losses
    memory_of_losses: int = -1  # the memory they lie in
    # serial numbers and memory of what the user's own code hands on in the backward pass: gradients, and what it writes
    # into memory of the forward pass
    sent_back: list[tuple[int, int]] = field(default_factory=list)
    is_hidden: bool = False  # whether an operation came from code that shows no calls, such as scripted code

    def end(self) -> None:
        """Leave out operations after the losses: they have no part in them."""
        made = [place for place, entry in enumerate(self.entries, 1) if self._makes_losses(entry)]
        if made:
            del self.entries[made[-1] :]

    def and_then(self, backward: Trace) -> Trace:
        """Return this trace of a forward pass with the user's own code of the backward pass after it."""
        return replace(
            self, entries=[*self.entries, *backward.entries], constants=self.constants | backward.constants,
            sent_back=backward.sent_back,
        )  # fmt: skip

    def _makes_losses(self, entry: Entry) -> bool:
        return any(spec.serial == self.losses for spec in entry.call.out_specs)
