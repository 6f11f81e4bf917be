"""The event of a round as it was executed, from the code that bounded contributions and added noise.

A ledger compares it with the charge. The comparison is worth nothing if the ledger can be given the *planned* event, so
an :class:`ExecutedRound` is built from a noisy sum, from noise at the moment it is drawn, or from the report of another
process. It cannot be built from an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, final

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.clipping import ClippingRun
from privet.mechanism.events import compose, decode_event, encode_event, gaussian_event, same_event
from privet.mechanism.sampling import Sampling, amplified
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

_MAKER = object()


@dataclass(frozen=True, eq=False)
class _Made:
    """A fact that only the functions of this module state."""

    maker: InitVar[object]
    how: ClassVar[str]

    def __post_init__(self, maker: object) -> None:
        if maker is not _MAKER:
            raise TypeError(self.how)


@final
@dataclass(frozen=True, eq=False)
class ExecutedRound(_Made):
    """The event of one executed round. Only the functions of this module build one."""

    event: DpEvent
    how = (
        "An ExecutedRound cannot be built from an event. Use ExecutedSteps.of, executed_clipping, executed_gaussian, "
        "executed_together or ExecutedRound.read."
    )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, for a message to another process."""
        return encode_event(self.event)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> ExecutedRound:
        """Read the report of another process. The data are untrusted input.

        Raises:
            ArgumentError: ``to_dict`` cannot have written the data.
            AccountingError: the data name an unknown event.
        """
        return cls(_MAKER, decode_event(data))


def no_evidence(found: object) -> ArgumentError:
    """Return the error for an object that is no executed round."""
    return ArgumentError(
        f"A ledger compares what was done, and got a {type(found).__name__}. What was planned is no evidence: take "
        "what ExecutedSteps.of or executed_gaussian return, which is made of the noise that was drawn."
    )


@final
@dataclass(frozen=True, eq=False)
class AddedNoise(_Made):
    """Evidence that normal noise was added to a vector. Only the functions that draw the noise build it."""

    std: float
    how = "AddedNoise is built by add_noise or add_symmetric_noise, which draw the noise."


def add_noise(vector: Tensor, *, std: float, source: NormalSource) -> AddedNoise:
    """Add an independent N(0, std^2) draw to every coordinate of a vector in place."""
    source.add_normal(vector, std)
    return AddedNoise(_MAKER, std)


def add_symmetric_noise(matrix: Tensor, *, std: float, source: NormalSource) -> AddedNoise:
    """Add symmetric noise to a symmetric matrix in place.

    Guarantee:
        The noise is the mean of a matrix of independent draws and its transpose. Off the diagonal it has half the
        variance, so on the space of symmetric matrices with the Frobenius norm it is isotropic with ``std``.
    """
    noise = matrix.new_zeros(matrix.shape)
    source.add_normal(noise.view(-1), std)
    matrix += (noise + noise.T) / 2
    return AddedNoise(_MAKER, std)


@dataclass(kw_only=True, eq=False)
class ExecutedSteps:
    """Returns the events of the steps of one run: noisy sums over sampled examples.

    Attributes:
        clipping: The clipping at work; it makes its own release.
        sampling: The sampler that drew the examples.
    """

    clipping: ClippingRun
    sampling: Sampling
    _event: DpEvent | None = field(default=None, init=False)
    _executed: ExecutedRound | None = field(default=None, init=False)

    def of(self, private: PrivateSum, source: NormalSource) -> ExecutedRound:
        """Return the event of a noisy sum, and let the clipping rule make its own release.

        Guarantee: the event comes from the bound and the noise that the noise piece really used. Where that is the same
        event as in the step before, so is the result.
        """
        event = self.clipping.release(private.event, source)
        if self._executed is None or event is not self._event:
            self._event, self._executed = event, ExecutedRound(_MAKER, amplified(self.sampling, event))
        return self._executed


def executed_clipping(clipped: ClippedSum, *, owed: float, sampling: Sampling) -> ExecutedRound:
    """Return the event of a clipped sum that is sent to another process, which adds the noise.

    Args:
        clipped: The sum; it carries the bound that clipping held.
        owed: Standard deviation of the noise that was agreed on, independent of the bound.
        sampling: The sampler that drew the examples.
    """
    bounds = clipped.sensitivity.bounds
    return ExecutedRound(_MAKER, amplified(sampling, gaussian_event(bounds=bounds, stds=(owed,) * len(bounds))))


def executed_gaussian(parts: Sequence[tuple[AddedNoise, float]], *, bound: float) -> ExecutedRound:
    """Return the event of one joint release of several vectors.

    Args:
        parts: The noise on each vector, and the weight of the vector in the norm of ``bound``.
        bound: The largest distance that one unit moves the joint vector, in that weighted norm.

    Guarantee: exact if the weighted noise of all parts has one size; otherwise the smallest size is charged for all.
    """
    stds = [checks.positive("weight", weight) * noise.std for noise, weight in parts]
    if not stds:
        raise ArgumentError("A release has at least one part.")
    return ExecutedRound(_MAKER, gaussian_event(bounds=(bound,), stds=(min(stds),)))


def executed_together(parts: Sequence[ExecutedRound]) -> ExecutedRound:
    """Return the event of parties that hold disjoint records and ran the same round.

    Guarantee: parallel composition if all parties report the same event. Different events are composed sequentially,
    which never charges too little.
    """
    if not parts:
        raise ArgumentError("No party reported an executed round. At least one report is needed.")
    first = parts[0].event
    if all(same_event(first, part.event) for part in parts[1:]):
        return parts[0]
    return ExecutedRound(_MAKER, compose([(part.event, 1) for part in parts]))
