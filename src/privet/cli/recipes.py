"""``privet recipes`` and ``privet init``: packaged recipes, and templates for own recipes."""

from __future__ import annotations

from pathlib import Path

import click

from privet.cli import console

# The help must not load the module that reads recipes; a test compares this with the files.
TEMPLATES = ("tabular", "images", "text", "demo")


@click.group(context_settings=console.CONTEXT, epilog=console.examples("privet recipes copy demo mine.toml"))
def recipes() -> None:
    """List, show or copy the packaged recipes."""


@recipes.command(context_settings=console.CONTEXT, epilog=console.examples("privet recipes ls"))
@console.json_option
def ls(as_json: bool) -> None:
    """List all recipes."""
    from privet.runs.recipes.recipe_files import load_recipe, packaged_recipes

    found = {name: load_recipe(name) for name in packaged_recipes()}
    if as_json:
        console.show_json(
            [
                {
                    "name": name,
                    "dataset": recipe.dataset,
                    "model": recipe.model,
                    "epsilon": recipe.privacy.epsilon,
                    "delta": recipe.privacy.delta,
                    "description": recipe.description,
                }
                for name, recipe in found.items()
            ]
        )
        return
    console.show_table(
        ["name", "epsilon", "description"],
        [
            [name, "" if recipe.privacy.epsilon is None else f"{recipe.privacy.epsilon:g}", recipe.description or ""]
            for name, recipe in found.items()
        ],
        right=(1,),
    )


@recipes.command(context_settings=console.CONTEXT, epilog=console.examples("privet recipes show demo"))
@click.argument("name")
def show(name: str) -> None:
    """Print a recipe."""
    from privet.runs.recipes.recipe_files import recipe_text

    click.echo(recipe_text(name), nl=False)


@recipes.command(context_settings=console.CONTEXT, epilog=console.examples("privet recipes copy demo mine.toml"))
@click.argument("name")
@click.argument("path", type=click.Path(dir_okay=False))
def copy(name: str, path: str) -> None:
    """Copy the recipe NAME to the new file PATH, to edit it."""
    from privet.errors import RecipeError
    from privet.runs.recipes.recipe_files import recipe_text

    text = recipe_text(name)
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RecipeError(f"{path} exists and is not overwritten. Name a new file.") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be written: {error.strerror}.") from None
    click.echo(path)


@console.command("privet init tabular > recipe.toml", "privet plan recipe.toml")
@click.argument("kind", type=click.Choice(TEMPLATES), default="tabular")
def init(kind: str) -> None:
    """Print a recipe with a comment on every value, as a template.

    tabular and images are for data of your own; text and demo use data that
    privet knows by name. `privet plan` accepts each of them unchanged.
    """
    from privet.runs.recipes.recipe_files import recipe_templates

    click.echo(recipe_templates()[kind], nl=False)
