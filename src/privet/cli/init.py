"""``privet init``: a recipe with a word on every value, to begin one's own with."""

from __future__ import annotations

import click

from privet.cli.options import CONTEXT, examples

# The help must not load what reads recipes; a test compares this with the files.
KINDS = ("tabular", "images", "text", "demo")


@click.command(
    context_settings=CONTEXT,
    epilog=examples("privet init tabular > recipe.toml", "privet plan recipe.toml"),
)
@click.argument("kind", type=click.Choice(KINDS), default="tabular")
def init(kind: str) -> None:
    """Print a recipe with a word on every value, to change and keep.

    tabular and images are for data of your own; text and demo use data that
    privet knows by name. Every one of them can be planned as it stands.
    """
    from privet.runs.recipe_files import recipe_templates

    click.echo(recipe_templates()[kind], nl=False)
