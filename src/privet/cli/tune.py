"""``privet tune``: a search over settings as one job, with one ledger and one total."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli import console
from privet.cli.table_address import DATA

if TYPE_CHECKING:
    from privet.accounting.guarantee import Guarantee
    from privet.datasets.arrays import ArrayDataset
    from privet.runs.recipes.recipe import Recipe
    from privet.runs.trial_charges import TrialCharges
    from privet.runs.trial_samplers import TrialSampler


@console.command(
    "privet tune demo --trials 10 -o runs/tuned\n    --vary training.optimizer.learning_rate=0.5:8:log",
    "privet tune demo --trials 10 --sampler optuna -o runs/adapted\n    --vary privacy.clipping.norm=0.05,0.1,0.2",
)
@console.recipe_argument
@click.option("-o", "--output", metavar="FOLDER", type=click.Path(), required=True, help="The folder of the search.")
@click.option(
    "--trials", type=click.IntRange(min=1), required=True, help="Number of trials: expected, or exact with optuna."
)
@click.option(
    "--vary", "varied", multiple=True, help="A setting and its law: NAME=0.1,1 or NAME=0.01:1:log. Repeatable."
)
@click.option(
    "--sampler",
    type=click.Choice(["law", "optuna"]),
    default="law",
    show_default=True,
    help="Draw trials from the law, or learn from results; then every trial is charged in full.",
)
@console.length_option
@click.option("--compare-on", type=DATA, help="Own table: public records to compare trials on.")
@console.set_option
@console.quick_option
@console.json_option
def tune(
    recipe: str,
    output: str,
    trials: int,
    varied: tuple[str, ...],
    sampler: str,
    length: str,
    compare_on: str | None,
    overrides: tuple[str, ...],
    quick: bool,
    as_json: bool,
) -> int:
    """Search settings of RECIPE with trials, and release the best model.

    privacy.epsilon of the recipe is the epsilon of the whole search. Trials
    that are drawn from a fixed law are charged together, once, for a random
    number of them; the number stays secret. A sampler that learns from results
    pays for every trial. Trials are compared on public data.

    Ctrl-C stops after the current trial; the same command goes on. A trial that
    is broken off stays charged, and another is run in its place.
    """
    from privet.cli.train import stopping_on_signals
    from privet.runs.recipes.recipe_files import load_recipe
    from privet.runs.search_law import SearchLaw

    loaded = load_recipe(recipe, overrides, quick=quick)
    law = SearchLaw.parse(varied)
    charges, proposes = _how(sampler, length, trials)
    from privet.runs.tuning import Tuning

    job = Tuning(loaded, output, law=law, charges=charges, sampler=proposes, public=_public(loaded, compare_on))
    if not as_json:
        _show("promised", job.planned)
        if charges.may_adapt:
            console.remark(f"The sampler learns from results: each of the {trials} trials is charged in full.")
    with stopping_on_signals("trial") as should_stop:
        found = job.run(should_stop=should_stop, after_trial=lambda trial: console.remark("a trial is done"))
    if found is None:
        console.remark("Stopped: the search is not finished. The same command goes on.")
        return console.INTERRUPTED
    if as_json:
        record = {"guarantee": found.guarantee.to_dict(), "settings": found.values, found.measure: found.score}
        console.show_json(record | {"folder": str(found.folder)})
        return console.OK
    _show("spent", found.guarantee)
    console.show_facts(
        {
            **{path: str(value) for path, value in found.values.items()},
            f"public {found.measure}": f"{found.score:.4f}",
            "chosen model": str(found.folder),
            "statement": str(found.folder / "statement.txt"),
        }
    )
    return console.OK


def _how(sampler: str, length: str, trials: int) -> tuple[TrialCharges, TrialSampler]:
    from privet.accounting.private_selection import RandomSearch
    from privet.runs.trial_charges import EveryTrial, IndependentTrials
    from privet.runs.trial_samplers import FromLaw, FromOptuna

    if sampler == "optuna":
        return EveryTrial(count=trials), FromOptuna()
    return IndependentTrials(search=RandomSearch(mean=float(trials), shape=console.LENGTHS[length])), FromLaw()


def _public(recipe: Recipe, path: str | None) -> ArrayDataset | None:
    from privet.datasets.own.own_table import read_test_csv
    from privet.datasets.sql_tables import same_table
    from privet.errors import RecipeError

    if path is None:
        return None
    if recipe.table is None:
        raise RecipeError("--compare-on is for a recipe with a [table]; it names a CSV file with the same columns.")
    train = recipe.table.train
    is_copy = Path(path).is_file() and Path(train).is_file() and filecmp.cmp(path, train, shallow=False)
    if not recipe.is_public and (is_copy or same_table(path, train)):
        raise RecipeError(
            "--compare-on names the records that are trained on, which are private. Compare trials on public records."
        )
    return read_test_csv(path, recipe.table.declared(), recipe.info.normalisation())


def _show(name: str, guarantee: Guarantee) -> None:
    click.echo(f"{name.ljust(10)}{guarantee}")
