"""The Flower apps of a federated recipe, which SuperNodes and the SuperLink load.

The run's configuration contains two absolute paths, ``recipe`` (a TOML file) and ``folder`` (for ledgers); a node's
configuration contains the number of its party, ``partition-id``.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from privet.federated.apps import Context, Patience, client_app, server_app
from privet.federated.coordinator import Coordinator, RoundReport
from privet.federated.federation_recipe import FederatedRecipe
from privet.federated.party import Party
from privet.federated.results import note_round, write_result


# One process may serve many rounds: it reads the data and checks the network once.
@lru_cache(maxsize=8)
def cached_recipe(path: str) -> FederatedRecipe:
    """Return the recipe in a file."""
    return FederatedRecipe.load(Path(path))


@lru_cache(maxsize=64)
def cached_party(path: str, folder: str, number: int) -> Party:
    """Return a party of a recipe."""
    torch.set_num_threads(1)
    recipe = cached_recipe(path)
    return recipe.party(number, recipe.split.train, Path(folder))


def _recipe(context: Context) -> FederatedRecipe:
    return cached_recipe(str(context.run_config["recipe"]))


def _folder(context: Context) -> Path:
    return Path(str(context.run_config["folder"]))


def load_party(context: Context) -> Party:
    """Return the party of a node."""
    number = int(context.node_config["partition-id"])
    return cached_party(str(context.run_config["recipe"]), str(_folder(context)), number)


def load_coordinator(context: Context) -> Coordinator:
    """Return the coordinator of a run."""
    return _recipe(context).coordinator(_folder(context))


def load_patience(context: Context) -> Patience:
    """Return the timeouts of a run."""
    recipe = _recipe(context)
    return Patience(num_parties=recipe.num_parties, answer_s=recipe.answer_s)


def _after(coordinator: Coordinator, report: RoundReport, context: Context) -> None:
    note_round(_folder(context), report.round)


def _finished(coordinator: Coordinator, context: Context) -> None:
    write_result(_recipe(context), coordinator, _folder(context))


client = client_app(load_party)
server = server_app(load_coordinator, patience=load_patience, after=_after, finished=_finished)
