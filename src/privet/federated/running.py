"""Running a federated recipe on this machine: inside one process, in Flower's simulation engine, or over a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch.optim import SGD

from privet.errors import RecipeError
from privet.federated.deployment import LoopbackDeployment, write_app
from privet.federated.federation_recipe import FederatedRecipe
from privet.federated.loopback import run_in_process
from privet.federated.results import (
    RECIPE_NAME,
    ROUNDS_NAME,
    FederatedResult,
    note_round,
    read_result,
    write_result,
)
from privet.federated.wire import Traffic
from privet.runs.building import loss_function
from privet.runs.model_measures import measure_model
from privet.training.performance import Performance
from privet.training.start import privatize

if TYPE_CHECKING:
    from privet.federated.apps import Context
    from privet.federated.coordinator import Coordinator, RoundReport
    from privet.federated.party import Party

_START_S = 300.0


def _prepared(recipe: FederatedRecipe, folder: Path) -> Path:
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    recipe.save(folder / RECIPE_NAME)
    return folder


def run_here(recipe: FederatedRecipe, folder: Path) -> FederatedResult:
    """Run a federation inside this process, one party after another."""
    folder, records = _prepared(recipe, folder), recipe.split.train
    parties = {number: recipe.party(number, records, folder) for number in range(recipe.num_parties)}
    with recipe.coordinator(folder) as coordinator:
        run_in_process(coordinator, parties, after=lambda report: note_round(folder, report.round))
        write_result(recipe, coordinator, folder)
    return read_result(folder)


def run_centrally(recipe: FederatedRecipe) -> dict[str, float]:
    """Run the same plan on all records in one place, and return what the model measures.

    Raises:
        RecipeError: parties train without the plan between messages, so there is no central run of the same kind.
    """
    way = recipe.agreement.contribution
    if way.samples_parties or not way.has_central_noise:
        raise RecipeError("Only clipped_sums carry out a plan that can be run in one place as it is.")
    split, model = recipe.split, recipe.build_model()
    losses = loss_function(recipe.recipe.info, model)
    optimizer = SGD(model.parameters(), lr=recipe.agreement.learning_rate)
    with privatize(
        model,
        optimizer,
        split.train,
        recipe.agreement.plan,
        performance=Performance(physical_batch_size=recipe.physical_batch_size),
    ) as session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()
    return {measure.name: measure.value for measure in measure_model(model, split.test, recipe.recipe.info)}


def run_on_network(recipe: FederatedRecipe, folder: Path) -> tuple[FederatedResult, list[Traffic]]:
    """Run a federation of real processes on the loopback device, and measure what passes between them.

    Returns:
        The result, and the traffic of each round. The first round brings every party the whole model.
    """
    folder = _prepared(recipe, folder)
    app = folder / "app"
    write_app(app, {"recipe": str(folder / RECIPE_NAME), "folder": str(folder)})
    longest = _START_S + recipe.agreement.num_rounds * (recipe.answer_s + 30.0)
    with LoopbackDeployment(folder=folder, num_parties=recipe.num_parties) as deployment:
        traffic = deployment.run(app, rounds=folder / ROUNDS_NAME, timeout_s=longest)
    return read_result(folder), traffic


def run_in_simulation(recipe: FederatedRecipe, folder: Path) -> FederatedResult:
    """Run a federation in Flower's simulation engine; needs ``flwr[simulation]``."""
    from flwr.simulation import run_simulation

    from privet.federated.apps import Patience, client_app, server_app

    folder = _prepared(recipe, folder)
    path = str(folder / RECIPE_NAME)

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
    return read_result(folder)
