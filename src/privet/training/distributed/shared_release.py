"""One release before a run, such as a normalisation, by one process or by ranks that share out the examples."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.accounting.ledger import Ledger
from privet.training.distributed.digests import digest_of
from privet.training.distributed.noise import agreed_noise
from privet.training.distributed.ranks import Point, Ranks, ranks_of
from privet.training.distributed.shared_ledger import SharedLedger
from privet.training.randomness import NoiseSource, Streams
from privet.training.release import RoundLedger

_SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedRelease:
    """The part of a single release that depends on the number of processes.

    Guarantee:
        Every rank has the same data and constants, or none releases; each example is summed on one rank; the sums are
        added up before noise is added, once, and the same on every rank.

    Attributes:
        ranks: The processes; None for one.
    """

    ranks: Ranks | None

    @classmethod
    def of(cls, group: object) -> SharedRelease:
        """Find the processes, as ``privatize`` does."""
        return cls(ranks=ranks_of(group))

    def together(self) -> AbstractContextManager[None]:
        """Return the context of a release that succeeds on all ranks or on none."""
        return nullcontext() if self.ranks is None else self.ranks.together(Point.RELEASING)

    def ledger(self, words: str) -> Ledger:
        """Return a new ledger in memory, named after the constants of the release."""
        return Ledger.in_memory(words, num_processes=1 if self.ranks is None else self.ranks.size)

    def ledger_of_ranks(self, ledger: Ledger) -> RoundLedger:
        """Return where the release is charged."""
        if self.ranks is None:
            return ledger
        words = f"{self.ranks.size} ranks made a release together, and nobody else read or changed their messages"
        ledger.note_evidence(tried=(), settled=(), vouched=(words,))
        return SharedLedger(ledger=ledger, ranks=self.ranks)

    def source(
        self, device: torch.device, dtype: torch.dtype, *, seed: int | None, data: dict[str, Tensor]
    ) -> NoiseSource:
        """Return the noise of the release; ranks whose data or seeds differ are refused first."""
        if self.ranks is None:
            return Streams.new(device, seed=seed).noise
        self.ranks.meet(Point.OPENING)
        key = self.ranks.bytes_of_first(secrets.token_bytes(2 * _SECRET_BYTES) if self.ranks.is_first else None)
        digest = digest_of(data.items(), key=key[:_SECRET_BYTES])
        self.ranks.meet(Point.OPENING, {"the data": digest, "the seed": seed})
        streams = Streams.new(device, seed=seed, secret=int.from_bytes(key[_SECRET_BYTES:], "big"))
        return agreed_noise(streams.noise, self.ranks, device, dtype, is_sharded=False)

    def part(self, rows: Tensor) -> Tensor:
        """Return the examples that this process sums."""
        return rows if self.ranks is None else rows[self.ranks.rank :: self.ranks.size]

    def add_up_(self, total: Tensor) -> Tensor:
        """Return the sum over all processes, formed in place."""
        if self.ranks is not None:
            self.ranks.meet(Point.SUMMING, {"the length of the sum": total.numel()})
            self.ranks.add_up_(total)
        return total
