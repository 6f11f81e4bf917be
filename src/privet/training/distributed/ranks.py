"""The processes of one run, their sums, and their meetings.

Every exchange begins with a meeting, in which each rank says in a few numbers where it is, whether it failed, and what
it holds to be true. A rank that failed says so at the meeting that the others come to next, so all of them stop with
the same error. Messages are tensors or JSON in bytes; nothing that is received is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from privet import errors
from privet.errors import ArgumentError, LoopError, PrivetError, RankError, RanksDisagree
from privet.gradients.sharding.local import is_of_messages
from privet.training.distributed.last_words import LastWords, Words

Facts = Mapping[str, Any]
_WORDS = 4  # of 64 bits each, in the digest of some facts
_SUMMED = (torch.float32, torch.float64)
_MOST_BYTES = 1 << 20  # in an error or in facts
_IN_A_STEP = "in a step of a sharded model"


class Point(Enum):
    """Where ranks meet. The values are their words for messages."""

    PREPARING = "preparing the run"
    OPENING = "opening the run"
    CHARGING = "charging a round"
    SUMMING = "adding up a step"
    RELEASING = "about to release a step"
    REPORTING = "reporting figures that are not private"
    STOPPING = "asking whether to stop"
    CHANGING = "changing the weights by public values"
    SAVING = "writing the parts of a checkpoint"
    ENDING = "ending the run"
    LEAVING = "leaving the run"


_POINTS = tuple(Point)


@dataclass(kw_only=True, eq=False)
class Ranks:
    """The processes that carry out one run together, seen from one of them.

    Guarantee:
        ``meet`` returns on one rank only if all ranks came to the same point, none of them failed, and all stated the
        same facts. Otherwise it raises on all ranks, with one text. A rank that died or hangs raises on the others,
        after the time-out of the group at the latest. After an error no meeting succeeds any more.
    Edge cases: the others do not see actions of a rank after its last meeting.

    Attributes:
        rank: This process, from 0 on. Rank 0 keeps the ledger.
        size: How many there are; at least two.
        group: The process group in which tensors of the model's device are added up.
        talk: The process group in which messages in the processor's memory are sent; often the same.
    """

    rank: int
    size: int
    group: distributed.ProcessGroup
    talk: distributed.ProcessGroup
    _world: distributed.ProcessGroup = field(repr=False)
    _last_words: LastWords | None = field(default=None, repr=False)
    _is_over: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which keeps the ledger and the folder."""
        return self.rank == 0

    def gathering(self) -> Ranks:
        """Return the ranks of a sharded model, which gather parameters between their meetings; all of them call this.

        A rank that fails leaves its words instead of meeting the others, who wait for its parameters.
        """
        return replace(self, _last_words=LastWords(self.rank))

    # ---------------------------------------------------------------------------------------------------- the meeting

    def meet(self, point: Point, facts: Facts | None = None, *, note: bytes = b"") -> Sequence[bytes]:
        """Wait for all ranks, compare their facts, and hand round their notes.

        Args:
            point: Where this rank is.
            facts: Values that must be equal on all ranks; public, in JSON.
            note: The message of this rank, which may differ.

        Returns:
            The notes of all ranks in their order; empty where none of them has any.

        Raises:
            RanksDisagree: the facts differ; the message names the fact and the ranks.
            PrivetError: a rank failed. All ranks raise the same class with the same words.
            RankError: a rank died, hangs, or is elsewhere in the run.
        """
        return self._exchange(point, stated(facts or {}), note, error=None)

    def tell(self, point: Point, error: BaseException) -> BaseException:
        """Tell the other ranks that this one cannot go on; return the error that all of them raise.

        Edge cases: an error that a meeting raised is known to all, and is returned as it is. If the others cannot be
        reached either, the error is returned.
        """
        if self._is_over:
            return error
        if self._last_words is not None:
            self._is_over = True
            return self._agreed_loss(_IN_A_STEP) if is_of_messages(error) else self._agreed(error)
        try:
            self._exchange(point, b"", b"", error=error)
        except BaseException as raised:  # noqa: BLE001 -- of whatever kind: it is what every rank raises
            return raised
        raise AssertionError("a meeting with an error raises")

    def let_go(self) -> None:
        """End all meetings, and hold the process groups no longer.

        torch ends the threads of a group when nobody holds it. A thread that still frees a tensor while Python ends
        aborts the process, so a run must not keep its groups to the end of the process.
        """
        self._is_over = True
        for name in ("group", "talk", "_world"):
            self.__dict__.pop(name, None)

    @contextmanager
    def together(self, point: Point) -> Iterator[None]:
        """Run a block that has no meeting of its own on every rank, and go on only if it succeeded on all of them."""
        try:
            yield
        except BaseException as error:
            raised = self.tell(point, error)
            if raised is error:
                raise
            raise raised from error
        self.meet(point)

    def _exchange(self, point: Point, facts: bytes, note: bytes, *, error: BaseException | None) -> Sequence[bytes]:
        if self._is_over:
            raise RankError("The ranks of this run have stopped. Start the run anew; what was charged stays charged.")
        words = b"" if error is None else _worded(error)
        head = [_POINTS.index(point), len(words), len(note), *_digest(facts)]
        try:
            with self._reaching(point.value):
                self._check_world()
                heads = np.stack([found.numpy() for found in self._gathered(torch.tensor(head, dtype=torch.int64))])
                faults = self._all_bytes(words, heads[:, 1]) if heads[:, 1].any() else ()
            if faults:  # outside: what a rank raised is no lost connection, whatever its class
                raise self._failure(faults, error)
            with self._reaching(point.value):
                self._compare(heads, facts)
                return self._all_bytes(note, heads[:, 2]) if heads[:, 2].any() else ()
        except BaseException:
            self._is_over = True
            raise

    def _failure(self, faults: Sequence[bytes], own: BaseException | None) -> BaseException:
        """Return the error that every rank raises, from the messages of those that failed."""
        if own is not None and all(fault == faults[0] for fault in faults):
            return own  # every rank found the same: it is told as one process would
        rank, found = next((rank, json.loads(fault)) for rank, fault in enumerate(faults) if fault)
        return self._stopped(rank, **found)

    def _stopped(self, rank: int, kind: str, told: str) -> PrivetError:
        """Return the error that every rank raises when this one stopped."""
        found = getattr(errors, kind, RankError)
        found = found if isinstance(found, type) and issubclass(found, PrivetError) else RankError
        return found(f"Rank {rank} of {self.size} stopped, and so do all: {told}")

    def _agreed(self, error: BaseException, *, is_lost: bool = False) -> BaseException:
        """Return the error of the rank that stopped first, for ranks that cannot meet to agree on one.

        Args:
            error: What this rank raises otherwise.
            is_lost: Whether it says only that another rank is gone.
        """
        if self._last_words is None:
            return error
        kind, told = _told(error)
        found = self._last_words.leave(Words(rank=self.rank, kind=kind, told=told, is_lost=is_lost))
        if (found.kind, found.told) == (kind, told):
            return error
        return RankError(found.told) if found.is_lost else self._stopped(found.rank, found.kind, found.told)

    def _agreed_loss(self, doing: str) -> BaseException:
        doing = doing if self._last_words is None else _IN_A_STEP
        lost = RankError(
            f"A rank of this run died or did not answer in time, while others were {doing}. All ranks stop; steps that "
            "were charged stay charged. Start the run again in the same folder, on any number of ranks: it goes on "
            "from its newest checkpoint."
        )
        return self._agreed(lost, is_lost=True)

    def _compare(self, heads: np.ndarray[Any, Any], facts: bytes) -> None:
        if (heads[:, 0] != heads[0, 0]).any():
            where = "; ".join(f"rank {rank} is {_POINTS[place].value}" for rank, place in enumerate(heads[:, 0]))
            raise RanksDisagree(
                f"The ranks are at different places of the run: {where}. Run the same loop on every rank, with the "
                "same number of steps. What was charged stays charged."
            )
        if (heads[:, 3:] != heads[0, 3:]).any():
            lengths = self._gathered(torch.tensor([len(facts)], dtype=torch.int64))
            found = self._all_bytes(facts, [int(length) for length in lengths])
            raise RanksDisagree(_difference([json.loads(each) for each in found]))

    def _check_world(self) -> None:
        if not distributed.is_initialized() or distributed.group.WORLD is not self._world:
            raise LoopError(
                "The process group changed during the run, and its ranks share one batch, one noise and one ledger. "
                "Leave the group alone until the session's with block is over."
            )

    # ---------------------------------------------------------------------------------------------------- the traffic

    def add_up_(self, tensor: Tensor) -> None:
        """Replace a vector by its sum over all ranks; they have met, and all of them call this.

        Guarantee: the sum is formed in the precision of the vector, single or double. In half precision a sum would be
        rounded by more than its bound, so it is refused.
        """
        if tensor.dtype not in _SUMMED:
            raise LoopError(f"Ranks add up in single or double precision, and this sum is in {tensor.dtype}.")
        with self._doing("adding up"):
            distributed.all_reduce(tensor, group=self.group)

    def bytes_of_first(self, data: bytes | None) -> bytes:
        """Return the bytes that rank 0 passed; the others pass None. They have met, and all of them call this."""
        with self._doing("handing round what rank 0 has"):
            length = torch.tensor([len(data or b"")], dtype=torch.int64)
            distributed.broadcast(length, group_src=0, group=self.talk)
            content = np.frombuffer(data, np.uint8).copy() if data else np.zeros(int(length), np.uint8)
            if int(length):
                distributed.broadcast(torch.from_numpy(content), group_src=0, group=self.talk)
        return content.tobytes()

    def tensor_of_first_(self, tensor: Tensor) -> None:
        """Overwrite a tensor by rank 0's; they have met, and all of them call this."""
        with self._doing("handing round what rank 0 has"):
            distributed.broadcast(tensor, group_src=0, group=self.group)

    @contextmanager
    def _doing(self, doing: str) -> Iterator[None]:
        try:
            with self._reaching(doing):
                yield
        except BaseException:
            self._is_over = True
            raise

    @contextmanager
    def _reaching(self, doing: str) -> Iterator[None]:
        """Tell of a rank that cannot be reached, in the same words on all ranks."""
        try:
            yield
        except RuntimeError as lost:  # of torch: the connection was closed, or the time is over
            raise self._agreed_loss(doing) from lost

    def _gathered(self, tensor: Tensor) -> Sequence[Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        distributed.all_gather(found, tensor, group=self.talk)
        return found

    def _all_bytes(self, own: bytes, lengths: Sequence[int] | np.ndarray[Any, Any]) -> Sequence[bytes]:
        """Return the bytes of all ranks, whose lengths are known to all."""
        padded = np.zeros(int(max(lengths)), np.uint8)
        padded[: len(own)] = np.frombuffer(own, np.uint8)
        found = self._gathered(torch.from_numpy(padded))
        return [each[: int(length)].numpy().tobytes() for each, length in zip(found, lengths, strict=True)]


def stated(facts: Facts) -> bytes:
    """Return facts as the bytes that ranks compare."""
    data = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    return data if len(data) <= _MOST_BYTES else json.dumps({"facts": hashlib.sha256(data).hexdigest()}).encode()


def _digest(facts: bytes) -> list[int]:
    return list(struct.unpack(f"<{_WORDS}q", hashlib.sha256(facts).digest()))


def _worded(error: BaseException) -> bytes:
    kind, told = _told(error)
    return json.dumps({"kind": kind, "told": told}).encode()


def _told(error: BaseException) -> tuple[str, str]:
    """Return the class and the words of an error; of errors that are not this library's the class alone.

    This library's errors hold no private values. Those of others may, so their text stays where it was raised.
    """
    name = type(error).__name__
    is_known = isinstance(error, PrivetError)
    return name, str(error)[:_MOST_BYTES] if is_known else f"it raised {name}, and its own output says why."


def _difference(found: Sequence[Facts]) -> str:
    """Name the first fact that differs, with a rank on either side."""
    for name in sorted({name for facts in found for name in facts}):
        values = [facts.get(name) for facts in found]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            shown = f"rank 0 has {_short(values[0])} and rank {other} has {_short(values[other])}"
            break
    return (
        f"The ranks of this run differ in {name}: {shown}. One run has one plan, one model, one data set and one batch "
        "at every step: build them alike on every rank. Nothing is released; what was charged stays charged."
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


# ---------------------------------------------------------------------------------------------------- finding the ranks


def ranks_of(group: object = None) -> Ranks | None:
    """Return the ranks that train together; None for one process.

    Args:
        group: A process group of all processes, a device mesh of one dimension over all of them, ranks that were found
            before, or None for torch's default group, if there is one.

    Guarantee: every process that was started together with this one is among them.

    Raises:
        ArgumentError: the group is no group, leaves processes out, or is a mesh of several dimensions.
    """
    if isinstance(group, Ranks):
        return group
    if not (distributed.is_available() and distributed.is_initialized()):
        if group is not None:
            raise ArgumentError("group= needs torch.distributed.init_process_group(), which was not called.")
        return None
    world = distributed.group.WORLD
    assert world is not None, "the default group is initialised"
    chosen = world if group is None else _group_of(group)
    size = distributed.get_world_size(chosen)
    if size != distributed.get_world_size():
        raise ArgumentError(
            f"The group has {size} of the {distributed.get_world_size()} processes, and the others would train beside "
            "it with no ledger. Pass a group of all processes, or start as many as the group has."
        )
    if size == 1:
        return None
    has_cpu = "cpu:" in distributed.get_backend_config(chosen)
    # messages of a group that works on devices alone would make every meeting wait for the device
    talk = chosen if has_cpu else distributed.new_group(backend="gloo")
    return Ranks(rank=distributed.get_rank(chosen), size=size, group=chosen, talk=talk, _world=world)


def _group_of(group: object) -> distributed.ProcessGroup:
    if isinstance(group, distributed.ProcessGroup):
        return group
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(group, DeviceMesh):
        raise ArgumentError(
            f"group must be a process group or a device mesh of torch.distributed, got {type(group).__name__}."
        )
    if group.ndim != 1:
        names = ", ".join(group.mesh_dim_names or ()) or f"{group.ndim} dimensions without names"
        raise ArgumentError(
            f"The mesh has {group.ndim} dimensions ({names}). Ranks share out examples along one of them; tensor, "
            "pipeline and context parallel ranks would hold parts of one example's gradient, whose norms are not added "
            "up. Pass a mesh of one dimension over all processes."
        )
    return group.get_group()
