"""Flower apps: a client app for a party, a server app for the coordinator.

The same apps run in Flower's simulation engine and as real processes (a SuperLink and SuperNodes). Flower transports
messages; the code that privacy depends on is in :mod:`privet.federated.party` and :mod:`privet.federated.coordinator`,
which do not use Flower.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from privet import checks
from privet.errors import DataError, DependencyError, PrivetError
from privet.federated.coordinator import Coordinator, RoundReport
from privet.federated.messages import Answer, Broadcast, Outcome
from privet.federated.party import Party, Replica
from privet.mechanism.executed import ExecutedRound

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as missing:  # pragma: no cover (installed in the other environment)
    raise DependencyError(
        "Federated learning over a network needs Flower. Install it with: pip install 'privet[flower]'."
    ) from missing

__all__ = [
    "Context",
    "Patience",
    "client_app",
    "pack_answer",
    "pack_broadcast",
    "server_app",
    "unpack_answer",
    "unpack_broadcast",
]

_LOG = logging.getLogger("privet")
_VALUES, _FACTS, _REPLICA, _ROUND = "values", "facts", "privet.replica", "privet.round"
_TRAIN = "train"
# Largest JSON text for the steps of a round, enough for a thousand steps.
_MAX_DONE = 1 << 18


def _record(facts: dict[str, int | str], values: np.ndarray[Any, np.dtype[np.float32]]) -> RecordDict:
    return RecordDict({_FACTS: ConfigRecord(facts), _VALUES: ArrayRecord({_VALUES: Array(values)})})


def _parts(content: RecordDict) -> tuple[ConfigRecord, np.ndarray[Any, Any]]:
    """Return the facts and values of a received message.

    Raises:
        DataError: a part is missing or has the wrong type.
    """
    try:
        facts, values = content[_FACTS], content[_VALUES][_VALUES].numpy()
    except (KeyError, TypeError, ValueError, AttributeError, OSError, EOFError) as error:
        raise DataError(f"A message could not be read: {type(error).__name__}.") from None
    if not isinstance(facts, ConfigRecord):
        raise DataError("A message has no record of facts.")
    return facts, values


def _whole(facts: ConfigRecord, name: str) -> int:
    return checks.count(name, facts.get(name), minimum=-1)


def pack_broadcast(broadcast: Broadcast) -> RecordDict:
    """Return a broadcast as Flower records."""
    since = -1 if broadcast.since is None else broadcast.since
    facts: dict[str, int | str] = {
        "round": broadcast.round,
        "agreement": broadcast.agreement,
        "mask_seed": broadcast.mask_seed,
        "since": since,
    }
    return _record(facts, broadcast.values)


def unpack_broadcast(content: RecordDict) -> Broadcast:
    """Return the broadcast in Flower records; missing or invalid parts raise ``PrivetError``."""
    facts, values = _parts(content)
    since = _whole(facts, "since")
    return Broadcast(
        round=_whole(facts, "round"),
        agreement=str(facts.get("agreement")),
        mask_seed=_whole(facts, "mask_seed"),
        since=None if since < 0 else since,
        values=values,
    )


def pack_answer(answer: Answer) -> RecordDict:
    """Return an answer as Flower records."""
    facts: dict[str, int | str] = {
        "round": answer.round,
        "agreement": answer.agreement,
        "mask_seed": answer.mask_seed,
        "outcome": answer.outcome.value,
    }
    if answer.done:
        facts["done"] = json.dumps([done.to_dict() for done in answer.done])
    return _record(facts, answer.values)


def unpack_answer(content: RecordDict) -> Answer:
    """Return the answer in Flower records; missing or invalid parts raise ``PrivetError``."""
    facts, values = _parts(content)
    known = {outcome.value: outcome for outcome in Outcome}
    outcome = known.get(str(facts.get("outcome")))
    if outcome is None:
        raise DataError("An answer has an unknown outcome.")
    return Answer(
        round=_whole(facts, "round"),
        agreement=str(facts.get("agreement")),
        mask_seed=_whole(facts, "mask_seed"),
        outcome=outcome,
        values=values,
        done=_done(facts),
    )


def _done(facts: ConfigRecord) -> tuple[ExecutedRound, ...]:
    """Return the party's report of its steps."""
    text = str(facts.get("done", "[]"))
    try:
        found = json.loads(text) if len(text) <= _MAX_DONE else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise DataError("An answer has an unreadable report of the party's steps.")
    return tuple(ExecutedRound.read(part) for part in found)


