"""``privet sweep``: one recipe at several epsilons, on stand-ins or charged."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli import console
from privet.cli.own_data_options import own_data_options
from privet.cli.train_own_data import OwnData, is_own_data

if TYPE_CHECKING:
    from privet.runs.recipes.recipe import Recipe
    from privet.runs.sweep import Sweep, SweepPoint


@console.command(
    "privet sweep my.csv --target y --schema schema.toml --epsilons 1,3 -o sweep",
    "privet sweep my.toml --epsilons 1,3 --on public.csv -o sweep",
    "privet sweep my.toml --epsilons 1,3 -o sweep\n    --charged --evaluate-epsilon 0.5",
)
@console.recipe_argument
@click.option("--epsilons", required=True, help="The epsilons to try, such as 0.5,1,2,4,8.")
@click.option("-o", "--output", metavar="FOLDER", type=click.Path(), required=True, help="The folder of the sweep.")
@click.option("--on", "public", type=click.Path(exists=True), help="Public records with the same columns.")
@click.option("--charged", is_flag=True, help="Use the private records, and charge every model and figure.")
@click.option("--evaluate-epsilon", type=float, help="With --charged: what the figure of each model may cost.")
@click.option("--max-epsilon", type=float, help="With --charged: refuse a larger total (exit code 3).")
@click.option("--estimate", "is_estimate", is_flag=True, help="Only tell time and memory.")
@own_data_options
@console.set_option
@console.quick_option
@console.json_option
def sweep(
    recipe: str,
    epsilons: str,
    output: str,
    public: str | None,
    charged: bool,
    evaluate_epsilon: float | None,
    max_epsilon: float | None,
    is_estimate: bool,
    own: OwnData,
    overrides: tuple[str, ...],
    quick: bool,
    as_json: bool,
) -> int:
    """Train RECIPE, or a table of your own, at several epsilons, and compare.

    By default no private record is read: models are trained on records that are
    made up from the declared columns, on public records of the same columns
    (--on), or on data that are public. A page shows accuracy against epsilon,
    the limit of every attack beside it, and what others chose. Time and memory
    are told before.

    With --charged the private records are used. Every model and every figure
    is then charged, and the total is that of all of them.
    """
    asked = _numbers(epsilons)
    if charged != (evaluate_epsilon is not None) or (charged and public is not None):
        raise click.UsageError("--charged needs --evaluate-epsilon, and both go without --on.")
    if max_epsilon is not None and not charged:
        raise click.UsageError("--max-epsilon is for --charged: nothing else is charged.")
    overrides = (*overrides, f"evaluation.epsilon={evaluate_epsilon!r}") if charged else overrides
    recipes = [
        _recipe(recipe, replace(own, epsilon=epsilon), overrides, quick=quick, public=public, charged=charged)
        for epsilon in asked
    ]
    from privet.reports.sweep_page import HEADER, sweep_rows, write_sweep

    shown = (lambda point: None) if as_json else _show_point
    if charged:
        from privet.runs.evaluation.private_evaluation import Asked
        from privet.runs.sweep import charged_total, sweep_charged

        assert evaluate_epsilon is not None
        evaluation = Asked(epsilon=evaluate_epsilon)
        console.remark(f"in all    {charged_total(recipes, evaluation)}")
        if is_estimate:
            return console.OK
        found, _ = sweep_charged(recipes, output, evaluation, max_epsilon=max_epsilon, after=shown)
    else:
        done = _on_stand_ins(recipes, output, public, is_estimate=is_estimate, after=shown)
        if done is None:
            return console.OK
        found = done
    page = write_sweep(found, output)
    if as_json:
        console.show_json({**found.to_dict(), "page": str(page)})
    else:
        console.show_table(
            [found.points[0].measure if name == "figure" else name for name in HEADER], sweep_rows(found.points)
        )
        click.echo(page)
    return console.OK


def _show_point(point: SweepPoint) -> None:
    console.remark(f"epsilon {point.epsilon:.3g} is done")


def _on_stand_ins(
    recipes: list[Recipe], output: str, public: str | None, *, is_estimate: bool, after: Callable[[SweepPoint], None]
) -> Sweep | None:
    import shutil

    from privet.runs.stand_ins import made_up_files, split_public_file
    from privet.runs.sweep import estimate, remove_runs, sweep_stand_ins

    stand_ins = Path(output) / "stand-ins"
    words = "public data"
    if recipes[0].own_data is not None and not recipes[0].is_public:
        stand_ins.mkdir(parents=True, exist_ok=True)
        if public is None:
            train, test = made_up_files(recipes[0], stand_ins)
            words = (
                "made-up records with the declared columns: how accuracy falls with epsilon, not how high it will be"
            )
        else:
            train, test, size = split_public_file(recipes[0], public, stand_ins)
            words = f"{size:,} public records of the same columns"
        recipes = [_on_files(each, train, test) for each in recipes]
    told = estimate(recipes)
    memory = "memory not known here" if told.peak_bytes is None else f"{told.peak_bytes / 1e9:.1f} GB of memory"
    console.remark(f"{len(recipes)} models: about {max(1, round(told.seconds)):,} s and {memory}.")
    try:
        if is_estimate:
            return None
        found = sweep_stand_ins(recipes, output, measured_on=words, after=after)
        remove_runs(output)
        return found
    finally:
        shutil.rmtree(stand_ins, ignore_errors=True)


def _on_files(recipe: Recipe, train: Path, test: Path) -> Recipe:
    assert recipe.table is not None
    table = recipe.table.model_copy(update={"train": str(train), "test": str(test)})
    return recipe.model_copy(update={"table": table, "data_is_public": True, "evaluation": None})


def _numbers(text: str) -> list[float]:
    try:
        found = sorted({float(word) for word in text.split(",")})
    except ValueError:
        raise click.UsageError(f"--epsilons lists numbers, such as 0.5,1,2,4,8; got {text!r}.") from None
    if not found or found[0] <= 0:
        raise click.UsageError("--epsilons lists positive numbers, such as 0.5,1,2,4,8.")
    return found


def _recipe(
    name: str, own: OwnData, overrides: tuple[str, ...], *, quick: bool, public: str | None, charged: bool
) -> Recipe:
    from privet.runs.recipes.recipe_files import load_recipe, packaged_recipes

    if is_own_data(name) and name not in packaged_recipes():
        if public is not None:
            own = replace(own, size=_training_size(own, public))
        with redirect_stderr(io.StringIO()):  # its remarks are about one run that is trained and kept
            return own.recipe_for(name, overrides, reads_records=charged)
    return load_recipe(name, [*own.overrides(), *overrides], quick=quick)


def _training_size(own: OwnData, public: str) -> int:
    """Return how many of the public records are trained on: the recipe is made for them, as they are counted freely."""
    from privet.datasets.tables import read_public_cells
    from privet.runs.stand_ins import training_size

    _, rows = read_public_cells(public, delimiter=own.delimiter or ("\t" if ".tsv" in public.lower() else ","))
    return training_size(len(rows))
