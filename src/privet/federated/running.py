"""Running a federated recipe on one machine: in one process, or as processes over the loopback network."""

from __future__ import annotations

from pathlib import Path

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

_START_S = 300.0


def _prepared(recipe: FederatedRecipe, folder: Path) -> Path:
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    recipe.save(folder / RECIPE_NAME)
    return folder


def run_here(recipe: FederatedRecipe, folder: Path) -> FederatedResult:
    """Run a federation in this process, one party after another."""
    folder, records = _prepared(recipe, folder), recipe.split.train
    parties = {number: recipe.party(number, records, folder) for number in range(recipe.num_parties)}
    with recipe.coordinator(folder) as coordinator:
        run_in_process(coordinator, parties, after=lambda report: note_round(folder, report.round))
        write_result(recipe, coordinator, folder)
    return read_result(folder)


def run_centrally(recipe: FederatedRecipe) -> dict[str, float]:
    """Run the same plan as central training on all records, and return the measures of the model.

    Raises:
        RecipeError: the contribution is not ``clipped_sums``, the only one that central training can repeat.
    """
    contribution = recipe.agreement.contribution
    if contribution.samples_parties or not contribution.has_central_noise:
        raise RecipeError("Central training can repeat clipped_sums only. Change federation.contribution.")
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
    """Run a federation of real processes on the loopback device, and measure the traffic between them.

    Returns:
        The result, and the traffic of each round. The first round sends all weights to every party.
    """
    folder = _prepared(recipe, folder)
    app = folder / "app"
    write_app(app, {"recipe": str(folder / RECIPE_NAME), "folder": str(folder)})
    longest = _START_S + recipe.agreement.num_rounds * (recipe.answer_s + 30.0)
    with LoopbackDeployment(folder=folder, num_parties=recipe.num_parties) as deployment:
        traffic = deployment.run(app, rounds=folder / ROUNDS_NAME, timeout_s=longest)
    return read_result(folder), traffic
