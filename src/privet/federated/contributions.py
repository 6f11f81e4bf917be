"""Kinds of contributions of a party to a round, and the place where noise is added. All values are public.

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
from typing import Any, ClassVar, Protocol, runtime_checkable

from privet import checks
from privet.federated.messages import Values
from privet.mechanism.executed import ExecutedRound
from privet.vocabulary import Unit


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundResult:
    """The result of one round at a party.

    Attributes:
        values: The values of the message; None if the party has used up its plan.
        executed: The executed rounds, where the party itself adds the noise.
    """

    values: Values | None
    executed: tuple[ExecutedRound, ...] = ()


class PartyRound(Protocol):
    """One round of a party. Every method charges the round, reads records and returns the message."""

    def clipped_sum(self) -> RoundResult:
        """Sum the clipped gradients of sampled records."""
        ...

    def session(self, contribution: Sessions) -> RoundResult:
        """Run private steps of the party's own."""
        ...

    def update(self, contribution: ClientUpdates) -> RoundResult:
        """Train on all records and clip the change of the weights."""
        ...


@runtime_checkable
class Contribution(Protocol):
    """A kind of contribution: public constants only.

    Attributes:
        units: The units of privacy that a plan with this contribution can protect.
        steps_per_round: Number of steps of the plan in one round of messages.
        has_central_noise: Whether the coordinator adds the noise, and therefore must be trusted.
        samples_parties: Whether the coordinator samples parties and clips their updates, instead of parties sampling
            records.
        assumptions: Assumptions about the federation that the guarantee depends on.
    """

    units: ClassVar[tuple[Unit, ...]]
    has_central_noise: ClassVar[bool]
    samples_parties: ClassVar[bool]
    assumptions: ClassVar[tuple[str, ...]]

    @property
    def steps_per_round(self) -> int: ...

    def longest_message(self, *, bound: float, max_records: int, noise_length: float | None, divisor: float) -> float:
        """Return an upper bound on the norm of an honest message, without rounding; infinite if none is known.

        Args:
            bound: Largest norm of the contribution of one unit to a sum.
            max_records: Largest number of records of a party.
            noise_length: Upper limit on the norm of the Gaussian noise of a step; None for other noise.
            divisor: Divisor of noisy sums.
        """
        ...

    def contribute(self, party: PartyRound) -> RoundResult:
        """Let a party compute its message of one round."""
        ...


_TRUST = "the coordinator is trusted: it sees what single parties send, and adds the noise"
_OF_RECORDS = (Unit.RECORD, Unit.PERSON)


class _CentralNoise:
    """The parties send one message per step, and the coordinator adds the noise."""

    steps_per_round: ClassVar[int] = 1
    has_central_noise: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ClippedSums(_CentralNoise):
    """Each party samples its records, clips their gradients and sends the sum; the coordinator adds noise once.

    This is the central algorithm with a distributed sum: independent coins of the parties form one Poisson sample of
    all records, and the sum of the sums has the sensitivity of one record. So the plan, its cost and its accuracy are
    those of central training on all records.
    """

    units: ClassVar[tuple[Unit, ...]] = _OF_RECORDS
    samples_parties: ClassVar[bool] = False
    assumptions: ClassVar[tuple[str, ...]] = (
        _TRUST,
        "each party samples and clips as agreed",
        "whether a party answers in time does not depend on a single record",
    )

    def longest_message(self, *, bound: float, max_records: int, noise_length: float | None, divisor: float) -> float:
        return bound * max_records

    def contribute(self, party: PartyRound) -> RoundResult:
        return party.clipped_sum()


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Each party runs its own private session and sends the change of its weights; the coordinator averages.

    Every party adds noise: at the same plan the mean over K parties has sqrt(K) times the noise that a trusted
    coordinator would add.

    Attributes:
        learning_rate: Learning rate of each party.
        local_steps: Number of private steps of a party between two messages.
    """

    units: ClassVar[tuple[Unit, ...]] = _OF_RECORDS
    has_central_noise: ClassVar[bool] = False
    samples_parties: ClassVar[bool] = False
    assumptions: ClassVar[tuple[str, ...]] = ("each record lies with one party only, which trusts nobody else",)
    learning_rate: float
    local_steps: int = 1

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "learning_rate")
        checks.fields(self, checks.count, "local_steps")

    @property
    def steps_per_round(self) -> int:
        return self.local_steps

    def longest_message(self, *, bound: float, max_records: int, noise_length: float | None, divisor: float) -> float:
        if noise_length is None:
            return math.inf
        return self.learning_rate * self.local_steps * (bound * max_records + noise_length) / divisor

    def contribute(self, party: PartyRound) -> RoundResult:
        return party.session(self)


@dataclass(frozen=True, kw_only=True)
class ClientUpdates(_CentralNoise):
    """A sampled party trains on its records and sends its clipped update; the coordinator clips again and adds noise.

    This is federated averaging with client-level privacy (McMahan, Ramage, Talwar and Zhang 2018). The plan samples
    parties, so ``plan.sampling`` is about parties and its batch size counts parties. The guarantee assumes that the
    participation of a party stays secret.

    Attributes:
        learning_rate: Learning rate of a party's local training.
        local_epochs: Number of epochs of a party over its records.
        local_batch_size: Batch size of a party's local training.
    """

    units: ClassVar[tuple[Unit, ...]] = (Unit.CLIENT,)
    samples_parties: ClassVar[bool] = True
    assumptions: ClassVar[tuple[str, ...]] = (
        _TRUST,
        "nobody but the coordinator and the party itself learns in which rounds it took part",
    )
    learning_rate: float
    local_epochs: int = 1
    local_batch_size: int = 32

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "learning_rate")
        checks.fields(self, checks.count, "local_epochs", "local_batch_size")

    def longest_message(self, *, bound: float, max_records: int, noise_length: float | None, divisor: float) -> float:
        return bound

    def contribute(self, party: PartyRound) -> RoundResult:
        return party.update(self)


CONTRIBUTIONS: Mapping[str, type[Any]] = {
    "clipped_sums": ClippedSums,
    "sessions": Sessions,
    "client_updates": ClientUpdates,
}
