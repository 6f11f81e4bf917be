"""Acts of a program beside its calls, which no rule follows: they are noted, and some are compared afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from privet.isolation.again import Hooks, Repeatable, is_faithful, is_of_checkpoint
from privet.isolation.asking import SHARING, writes
from privet.isolation.drawing import GlobalDraws
from privet.isolation.lines import user_line
from privet.isolation.place import Cause, Fault
from privet.isolation.signs import Entry, Function, number_in


@dataclass(slots=True)
class Suspicions:
    """Acts of one forward pass that its calls do not show.

    Attributes:
        seed: Of torch's generator when it began.
        asks_for_nodes: Whether it asked for nodes of the graph.
        was_written: Whether code that shows no calls wrote into a tensor.
        draws_again: Whether a generator was set back.
        is_reseeded: Whether it drew from another seed.
        changes: Why tensors that autograd saved may change: hooks on saved tensors.
        handed_out: Tensors whose memory Python holds, with copies of their bytes.
        repeatable: The calls that checkpoints will repeat.
    """

    seed: int
    asks_for_nodes: bool = False
    was_written: bool = False
    draws_again: bool = False
    is_reseeded: bool = False
    changes: Cause | None = None
    handed_out: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    repeatable: Repeatable = field(default_factory=Repeatable)

    def note_hooks(self, hooks: Hooks, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a call whose tensors autograd does not keep as they are for the backward pass."""
        is_compared = is_of_checkpoint(hooks) and self.repeatable.note(hooks, function, args, kwargs)
        if not is_compared and not is_faithful(hooks) and self.changes is None:
            reason = "hooks on saved tensors may give back other numbers to the backward pass"
            self.changes = Cause(Fault.NO_RULE, "saved_tensors_hooks", reason, user_line())

    def note_draws(self, draws: GlobalDraws) -> None:
        """Note draws of the global generators whose numbers may belong to places in the batch."""
        self.draws_again |= draws.is_set_back
        self.is_reseeded |= draws.is_reseeded

    def hand_out(self, tensors: Sequence[Tensor]) -> None:
        """Note tensors whose memory Python was given."""
        self.handed_out += [(tensor, _bytes_of(tensor).clone()) for tensor in tensors]

    @property
    def has_changed_memory(self) -> bool:
        """Whether memory that Python was given holds something else by now."""
        return any(not torch.equal(_bytes_of(tensor), before) for tensor, before in self.handed_out)

    def write_after(
        self, entries: Sequence[Entry], end: int, losses: int | None, made_after: Sequence[int]
    ) -> Cause | None:
        """Return why the losses do not stand for their graph: something that was made with them was changed later."""
        if self.has_changed_memory:
            return Cause(
                Fault.MIXES, "the program", "it changes tensors that the losses were computed from, past torch"
            )
        shared: set[int] = set()  # reached past torch's counters
        for place, entry in enumerate(entries, end + 1):
            function, number = entry.function, number_in(entry.signs[0]) if entry.signs else None
            if number is None or losses is None:
                continue
            # torch itself notices other writes into tensors that a backward pass needs
            if number <= losses and function in SHARING:
                shared.update(result for result, after in enumerate(made_after) if after == place)
            if number in shared and writes(function):
                name = getattr(function, "__name__", str(function))
                return Cause(Fault.MIXES, name, "it changes a tensor behind the losses after they were computed")
        return None

    @property
    def doubt(self) -> Cause | None:
        """Why the program cannot be proven: an act that no rule follows, also one after the losses were made."""
        if self.asks_for_nodes:
            return Cause(Fault.NO_RULE, "the program", "it asks for a node of the graph, where hooks may be put")
        if self.changes is not None:
            return self.changes
        if self.was_written:
            return Cause(Fault.NO_RULE, "the program", "a tensor was changed by code that shows no calls")
        if self.draws_again:
            reason = "a generator was set back to an earlier state: its draws depend on the place in the batch"
            return Cause(Fault.NO_RULE, "Generator", reason)
        if self.is_reseeded or torch.initial_seed() != self.seed:
            reason = "the program sets a seed: the draws of an example depend on its place in the batch"
            return Cause(Fault.NO_RULE, "manual_seed", reason)
        return None


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor as bytes, without a copy."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