def _replica(context: Context) -> Replica | None:
    if _REPLICA not in context.state or _ROUND not in context.state:
        return None
    weights = torch.from_numpy(np.array(context.state[_REPLICA][_VALUES].numpy(), dtype=np.float32))
    return Replica(round=int(context.state[_ROUND]["round"]), weights=weights)


def client_app(party: Callable[[Context], Party], *, mods: Sequence[Callable[..., Message]] = ()) -> ClientApp:
    """Return the Flower app of a party.

    Args:
        party: Builds the party of a node from its context; the node's configuration selects its records. Flower may
            call it once per message, each time in a new process: persistent state is in the party's folder.
        mods: Flower mods, wrappers around the app.
    """
    app = ClientApp(mods=list(mods))

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        answer, replica = party(context).answer(unpack_broadcast(message.content), _replica(context))
        if replica is not None:
            context.state[_REPLICA] = ArrayRecord({_VALUES: Array(replica.weights.numpy())})
            context.state[_ROUND] = ConfigRecord({"round": replica.round})
        return Message(pack_answer(answer), reply_to=message)

    return app


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts of the server app. Public; the guarantee does not depend on them.

    Attributes:
        num_parties: Number of connected parties to wait for before the first round.
        connect_s: Timeout for their connection, in seconds.
        answer_s: Timeout for an answer, in seconds; then the round ends without it.
    """

    num_parties: int
    connect_s: float = 120.0
    answer_s: float = 120.0

    def __post_init__(self) -> None:
        checks.fields(self, checks.count, "num_parties")
        checks.fields(self, checks.positive, "connect_s", "answer_s")


def server_app(
    coordinator: Callable[[Context], Coordinator],
    *,
    patience: Callable[[Context], Patience],
    after: Callable[[Coordinator, RoundReport, Context], None] | None = None,
    finished: Callable[[Coordinator, Context], None] | None = None,
) -> ServerApp:
    """Return the Flower app of the coordinator.

    Args:
        coordinator: Builds the coordinator from the run's context.
        patience: Returns the timeouts from the run's context.
        after: Called at the end of every round.
        finished: Called at the end of the run, inside the coordinator's ``with`` block.
    """
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        timeouts = patience(context)
        _wait_for_parties(grid, timeouts)
        with coordinator(context) as server:
            while not server.is_complete:
                report = _round(grid, server, timeouts)
                if after is not None:
                    after(server, report, context)
            if finished is not None:
                finished(server, context)

    return app


def _wait_for_parties(grid: Grid, timeouts: Patience) -> None:
    deadline = time.monotonic() + timeouts.connect_s
    while len(list(grid.get_node_ids())) < timeouts.num_parties:
        if time.monotonic() > deadline:
            raise DataError(
                f"{timeouts.num_parties} parties were expected and fewer connected within {timeouts.connect_s:g} s. "
                "Nothing was charged."
            )
        time.sleep(0.5)


def _round(grid: Grid, coordinator: Coordinator, timeouts: Patience) -> RoundReport:
    broadcasts = coordinator.begin_round(list(grid.get_node_ids()))
    messages = [
        Message(
            pack_broadcast(broadcast),
            dst_node_id=node,
            message_type=_TRAIN,
            ttl=timeouts.answer_s,
            group_id=str(broadcast.round),
        )
        for node, broadcast in broadcasts.items()
    ]
    replies = grid.send_and_receive(messages, timeout=timeouts.answer_s) if messages else []
    return coordinator.end_round(_answers(replies))


def _answers(replies: Iterable[Message]) -> dict[int, Answer]:
    """Return the readable answers; an unreadable message counts as no answer."""
    answers: dict[int, Answer] = {}
    for reply in replies:
        if not reply.has_content():
            continue
        node = int(reply.metadata.src_node_id)
        try:
            answers[node] = unpack_answer(reply.content)
        except PrivetError as error:
            _LOG.warning("The answer of party %d is not readable and is ignored: %s", node, error)
    return answers
