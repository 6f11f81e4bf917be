"""One draw of every batch for all ranks, and the part of it that one rank takes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from privet.training.distributed.padding import padded
from privet.training.distributed.ranks import Ranks
from privet.training.reading import Indices


class SharedDraws:
    """The batches of a run, which every rank draws whole from the same secret stream.

    Guarantee:
        Batch, inclusion rates and independence are those of the plan's sampler over the whole data set, for any number
        of ranks. Rank r of n takes every n-th example from place r on, so each example of a batch is on one rank.
    Edge cases: an empty batch is empty on every rank; of a batch smaller than the number of ranks some ranks get none.
    They take part in the step with a sum of zeros.

    Attributes:
        present: The digest of the batch of the present step, whole, under the run's key.
        num_present: How many examples of this rank's part of it count; those after them fill it up.
    """

    def __init__(self, ranks: Ranks, key: bytes, *, pads: bool) -> None:
        """Take this rank's part; digest batches under a secret key.

        With ``pads`` parts are filled up to one length on all ranks, as a sharded model needs them.
        """
        self._ranks, self._key, self._pads = ranks, key, pads
        self._waiting: dict[int, tuple[Indices, str, int]] = {}  # parts that were drawn and not handed out
        self.present, self.num_present = "", 0

    def parts(self, draw: Callable[[], Iterable[Indices]]) -> Iterator[Indices]:
        """Yield this rank's part of each batch of a round that ``draw`` draws."""
        for indices in draw():
            part, number = padded(indices, self._ranks.rank, self._ranks.size)
            part = part if self._pads else part[:number]
            digest = hashlib.blake2b(indices.tobytes(), key=self._key, digest_size=16).hexdigest()
            self._waiting[id(part)] = part, digest, number
            yield part

    def handed_out(self, draw: Callable[[], Iterable[Indices]]) -> Iterator[Indices]:
        """Yield the parts of a round, some of which may have been drawn before, and remember which is present."""
        for part in draw():
            _, self.present, self.num_present = self._waiting.pop(id(part))
            yield part
