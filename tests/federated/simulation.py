"""Run a federated recipe in Flower's simulation engine: ``python simulation.py RECIPE FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from privet.federated.coordinator import Coordinator, RoundReport
from privet.federated.federation_recipe import FederatedRecipe
from privet.federated.party import Party
from privet.federated.results import note_round, write_result

if TYPE_CHECKING:
    from privet.federated.apps import Context


def run(path: str, folder: Path) -> None:
    # inside: doctest collection imports this file where Flower is not installed
    from flwr.simulation import run_simulation

    from privet.federated.apps import Patience, client_app, server_app

    recipe = FederatedRecipe.load(Path(path))

    def party(context: Context) -> Party:
        # inside: the engine copies this function to its workers, which keep parties from round to round
        from privet.federated.recipe_apps import cached_party

        return cached_party(path, str(folder), int(context.node_config["partition-id"]))

    def after(coordinator: Coordinator, report: RoundReport, context: Context) -> None:
        note_round(folder, report.round)

    server = server_app(
        lambda context: recipe.coordinator(folder),
        patience=lambda context: Patience(num_parties=recipe.num_parties, answer_s=recipe.answer_s),
        after=after,
        finished=lambda coordinator, context: write_result(recipe, coordinator, folder),
    )
    run_simulation(
        server_app=server,
        client_app=client_app(party),
        num_supernodes=recipe.num_parties,
        backend_config={"client_resources": {"num_cpus": 1}},
    )


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
