"""``privet doctor``: whether a model can be trained privately, and by which rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from privet.cli.console import FAILED, OK, show_json, show_table
from privet.cli.options import CONTEXT, examples, json_option, set_option

if TYPE_CHECKING:
    from privet.experiments.examination import Examination


@click.command(context_settings=CONTEXT, epilog=examples("privet doctor dp_cnn"))
@click.argument("model_or_recipe")
@set_option
@json_option
def doctor(model_or_recipe: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Say whether a model can be trained privately, layer by layer.

    MODEL_OR_RECIPE is the name of a network or a recipe. No data are read;
    the network sees random numbers of the right shape. Exit code 1 says that
    it cannot be trained as it is.
    """
    from privet.experiments.examination import examine

    found = examine(model_or_recipe, overrides)
    if as_json:
        show_json(
            {
                "model": found.model,
                "parameters": found.num_parameters,
                "can_be_trained": found.can_be_trained,
                "failure": found.failure,
                "layers": [
                    {
                        "layer": layer.name,
                        "type": layer.kind,
                        "parameters": layer.num_parameters,
                        "rule": layer.rule,
                        "problem": layer.problem,
                        "fix": layer.fix,
                    }
                    for layer in found.layers
                ],
            }
        )
    else:
        _print(found)
    return OK if found.can_be_trained else FAILED


def _print(found: Examination) -> None:
    rows = [
        [layer.name or "(model)", layer.kind, f"{layer.num_parameters:,}", layer.problem or layer.rule]
        for layer in found.layers
    ]
    show_table(["layer", "type", "parameters", "per-example gradient"], rows, right=(2,))
    for layer in found.layers:
        if layer.fix:
            click.echo(f"  {layer.name or '(model)'}: {layer.fix}")
    if found.failure is not None:
        click.echo(f"  {found.failure}")
    verdict = "can be trained privately" if found.can_be_trained else "cannot be trained privately as it is"
    click.echo(f"{found.model}: {found.num_parameters:,} parameters, {verdict}.")
