"""One charged release: the one order in which anything computed from private data leaves the library.

    charge the round (durable) -> read, clip, sum -> add noise -> compare with the charge -> hand out

Training steps, private normalisation, geometries, sufficient statistics and the rounds of a federation differ in what
they sum and which noise they add. They share this order, and no other code reserves or checks rounds of a ledger.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from privet.accounting.ledger import VoidReason
from privet.errors import LoopError
from privet.mechanism.executed import ExecutedRound, ExecutedSteps, add_noise, add_symmetric_noise, executed_gaussian
from privet.mechanism.noise import Noise
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum

if TYPE_CHECKING:
    from torch import Tensor

    from privet.mechanism.events import DpEvent

T = TypeVar("T")
Covariant = TypeVar("Covariant", covariant=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Noisy(Generic[Covariant]):
    """A value after its noise.

    Attributes:
        value: The value that may leave, once ``executed`` has been compared with the charge.
        executed: The noise and the bound that were really used.
    """

    value: Covariant
    executed: ExecutedRound


class Summed(Protocol[Covariant]):
    """A bounded sum over private data that waits for its noise. Secret."""

    def add_noise(self) -> Noisy[Covariant]:
        """Add the noise once, and report the noise and the bound that were used."""
        ...


class RoundLedger(Protocol):
    """Where a release is charged: the ledger of a run, or that of one of its ranks."""

    def reserve(self, event: DpEvent, count: int = 1) -> None:
        """Charge rounds before any of them runs; durable before this returns."""
        ...

    def check(self, done: ExecutedRound) -> None:
        """Use up one reserved round, and refuse its release unless what was done is what was reserved."""
        ...

    def check_within(self, done: ExecutedRound) -> None:
        """Refuse a further release of a round that is charged already unless it is what was charged."""
        ...

    def void(self, reason: VoidReason) -> None:
        """Record that a round was begun and given up. It stays charged."""
        ...


def _in_order(
    ledger: RoundLedger, event: DpEvent, *, num_charged: int, num_used: int
) -> Generator[None, Summed[T], Noisy[T]]:
    """Carry out one release, from the charge to the comparison; the caller reads and sums at the ``yield``.

    Guarantee:
        The charge is durable before any data is read. A value is returned only after noise was added to it, and only
        if the noise and the bound that were really used are what was charged. A release that fails or is given up
        before the comparison leaves its rounds voided: they stay charged and cannot be used again.
    """
    if num_charged:
        ledger.reserve(event, num_charged)
    try:
        summed = yield
        noisy = summed.add_noise()
    except GeneratorExit:  # the object was dropped; whoever holds the ledger closes or abandons it
        raise
    except BaseException as error:
        for _ in range(num_used):
            ledger.void(_reason(error))
        raise
    for _ in range(num_used):
        ledger.check(noisy.executed)
    if not num_used:
        ledger.check_within(noisy.executed)
    return noisy


class _GivenUp(BaseException):
    """Ends a release before its noise was added."""

    def __init__(self, reason: VoidReason) -> None:
        super().__init__()
        self.reason = reason


def _reason(error: BaseException) -> VoidReason:
    if isinstance(error, _GivenUp):
        return error.reason
    return VoidReason.INTERRUPTED if isinstance(error, KeyboardInterrupt) else VoidReason.STEP_FAILED


class ChargedRelease(Generic[T]):
    """One release whose round is charged. Data may be read as soon as this object exists.

    Use it in a ``with`` block, which gives the release up if the block fails, or call ``give_up`` yourself.

    Guarantee: see ``_in_order``.
    """

    def __init__(self, ledger: RoundLedger, event: DpEvent, *, num_charged: int = 1, num_used: int = 1) -> None:
        """Charge.

        Args:
            ledger: The ledger of the run.
            event: The planned cost of one round.
            num_charged: How many rounds to charge now; 0 if rounds that were charged in advance are left.
            num_used: How many charged rounds this release uses up; 0 for a further release of a round in use.
        """
        self._course: Generator[None, Summed[T], Noisy[T]] = _in_order(
            ledger, event, num_charged=num_charged, num_used=num_used
        )
        self.is_open = False
        next(self._course)
        self.is_open = True

    @classmethod
    def further(cls, ledger: RoundLedger, event: DpEvent) -> Self:
        """Return a further release of a round that is charged and in use: it charges no round and uses up none."""
        return cls(ledger, event, num_charged=0, num_used=0)

    def add_noise_and_compare(self, summed: Summed[T]) -> Noisy[T]:
        """Add the noise to a sum, compare it with the charge, and return the noisy value.

        Raises:
            LedgerMismatch: the noise or the bound is not what was charged. The value must not be used.
            LoopError: the release is over.
        """
        if not self.is_open:
            raise LoopError("This release is over: its noise was added, or it was given up. Charge another round.")
        self.is_open = False
        try:
            self._course.send(summed)
        except StopIteration as finished:
            noisy: Noisy[T] = finished.value
            return noisy
        raise AssertionError("a release has one sum")

    def give_up(self, reason: VoidReason) -> None:
        """Void the rounds of a release that will not be finished; they stay charged. Does nothing once it is over."""
        if self.is_open:
            self.is_open = False
            with suppress(_GivenUp):
                self._course.throw(_GivenUp(reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_up(VoidReason.INTERRUPTED if error is None else _reason(error))


@dataclass(frozen=True, kw_only=True, eq=False)
class WaitingSum:
    """A clipped sum of gradients that waits for its noise. Secret.

    Attributes:
        clipped: The sum, with the bound that was kept.
        steps: Returns the event of the noise and the bound that were used.
    """

    clipped: ClippedSum
    steps: ExecutedSteps


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientSum(WaitingSum):
    """The sum of a round whose noise is added without an update.

    Attributes:
        noise: The noise piece of its plan.
        source: Where the noise comes from.
    """

    noise: Noise
    source: NormalSource

    def add_noise(self) -> Noisy[PrivateSum]:
        private = self.noise.add(self.clipped, self.source)
        return Noisy(value=private, executed=self.steps.of(private, self.source))


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One tensor of a release of several.

    Attributes:
        values: The sum; noise is added in place.
        std: Standard deviation of the noise.
        weight: The tensor's weight in the norm that the bound is stated in.
        is_symmetric: Whether it is a symmetric matrix, whose mirrored entries share their noise.
    """

    values: Tensor
    std: float
    weight: float = 1.0
    is_symmetric: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundedTensors:
    """Sums over records that one record moves by at most ``bound`` together; they get normal noise.

    Attributes:
        parts: The sums.
        bound: How far one unit moves all of them together, in the weighted norm.
        source: Where the noise comes from.
    """

    parts: Sequence[Part]
    bound: float
    source: NormalSource

    def add_noise(self) -> Noisy[tuple[Tensor, ...]]:
        drawn = [
            (add_symmetric_noise if part.is_symmetric else add_noise)(part.values, std=part.std, source=self.source)
            for part in self.parts
        ]
        weighted = [(draw, part.weight) for draw, part in zip(drawn, self.parts, strict=True)]
        values = tuple(part.values for part in self.parts)
        return Noisy(value=values, executed=executed_gaussian(weighted, bound=self.bound))
