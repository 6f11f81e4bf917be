"""Files of a federated run beside its ledgers: the list of rounds, and the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.federated.coordinator import Coordinator
from privet.federated.federation_recipe import FederatedRecipe
from privet.runs.model_measures import measure_model

RECIPE_NAME, ROUNDS_NAME, RESULT_NAME = "federation.toml", "rounds.jsonl", "result.json"


@dataclass(frozen=True, kw_only=True)
class FederatedResult:
    """The result of a run.

    Attributes:
        measures: Accuracy and loss on test data. Not covered by the guarantee.
        guarantee: The guarantee of the coordinator's ledger, as plain values.
        words: The guarantee as text.
    """

    measures: Mapping[str, float]
    guarantee: Mapping[str, Any]
    words: str


def note_round(folder: Path, number: int) -> None:
    """Append a line to the list of completed rounds, without the participants, which are secret."""
    with (folder / ROUNDS_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"round": number}) + "\n")


def write_result(recipe: FederatedRecipe, coordinator: Coordinator, folder: Path) -> None:
    """Measure the model, and write the measures and the guarantee as JSON."""
    measures = measure_model(coordinator.model, recipe.split.test, recipe.recipe.info)
    spent = coordinator.guarantee()
    result = {
        "measures": {measure.name: measure.value for measure in measures},
        "guarantee": spent.to_dict(),
        "words": str(spent),
    }
    (folder / RESULT_NAME).write_text(json.dumps(result, indent=2, allow_nan=False), "utf-8")


def read_result(folder: Path) -> FederatedResult:
    """Read the file of ``write_result``."""
    return FederatedResult(**json.loads((folder / RESULT_NAME).read_text("utf-8")))
