"""Random numbers of the global generators: those of an example must not depend on its place in the batch.

Draws of one batch are independent of each other, so it does not matter which example gets which. That ends where a
program sets the generator to a seed or a state of its own: then the first example gets the same numbers in every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import torch
from torch import Generator
from torch._ops import OpOverload

# Operations that draw, on the processor, as many random numbers as the numbers of their arguments ask for.
_UNEVEN = frozenset(
    [
        "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise_",
        "rrelu_with_noise_functional",
    ]
)  # fmt: skip
UNEVEN = "how many random numbers it draws depends on the examples, and later draws tell how many"
# So many states are remembered from which generators have drawn.
_MOST_STATES = 1 << 15


class DrawnStates:
    """The states from which generators have drawn in one session."""

    __slots__ = ("_states", "is_repeating")

    def __init__(self) -> None:
        """Remember none yet."""
        self._states: dict[bytes, None] = {}
        self.is_repeating = False  # whether the library itself has set the generators back, to compare two runs

    def has(self, state: bytes) -> bool:
        """Whether a generator has drawn from a state before; remembered if not."""
        if self.is_repeating:
            return False
        if state in self._states:
            return True
        self._states[state] = None
        if len(self._states) > _MOST_STATES:
            del self._states[next(iter(self._states))]
        return False


def state_of(generator: Generator) -> bytes:
    """Return a digest of the state of a generator; nothing waits for a device."""
    return blake2b(bytes(generator.get_state().numpy()), digest_size=16).digest()


class Drawn(Enum):
    """Where a call draws from a global generator."""

    NOTHING = "nowhere"
    ELSEWHERE = "on a device, or nowhere with its present numbers"
    ON_PROCESSOR = "on the processor"


class GlobalDraws:
    """Watches what one program draws from torch's global generators.

    Attributes:
        latest: What the latest operation drew, since somebody has set it to nothing.
        is_reseeded: Whether a draw came from another seed than the batch began with.
        is_set_back: Whether a draw came from a state from which an earlier one came; on the processor alone.
    """

    __slots__ = ("_seed", "_states", "is_reseeded", "is_set_back", "latest")

    def __init__(self, states: DrawnStates, seed: int) -> None:
        """Watch a program that began with this seed."""
        self._states, self._seed = states, seed
        self.latest, self.is_reseeded, self.is_set_back = Drawn.NOTHING, False, False

    def carry_out(self, operation: Callable[[], Any]) -> Any:
        """Carry out an operation that may draw, and note whether it did."""
        before = state_of(torch.default_generator)
        result = operation()
        self.is_reseeded |= torch.initial_seed() != self._seed
        if state_of(torch.default_generator) != before:
            self.latest = Drawn.ON_PROCESSOR
            self.is_set_back |= self._states.has(before)
        elif self.latest is Drawn.NOTHING:
            self.latest = Drawn.ELSEWHERE
        return result

    def expect(self, drawn: Drawn) -> bool:
        """Note a call that is known to draw; return whether its numbers can be doubted."""
        self.is_reseeded |= torch.initial_seed() != self._seed
        if drawn is Drawn.ON_PROCESSOR:
            self.is_set_back |= self._states.has(state_of(torch.default_generator))
        return self.is_reseeded or self.is_set_back


@lru_cache(maxsize=4096)
def _is_uneven(operation: OpOverload) -> bool:
    return operation._schema.name.partition("::")[2] in _UNEVEN


def draws_unevenly(operation: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the numbers of its arguments decide how many random numbers an operation takes."""
    if not _is_uneven(operation) or args[0].device.type != "cpu":
        return False
    is_trained = args[4] if len(args) > 4 else kwargs.get("training", False)  # of the layer that draws in training only
    return bool(is_trained) or "rrelu" not in operation._schema.name


@lru_cache(maxsize=4096)
def draws(operation: OpOverload) -> bool:
    """Whether an operation takes random numbers."""
    return torch.Tag.nondeterministic_seeded in operation.tags
