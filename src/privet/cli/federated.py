"""``privet federated``: run a federation on this machine, with a ledger for each party."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli import console

if TYPE_CHECKING:
    from privet.federated.wire import Traffic


@console.command(
    "privet federated fashion_mnist_small -o runs/federated",
    "privet federated fashion_mnist_small -o runs/wire --network --rounds 3",
)
@click.argument("recipe")
@click.option("-o", "--output", required=True, metavar="RUN", type=click.Path(), help="A new folder for the run.")
@click.option("--network", is_flag=True, help="Use separate processes on this machine; count the bytes between them.")
@click.option("--rate", type=float, help="Share of masked coordinates, instead of the recipe's.")
@click.option("--rounds", type=click.IntRange(min=1), help="Number of rounds, instead of the recipe's.")
@click.option("--central", is_flag=True, help="Also run the same plan centrally, on all records.")
def federated(recipe: str, output: str, network: bool, rate: float | None, rounds: int | None, central: bool) -> None:
    """Run the federation RECIPE (a packaged name or a TOML file) in the folder RUN.

    Each party and the coordinator keep their own ledger under RUN. By default
    they take turns in this process; with --network they are separate processes,
    a Flower SuperLink and one SuperNode per party (needs privet[flower]).
    """
    from privet.errors import RecipeError
    from privet.federated.federation_recipe import FederatedRecipe

    chosen = FederatedRecipe.load(recipe, mask_rate=rate, num_rounds=rounds)
    folder = Path(output).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise RecipeError(f"{output} is not empty. Name a new folder: every run has its own ledgers.")
    click.echo(f"promised  {chosen.agreement.guarantee()}")
    console.remark(
        f"{chosen.agreement.num_rounds} rounds with {chosen.num_parties} parties; each round adds a line to "
        f"rounds.jsonl in {output}."
    )

    from privet.federated.running import run_centrally, run_here, run_on_network

    if network:
        result, traffic = run_on_network(chosen, folder)
    else:
        result, traffic = run_here(chosen, folder), []
    click.echo(f"spent     {result.words}")
    facts = {"rounds": f"{chosen.agreement.num_rounds} with {chosen.num_parties} parties"}
    num_examples = len(chosen.split.test)
    facts |= {f"test {name}": _measured(name, value, num_examples) for name, value in result.measures.items()}
    if central:
        found = run_centrally(chosen)
        facts |= {f"{name} of the central run": _measured(name, value, num_examples) for name, value in found.items()}
    console.show_facts(facts | _traffic_facts(traffic))


def _measured(name: str, value: float, num_examples: int) -> str:
    """Return a figure with its number of examples, and an accuracy with its interval too."""
    from privet.runs.measures import share

    if name != "accuracy":
        return f"{value:.4f} (n = {num_examples:,})"
    found = share(name, round(value * num_examples), num_examples)
    return f"{value:.4f} ({found.low:.4f} to {found.high:.4f}, {found.interval}, n = {num_examples:,})"


def _traffic_facts(traffic: list[Traffic]) -> dict[str, str]:
    """Return the bytes per round; in the first round every party receives the whole model."""
    if not traffic:
        return {}
    shown = {"bytes, first round": f"{traffic[0].total:,} (up {traffic[0].up:,}, down {traffic[0].down:,})"}
    later = traffic[1:]
    if later:
        up, down = (sum(getattr(each, direction) for each in later) / len(later) for direction in ("up", "down"))
        shown["bytes per later round"] = f"{up + down:,.0f} (up {up:,.0f}, down {down:,.0f})"
    return shown
