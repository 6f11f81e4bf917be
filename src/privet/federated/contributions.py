"""What a party contributes to a round, and where the noise that hides it is added.

Three ways, from the most accurate to the one with the widest protection. All numbers here are public.

=====================  ===============  ==================  ==========================================
piece                  protected        noise added by      promise holds against
=====================  ===============  ==================  ==========================================
:class:`ClippedSums`   one record       the coordinator     everyone but the coordinator
:class:`Sessions`      one record       each party          everyone, the coordinator too
:class:`ClientUpdates` one whole party  the coordinator     everyone but the coordinator
=====================  ===============  ==================  ==========================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from privet import checks
from privet.vocabulary import Unit


@runtime_checkable
class Contribution(Protocol):
    """A way to contribute: public constants only."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """What a plan for this way may protect."""
        ...

    @property
    def steps_per_round(self) -> int:
        """How many steps of the plan one round of messages takes."""
        ...

    @property
    def has_central_noise(self) -> bool:
        """Whether the coordinator adds the noise, and so must be trusted."""
        ...

    @property
    def samples_parties(self) -> bool:
        """Whether the coordinator draws parties, not parties their records, and clips what each of them sends."""
        ...

    def longest_message(self, *, bound: float, max_records: int, noise_length: float | None, divisor: float) -> float:
        """Return the length that no honest message exceeds, rounding aside; infinite where none is known.

        Args:
            bound: The longest contribution of one unit to a sum.
            max_records: More records than this no party has.
            noise_length: A length that Gaussian noise of a step does not reach; None for other noise.
            divisor: By what noisy sums are divided.
        """
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold of the federation for the guarantee to be about it."""
        ...


_TRUST = "the coordinator is trusted: it sees what single parties send, and adds the noise"


@dataclass(frozen=True, kw_only=True)
class ClippedSums:
    """Each party samples its records, clips their gradients and sends the sum; the coordinator adds noise once.

    This is the central algorithm with the summation spread over parties: independent coins of the parties make one
    Poisson sample of all records, and a sum of sums has the sensitivity of one record. So the plan, its cost and its
    accuracy are those of training on all records in one place.
    """

    @property
    def units(self) -> tuple[Unit, ...]:
        """One record, or one person whose records lie with one party as one item."""
        return (Unit.RECORD, Unit.PERSON)

    @property
    def steps_per_round(self) -> int:
        """A round of messages is a step."""
        return 1

    @property
    def has_central_noise(self) -> bool:
        """Sums travel without noise."""
        return True

    @property
    def samples_parties(self) -> bool:
        return False

    def longest_message(self, *, bound: float, max_records: int, noise_length: float | None, divisor: float) -> float:
        return bound * max_records

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Trust in the coordinator, honest clipping, and silence that says nothing."""
        return (
            _TRUST,
            "each party samples and clips as agreed",
            "whether a party answers in time does not depend on a single record",
        )


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Each party runs a private session of its own and sends how far its weights moved; the coordinator averages.

    Noise of every party adds up: at the same plan the mean over K parties carries sqrt(K) times the noise that a
    trusted coordinator would add.

    Attributes:
        learning_rate: Of each party's steps.
        local_steps: Private steps a party takes between two messages.
    """

    learning_rate: float
    local_steps: int = 1

    def __post_init__(self) -> None:
        """Refuse rates that are not positive and fractional steps."""
        object.__setattr__(self, "learning_rate", checks.positive("learning_rate", self.learning_rate))
        object.__setattr__(self, "local_steps", checks.count("local_steps", self.local_steps))

    @property
    def units(self) -> tuple[Unit, ...]:
        """One record, or one person whose records lie with one party as one item."""
        return (Unit.RECORD, Unit.PERSON)

    @property
    def steps_per_round(self) -> int:
        """The local steps."""
        return self.local_steps

    @property
    def has_central_noise(self) -> bool:
        """What travels is private already."""
        return False

    @property
    def samples_parties(self) -> bool:
        return False

    def longest_message(self, *, bound: float, max_records: int, noise_length: float | None, divisor: float) -> float:
        if noise_length is None:
            return math.inf
        return self.learning_rate * self.local_steps * (bound * max_records + noise_length) / divisor

    @property
    def assumptions(self) -> tuple[str, ...]:
        """A record has one home."""
        return ("each record lies with one party only, which trusts nobody else",)


@dataclass(frozen=True, kw_only=True)
class ClientUpdates:
    """A sampled party trains on its records and sends its clipped update; the coordinator clips again and adds noise.

    This is federated averaging with privacy at the level of a client (McMahan, Ramage, Talwar and Zhang 2018). Parties
    are sampled by the plan's coins, so ``plan.sampling`` is about parties and its batch size counts parties.

    Attributes:
        learning_rate: Of a party's own training.
        local_epochs: Passes of a party over its records.
        local_batch_size: Records per step of a party's own training.
    """

    learning_rate: float
    local_epochs: int = 1
    local_batch_size: int = 32

    def __post_init__(self) -> None:
        """Refuse rates that are not positive and fractional counts."""
        object.__setattr__(self, "learning_rate", checks.positive("learning_rate", self.learning_rate))
        for name in ("local_epochs", "local_batch_size"):
            object.__setattr__(self, name, checks.count(name, getattr(self, name)))

    @property
    def units(self) -> tuple[Unit, ...]:
        """Everything one party holds."""
        return (Unit.CLIENT,)

    @property
    def steps_per_round(self) -> int:
        """A round of messages is a step of the plan, however long the parties train."""
        return 1

    @property
    def has_central_noise(self) -> bool:
        """Updates travel without noise."""
        return True

    @property
    def samples_parties(self) -> bool:
        return True

    def longest_message(self, *, bound: float, max_records: int, noise_length: float | None, divisor: float) -> float:
        return bound

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Trust in the coordinator, and secret participation."""
        return (_TRUST, "nobody but the coordinator and the party itself learns in which rounds it took part")


CONTRIBUTIONS: Mapping[str, type[Any]] = {
    "clipped_sums": ClippedSums,
    "sessions": Sessions,
    "client_updates": ClientUpdates,
}
