"""The additional work of a run on several ranks, in the order in which a run begins and ends."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from privet import __version__
from privet.accounting.ledger import Ledger
from privet.training.checkpoint import read_checkpoint
from privet.training.data_seal import data_digest
from privet.training.distributed.drawing import SharedDraws
from privet.training.distributed.noise import agreed_noise
from privet.training.distributed.ranks import Facts, Point, Ranks
from privet.training.distributed.shared_ledger import SharedLedger
from privet.training.distributed.shared_step import SharedStepSum, SumOverRanks, state_facts
from privet.training.distributed.shared_telemetry import SharedTelemetry
from privet.training.randomness import Streams

if TYPE_CHECKING:
    from privet.training.evidence import EvidenceRecorder
    from privet.training.folder import RunFolder
    from privet.training.prepared import PreparedRun
    from privet.training.reading import Indices
    from privet.training.telemetry import Receiver

_SECRET_BYTES = 32


class SharedRun:
    """The part of a run that keeps its ranks equal.

    Guarantee:
        All ranks have one plan, model, optimizer, data set and version; they draw from the same secret streams, which
        rank 0 keys from its operating system; rank 0's ledger and folder are the run's. Any difference stops
        every rank before data is read.

    Attributes:
        ranks: The processes.
    """

    def __init__(self, ranks: Ranks, *, lets_go: bool) -> None:
        """Send nothing yet.

        Args:
            ranks: The processes.
            lets_go: Whether nobody needs the ranks when the run is over.
        """
        self.ranks, self._lets_go = ranks, lets_go
        self._key, self._assumption = b"", ""
        self._draws: SharedDraws
        self._sum: SumOverRanks

    def joined(self, ledger: Ledger, folder: RunFolder | None) -> Ledger:
        """Return this rank's ledger: rank 0's own, and a copy of it on the others.

        Args:
            ledger: That of the folder on rank 0; one in memory on the others, and for a run without a folder.
            folder: Where rank 0 keeps it, if anywhere.
        """
        ranks, has_folder = self.ranks, folder is not None
        rows = folder.ledger_path.read_bytes() if folder is not None and ranks.is_first else None
        ranks.meet(Point.PREPARING, {"whether there is a folder": has_folder, "the plan": ledger.plan_hash})
        if not has_folder:
            return ledger
        data = ranks.bytes_of_first(rows)
        return ledger if ranks.is_first else Ledger.copy_in_memory(data, num_processes=ranks.size)

    def compare(self, run: PreparedRun) -> None:
        """Share the run's secret, and refuse ranks that differ before anything is read.

        Raises:
            RanksDisagree: naming the difference.
        """
        self.ranks.meet(Point.OPENING)
        self._key = self.ranks.bytes_of_first(secrets.token_bytes(2 * _SECRET_BYTES) if self.ranks.is_first else None)
        devices = self.ranks.meet(Point.OPENING, self._facts(run), note=_device_name(run.device).encode())
        names = dict.fromkeys(name.decode() for name in devices)
        places = f"{', '.join(names)}"[:80]
        self._assumption = (
            f"{self.ranks.size} ranks ({places}) trained together, and nobody else read or changed the messages "
            "between them"
        )

    def _facts(self, run: PreparedRun) -> Facts:
        plan, average = run.plan, run.state.average
        shapes = [[name, list(shape)] for name, shape in zip(run.layout.names, run.layout.shapes, strict=True)]
        return {
            "the plan": plan.hash,
            "the version of privet": __version__,
            "the version of torch": torch.__version__.partition("+")[0],
            "the number of examples": _hidden(len(run.dataset), self._key),
            "the data": data_digest(run.dataset, self._key[:_SECRET_BYTES]),
            "the seed": run.seed,
            "the trained parameters": shapes,
            "the groups of parameters": list(run.layout.groups),
            "the mask of the plan": repr(plan.mask),
            "rounds charged at once": run.rounds_per_charge,
            "whether there is telemetry": run.has_telemetry,
            "whether an average is kept": average is not None,
            "whether the model is sharded": run.shards is not None,
            **state_facts(run.state),
        }

    def restore(self, run: PreparedRun) -> None:
        """Let every rank go on from the checkpoint that rank 0 found, if it found one."""
        first = self.ranks.is_first
        if run.shards is not None:  # each rank reads its own part
            run.restore_from_folder()
            self.ranks.meet(Point.OPENING, {"the checkpoint": [run.state.position, run.state.steps_taken]})
            return
        was_restored = first and run.folder is not None and run.restore_from_folder()
        content = run.state.to_bytes(run.ledger) if was_restored else None
        if not self.ranks.meet(Point.OPENING, note=b"restored" if was_restored else b""):
            return
        data = self.ranks.bytes_of_first(content)
        if not first:
            run.state.take(read_checkpoint(data))

    def streams(self, device: torch.device, dtype: torch.dtype, *, seed: int | None, is_sharded: bool) -> Streams:
        """Return the random streams that all ranks share."""
        own = Streams.new(device, seed=seed, secret=int.from_bytes(self._key[_SECRET_BYTES:], "big"))
        self._draws = SharedDraws(self.ranks, self._key[:_SECRET_BYTES], pads=is_sharded)
        return replace(own, noise=agreed_noise(own.noise, self.ranks, device, dtype, is_sharded=is_sharded))

    @property
    def num_present(self) -> int:
        """How many examples of this rank's part of the present batch count."""
        return self._draws.num_present

    def part_of(self, draw: Callable[[], Iterable[Indices]]) -> Callable[[], Iterable[Indices]]:
        """Return a function that draws a round for all ranks and yields this rank's part of it."""
        return lambda: self._draws.parts(draw)

    def handed_out(self, draw: Callable[[], Iterable[Indices]]) -> Callable[[], Iterable[Indices]]:
        """Return a function that hands out parts, some of which were drawn before."""
        return lambda: self._draws.handed_out(draw)

    def ledger_of_ranks(self, ledger: Ledger) -> SharedLedger:
        """Return the ledger that steps are charged to."""
        return SharedLedger(ledger=ledger, ranks=self.ranks)

    def summing(self, run: PreparedRun, recorder: EvidenceRecorder) -> SumOverRanks:
        """Return the observer that adds up sums; it comes after those that may refuse a step."""
        self._sum = SumOverRanks(
            ranks=self.ranks,
            state=run.state,
            draws=self._draws,
            recorder=recorder,
            divisor=run.plan.sampling.expected_batch_size,
            assumption=self._assumption,
            key=self._key[:_SECRET_BYTES],
        )
        return self._sum

    def telemetry(self, receiver: Receiver) -> SharedTelemetry:
        """Return the observer that collects the figures of all ranks."""
        return SharedTelemetry(receiver, self.ranks)

    @property
    def step_sum(self) -> Callable[..., SharedStepSum]:
        """Make the sum of a step over all ranks, with the arguments of a single process."""
        key = self._key[:_SECRET_BYTES]
        return partial(SharedStepSum, ranks=self.ranks, looks=lambda: self._sum.is_deep, key=key)

    @contextmanager
    def leaving(self, run: PreparedRun, error: BaseException | None) -> Iterator[BaseException | None]:
        """End the run in the block, with the error that all ranks raise; without one they end with equal weights.

        Guarantee: weights that differ are found before any of them is written to a checkpoint.
        """
        try:
            if error is not None:
                raised = self.ranks.tell(Point.LEAVING, error)
                yield raised
                if raised is not error:
                    raise raised from error
                return
            try:
                self.ranks.meet(Point.ENDING, {"steps in the model": run.state.steps_taken, **state_facts(run.state)})
            except BaseException as found:
                yield found
                raise
            with self.ranks.together(Point.LEAVING):
                yield None
        finally:
            if self._lets_go:
                self.ranks.let_go()


def _device_name(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return name if name.isprintable() else device.type


def _hidden(number: int, key: bytes) -> str:
    """Return a digest of a private number that ranks compare; a refusal shows it."""
    return hashlib.blake2b(str(number).encode(), key=key, digest_size=8).hexdigest()
