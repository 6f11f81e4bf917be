"""A federation in one process without a network, for tests and for the choice of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from privet.federated.coordinator import Coordinator, RoundReport
from privet.federated.messages import Answer
from privet.federated.party import Party, Replica


def run_in_process(
    coordinator: Coordinator, parties: Mapping[int, Party], *, after: Callable[[RoundReport], None] | None = None
) -> None:
    """Run all remaining rounds, one party after another.

    Args:
        coordinator: Inside its ``with`` block.
        parties: By number.
        after: Called after every round.
    """
    replicas: dict[int, Replica | None] = {}
    while not coordinator.is_complete:
        answers: dict[int, Answer] = {}
        for number, broadcast in coordinator.begin_round(list(parties)).items():
            answers[number], replicas[number] = parties[number].answer(broadcast, replicas.get(number))
        report = coordinator.end_round(answers)
        if after is not None:
            after(report)
