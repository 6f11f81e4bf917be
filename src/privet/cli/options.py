"""Arguments and options that several verbs share."""

from __future__ import annotations

import click

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


def examples(*lines: str) -> str:
    """Return the end of a help page that shows how a verb is called; the mark keeps its lines as they are."""
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


recipe_argument = click.argument("recipe")
run_argument = click.argument("run_folder", metavar="RUN", type=click.Path())
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
quick_option = click.option("--quick", is_flag=True, help="Use the recipe's small version.")
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one value of the recipe, such as privacy.epsilon=2. May be repeated; an empty value removes the key.",
)
device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
adjacency_option = click.option(
    "--adjacency",
    type=click.Choice(["add_or_remove", "replace_one", "zero_out"]),
    default="add_or_remove",
    show_default=True,
    help="Which two data sets must look alike.",
)
unit_option = click.option(
    "--unit",
    type=click.Choice(["record", "person"]),
    default="record",
    show_default=True,
    help="What one item of the data stands for.",
)
