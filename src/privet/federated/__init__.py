"""Federated learning: parties keep their records, a coordinator keeps the model, and each has its own ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.federated.agreement import Agreement as Agreement
    from privet.federated.apps import Patience as Patience
    from privet.federated.apps import client_app as client_app
    from privet.federated.apps import server_app as server_app
    from privet.federated.contributions import ClientUpdates as ClientUpdates
    from privet.federated.contributions import ClippedSums as ClippedSums
    from privet.federated.contributions import Sessions as Sessions
    from privet.federated.coordinator import Coordinator as Coordinator
    from privet.federated.loopback import run_in_process as run_in_process
    from privet.federated.party import Party as Party
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.federated.agreement": ("Agreement",),
            "privet.federated.apps": ("Patience", "client_app", "server_app"),
            "privet.federated.contributions": ("ClientUpdates", "ClippedSums", "Sessions"),
            "privet.federated.coordinator": ("Coordinator",),
            "privet.federated.loopback": ("run_in_process",),
            "privet.federated.party": ("Party",),
        },
    )
