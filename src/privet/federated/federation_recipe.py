"""A federated recipe: an ordinary recipe with a ``[federation]`` table."""

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
from privet.training.performance import Performance

_KEYS = ("num_parties", "contribution", "max_records", "answer_s")
_PACKAGED = Path(__file__).with_name("recipes")
# Public seed of the fixed assignment of records to parties.
_DEAL_SEED = 0
# The initial weights are public; the seed of the recipe, if set, takes precedence.
_INITIAL_SEED = 0


def packaged_federations() -> tuple[str, ...]:
    """Return the names of the packaged federations."""
    return tuple(sorted(path.stem for path in _PACKAGED.glob("*.toml")))


@dataclass(frozen=True, kw_only=True)
class FederatedRecipe:
    """One federated experiment. The records of a known data set are divided among parties of nearly equal size.

    Attributes:
        recipe: Data, network, privacy and learning rate.
        num_parties: Number of parties.
        agreement: The calibrated agreement of recipe and federation.
        answer_s: Timeout for an answer, in seconds.
        source: The plain values of the recipe.
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
            name_or_path: A name such as ``fashion_mnist``, or a path.
            mask_rate: Replaces the fraction of masked coordinates.
            num_rounds: Replaces the number of rounds.

        Raises:
            RecipeError: a key is unknown or missing, or a combination is impossible; the message names it.
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
        """Return the recipe of plain values, such as those of a TOML file."""
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
                "The coordinator uses plain gradient descent: masked coordinates do not change and are not sent. Set "
                "training.optimizer to { kind = 'sgd', learning_rate = ... } without momentum and weight decay."
            )
        if not isinstance(recipe.training.physical_batch_size, int):
            raise RecipeError("training.physical_batch_size must be a number: parties differ in memory.")
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
        """Write the federation as TOML for ``load``."""
        path.write_text(tomli_w.dumps(dict(self.source)), "utf-8")

    @cached_property
    def split(self) -> Split:
        """The data set, read on first access."""
        return load(self.recipe.dataset, normalisation=self.recipe.normalisation)

    def build_model(self) -> nn.Module:
        """Return the network with its initial weights, identical in every process."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_INITIAL_SEED)
            return build_model(self.recipe, torch.device("cpu"))

    @property
    def physical_batch_size(self) -> int:
        """Number of records in one forward pass."""
        size = self.recipe.training.physical_batch_size
        assert isinstance(size, int)
        return size

    def coordinator(self, folder: Path) -> Coordinator:
        """Return the coordinator, with its ledger in the run's folder."""
        return Coordinator(
            agreement=self.agreement,
            model=self.build_model(),
            folder=folder / "coordinator",
            seed=self.recipe.training.seed,
        )

    def party(self, number: int, records: ArrayDataset, folder: Path) -> Party:
        """Return one party, with its ledger in the run's folder.

        Args:
            number: Number of the party, from 0.
            records: The training records of the whole data set; the party uses its own part.
            folder: The run's folder.
        """
        if not 0 <= number < self.num_parties:
            raise RecipeError(f"Parties are numbered from 0 to {self.num_parties - 1}, got {number}.")
        order = np.random.Generator(np.random.PCG64(_DEAL_SEED)).permutation(len(records))
        own_rows = torch.from_numpy(np.sort(order[number :: self.num_parties]))
        model, seed = self.build_model(), self.recipe.training.seed
        return Party(
            agreement=self.agreement,
            model=model,
            dataset=records.rows(own_rows),
            losses=loss_function(self.recipe.info, model),
            folder=folder / f"party{number}",
            performance=Performance(physical_batch_size=self.physical_batch_size),
            seed=None if seed is None else 1 + number + seed * (self.num_parties + 1),
        )


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    found = data.get(key)
    if not isinstance(found, dict):
        raise RecipeError(f"{key} must be a table.")
    return found
