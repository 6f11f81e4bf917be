"""A federation as plain values: a recipe, and a table that says who takes part and how."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w
import torch
from torch import nn

from privet import checks
from privet.datasets import load
from privet.datasets.arrays import ArrayDataset, Split
from privet.errors import PrivetError, RecipeError
from privet.federated.agreement import Agreement
from privet.federated.contributions import CONTRIBUTIONS
from privet.federated.coordinator import Coordinator
from privet.federated.party import Party
from privet.mechanism.codec import decode_piece, suggestion
from privet.runs.building import build_model, loss_function
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import recipe_text
from privet.runs.recipes.training_settings import SgdSettings

_KEYS = ("num_parties", "contribution", "max_records", "answer_s")
_PACKAGED = Path(__file__).with_name("recipes")
# Which records a party of an example holds: dealt by a public number, once and for all.
_DEAL_SEED = 0
# The weights before training are no secret; a recipe's own seed, if it has one, wins.
_INITIAL_SEED = 0


def packaged_federations() -> tuple[str, ...]:
    """Return the names of the federations that come with the package."""
    return tuple(sorted(path.stem for path in _PACKAGED.glob("*.toml")))


@dataclass(frozen=True, kw_only=True)
class FederatedRecipe:
    """One federated experiment. The records of a known data set are dealt to parties of nearly equal size.

    Attributes:
        recipe: Data, network, privacy and the learning rate of plain gradient descent.
        num_parties: How many parties there are.
        agreement: What follows from both, calibrated.
        answer_s: Seconds a party has for an answer.
    """

    recipe: Recipe
    num_parties: int
    agreement: Agreement
    answer_s: float
    source: Mapping[str, Any]

    @classmethod
    def load(cls, name_or_path: str | Path, *, mask_rate: float | None = None, num_rounds: int | None = None) -> Self:
        """Read a packaged federation by its name, or a TOML file.

        Args:
            name_or_path: ``fashion_mnist``, or a path.
            mask_rate: Replaces the share of coordinates that is masked.
            num_rounds: Replaces the number of rounds.

        Raises:
            RecipeError: naming what is unknown, missing or impossible.
        """
        known = packaged_federations()
        packaged = isinstance(name_or_path, str) and name_or_path in known
        text = (_PACKAGED / f"{name_or_path}.toml").read_text("utf-8") if packaged else recipe_text(name_or_path)
        try:
            data = tomllib.loads(text)
        except ValueError as error:
            raise RecipeError(f"{name_or_path} is not valid TOML: {error}.") from None
        if mask_rate is not None:
            _table(_table(data, "privacy"), "mask")["schedule"] = {"kind": "constant", "value": mask_rate}
        if num_rounds is not None:
            sampling = _table(_table(data, "privacy"), "sampling")
            sampling.pop("epochs", None)
            sampling["steps"] = num_rounds
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Check plain values, such as those of a TOML file."""
        rest = dict(data)
        federation = rest.pop("federation", None)
        if not isinstance(federation, Mapping):
            raise RecipeError(
                f"There is no [federation] table. It has the keys {', '.join(_KEYS)}. Packaged federations: "
                f"{', '.join(packaged_federations())}."
            )
        for key in federation:
            if key not in _KEYS:
                raise RecipeError(f"federation.{key} is not part of a federation. {suggestion(str(key), list(_KEYS))}")
        missing = [key for key in ("num_parties", "contribution", "max_records") if key not in federation]
        if missing:
            raise RecipeError(f"federation lacks {', '.join(missing)}.")
        recipe = Recipe.from_dict(rest, in_federation=True)
        optimizer = recipe.training.optimizer
        if not isinstance(optimizer, SgdSettings) or optimizer.momentum or optimizer.weight_decay:
            raise RecipeError(
                "A coordinator takes plain gradient steps, so that masked coordinates stay and need not be sent. Set "
                "training.optimizer to { kind = 'sgd', learning_rate = ... } without momentum and weight decay."
            )
        if not isinstance(recipe.training.physical_batch_size, int):
            raise RecipeError("training.physical_batch_size must be a number here: parties differ in memory.")
        try:
            return cls(
                recipe=recipe,
                num_parties=checks.count("num_parties", federation["num_parties"]),
                agreement=Agreement(
                    plan=recipe.plan(),
                    contribution=decode_piece(
                        federation["contribution"], CONTRIBUTIONS, where="federation.contribution"
                    ),
                    learning_rate=optimizer.learning_rate,
                    max_records=federation["max_records"],
                ),
                answer_s=checks.positive("answer_s", federation.get("answer_s", 120.0)),
                source=dict(data),
            )
        except RecipeError:
            raise
        except PrivetError as error:
            raise RecipeError(f"federation: {error}") from error

    def save(self, path: Path) -> None:
        """Write the federation as TOML; ``load`` gives it back."""
        path.write_text(tomli_w.dumps(dict(self.source)), "utf-8")

    @cached_property
    def split(self) -> Split:
        """The data set, read when it is first asked for."""
        return load(self.recipe.dataset, normalisation=self.recipe.normalisation)

    def build_model(self) -> nn.Module:
        """Return the network with which the federation begins: the same one wherever it is built."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_INITIAL_SEED)
            return build_model(self.recipe, torch.device("cpu"))

    @property
    def physical_batch_size(self) -> int:
        """Records that go through the model at once."""
        size = self.recipe.training.physical_batch_size
        assert isinstance(size, int)
        return size

    def coordinator(self, folder: Path) -> Coordinator:
        """Return the coordinator, with its ledger under the run's folder."""
        return Coordinator(
            agreement=self.agreement,
            model=self.build_model(),
            folder=folder / "coordinator",
            seed=self.recipe.training.seed,
        )

    def party(self, number: int, records: ArrayDataset, folder: Path) -> Party:
        """Return one party, with its ledger under the run's folder.

        Args:
            number: Which, from 0.
            records: The training records of the whole data set; the party keeps its own.
            folder: The run's folder.
        """
        if not 0 <= number < self.num_parties:
            raise RecipeError(f"Parties are numbered from 0 to {self.num_parties - 1}, got {number}.")
        order = np.random.Generator(np.random.PCG64(_DEAL_SEED)).permutation(len(records))
        mine = torch.from_numpy(np.sort(order[number :: self.num_parties]))
        model, seed = self.build_model(), self.recipe.training.seed
        return Party(
            agreement=self.agreement,
            model=model,
            dataset=records.rows(mine),
            losses=loss_function(self.recipe.info, model),
            folder=folder / f"party{number}",
            physical_batch_size=self.physical_batch_size,
            seed=None if seed is None else 1 + number + seed * (self.num_parties + 1),
        )


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    found = data.get(key)
    if not isinstance(found, dict):
        raise RecipeError(f"{key} must be a table.")
    return found
