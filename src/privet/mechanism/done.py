"""What was done in a round, told by the places that bounded contributions and added noise.

A ledger compares it with what was charged. So it must not be possible to hand the ledger what was *planned*: a
:class:`Done` is made from a noisy sum, from noise as it is drawn, or from what another process says it did, and never
from an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

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


@final
class Done:
    """What one round did to the data, as an event. Made by the functions of this module alone."""

    __slots__ = ("_event",)

    def __init__(self, maker: object, event: DpEvent) -> None:
        """Refuse every maker but this module."""
        if maker is not _MAKER:
            raise TypeError("What was done is told by done_step, done_clipping, done_gaussian, done_together or read.")
        self._event = event

    @property
    def event(self) -> DpEvent:
        """What it costs."""
        return self._event

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, for a message to another process."""
        return encode_event(self._event)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Done:
        """Return what another process says it did; the data are taken for a stranger's.

        Raises:
            ArgumentError: the data are not what ``to_dict`` returned.
            AccountingError: they tell of something unknown.
        """
        return cls(_MAKER, decode_event(data))


@final
class Drawn:
    """The fact that normal noise was added to a vector. Made where it is drawn: :func:`add_noise` and its kin."""

    __slots__ = ("_std",)

    def __init__(self, maker: object, std: float) -> None:
        """Refuse every maker but this module."""
        if maker is not _MAKER:
            raise TypeError("Noise that was drawn is told by add_noise or add_symmetric_noise.")
        self._std = std

    @property
    def std(self) -> float:
        """Its standard deviation."""
        return self._std


def add_noise(vector: Tensor, *, std: float, source: NormalSource) -> Drawn:
    """Add an independent N(0, std^2) draw to every coordinate of a vector in place, and tell of it."""
    source.add_normal(vector, std)
    return Drawn(_MAKER, std)


def add_symmetric_noise(matrix: Tensor, *, std: float, source: NormalSource) -> Drawn:
    """Add symmetric noise to a symmetric matrix in place, and tell of it.

    Guarantee:
        The mean of a square of independent draws and its mirror image: off the diagonal it has half the variance, which
        is noise of one size, ``std``, on the space of symmetric matrices with the Frobenius norm.
    """
    noise = matrix.new_zeros(matrix.shape)
    source.add_normal(noise.view(-1), std)
    matrix += (noise + noise.T) / 2
    return Drawn(_MAKER, std)


def done_step(private: PrivateSum, *, clipping: ClippingRun, sampling: Sampling, source: NormalSource) -> Done:
    """Tell of a noisy sum over sampled examples, and let the clipping release what it needs to go on.

    Guarantee: built from the event that the noise made of the bound and the noise it really used.
    """
    return Done(_MAKER, amplified(sampling, clipping.release(private.event, source)))


def done_clipping(clipped: ClippedSum, *, owed: float, sampling: Sampling) -> Done:
    """Tell of a clipped sum that leaves for a place which adds the noise.

    Args:
        clipped: The sum; its bound is the one that was kept.
        owed: Standard deviation of the noise that was agreed on, whatever the bound was.
        sampling: How its examples were drawn.
    """
    bounds = clipped.sensitivity.bounds
    return Done(_MAKER, amplified(sampling, gaussian_event(bounds=bounds, stds=(owed,) * len(bounds))))


def done_gaussian(parts: Sequence[tuple[Drawn, float]], *, bound: float) -> Done:
    """Tell of one release of several vectors.

    Args:
        parts: The noise on each vector, and the vector's weight in the norm that ``bound`` is stated in.
        bound: How far one unit moves all of them together.

    Guarantee: exact where the weighted noise of all parts has one size; otherwise the smallest counts for all.
    """
    stds = [checks.positive("weight", weight) * drawn.std for drawn, weight in parts]
    if not stds:
        raise ArgumentError("A release has at least one part.")
    return Done(_MAKER, gaussian_event(bounds=(bound,), stds=(min(stds),)))


def done_together(parts: Sequence[Done]) -> Done:
    """Tell of what several holders of separate records did at the same time.

    Guarantee: the same thing done to separate records costs what it costs one of them. Things that differ are told all
    together, which is never too little.
    """
    if not parts:
        raise ArgumentError("Nobody did anything: there is nothing to tell.")
    first = parts[0].event
    if all(same_event(first, part.event) for part in parts[1:]):
        return parts[0]
    return Done(_MAKER, compose([(part.event, 1) for part in parts]))
