"""``privet doctor``: whether a model can be trained privately, by which gradient rules, and at which cost."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from privet.cli import console

if TYPE_CHECKING:
    from privet.runs.model_check import Examination, LayerFinding
    from privet.runs.model_cost import Inputs, ModelCost


class _Shape(click.ParamType[tuple[int, ...]]):
    """Whole numbers separated by commas or x."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if not re.fullmatch(r"[1-9][0-9]{0,8}([,x][1-9][0-9]{0,8})*", value):
            self.fail(f"{value!r} is not a shape such as 3,32,32.", param, ctx)
        return tuple(int(length) for length in re.split("[,x]", value))


@console.command(
    "privet doctor dp_cnn",
    "privet doctor mine.py:build --input-shape 3,32,32",
    "privet doctor pkg.nets:Tagger --token-shape 128 --vocabulary 30522",
    "privet doctor mine.py:build --batch mine.py:batch",
)
@click.argument("model_or_recipe")
@console.set_option
@click.option("--input-shape", type=_Shape(), help="Shape of one example of your own network: random numbers.")
@click.option("--token-shape", type=_Shape(), help="Shape of one example of your own network: random token ids.")
@click.option("--vocabulary", type=click.IntRange(min=1), help="Number of token ids.")
@click.option(
    "--dtype", type=click.Choice(["float32", "float64", "bfloat16", "float16"]), help="Type of the random numbers."
)
@click.option(
    "--batch",
    "batch_reference",
    metavar="REFERENCE",
    help="file.py:function that returns an example batch: a tensor, tuple or dictionary of them.",
)
@click.option("--batch-size", type=click.IntRange(min=2), default=13, show_default=True, help="Size of the batch.")
@console.device_option
@console.json_option
def doctor(
    model_or_recipe: str,
    overrides: tuple[str, ...],
    input_shape: tuple[int, ...] | None,
    token_shape: tuple[int, ...] | None,
    vocabulary: int | None,
    dtype: str | None,
    batch_reference: str | None,
    batch_size: int,
    device: str,
    as_json: bool,
) -> int:
    """Check whether a model can be trained privately, and measure the cost.

    MODEL_OR_RECIPE is the name of a network, a recipe, or a network of your
    own: package.module:function or file.py:function, a function or class that
    needs no arguments. THAT CODE IS IMPORTED AND RUN; examine only code that
    you trust.

    No data are read: the network gets random numbers of the right shape. For
    each layer the table shows the strategy for its gradient norms, its time in
    milliseconds, and the memory kept until the clipping factors are known. Exit
    code 1 says that the network cannot be trained in its present form.
    """
    from privet.runs import model_check
    from privet.runs.user_models import is_reference

    if is_reference(model_or_recipe):
        if overrides:
            raise click.UsageError("--set changes recipes; a network of your own has none.")
        inputs = _inputs(input_shape, token_shape, vocabulary, dtype, batch_reference)
        found = model_check.examine_referenced(model_or_recipe, inputs, num_examples=batch_size, device=device)
        option = "--input-shape" if token_shape is None else "--token-shape and --vocabulary"
        remedy = f"Check {option}: the shape of one example, without the batch axis."
        remedy = remedy if batch_reference is None else f"Check the batch that {batch_reference} returns."
    else:
        if input_shape or token_shape or vocabulary or dtype or batch_reference:
            raise click.UsageError("Shapes are for a network of your own (file.py:function); this one has its own.")
        _refuse_own_loop(model_or_recipe)
        found = model_check.examine(model_or_recipe, overrides, num_examples=batch_size, device=device)
        remedy = "Choose a network that accepts the examples of this data set."
    found = replace(found, failure=_with_remedy(found.failure, remedy))
    if as_json:
        console.show_json(_as_dict(found))
    else:
        _print(found)
    return console.OK if found.can_be_trained else console.FAILED


def _refuse_own_loop(name: str) -> None:
    """Refuse the folder of a user's own training loop: it has no recipe and records no network."""
    from pathlib import Path

    from privet.runs.run_files import RunFiles

    folder = Path(name)
    if folder.is_dir() and RunFiles(folder=folder).is_own_loop:
        raise click.UsageError(
            f"{name} is the run of a training loop of your own. Such a run has no recipe and does not record its "
            "network. Name the network: privet doctor file.py:function --input-shape SHAPE"
        )


def _with_remedy(failure: str | None, remedy: str) -> str | None:
    """Return a failure with a remedy on the command line in place of the library's remedy in Python."""
    from privet.training.preflight.preflight import FAILS_ON_MADE_UP, SHAPES_REMEDY

    if failure is None or not failure.startswith(FAILS_ON_MADE_UP):
        return failure
    reason = failure.removeprefix(FAILS_ON_MADE_UP).removesuffix(SHAPES_REMEDY).strip()
    return f"The network fails on random examples {reason} {remedy}"


def _inputs(
    input_shape: tuple[int, ...] | None, token_shape: tuple[int, ...] | None, vocabulary: int | None,
    dtype: str | None, batch_reference: str | None,
) -> Inputs:  # fmt: skip
    import torch

    from privet.runs.model_cost import GivenBatch, RandomNumbers, RandomTokens
    from privet.runs.user_models import batch_referenced, is_reference

    if batch_reference is not None:
        if input_shape or token_shape or vocabulary or dtype:
            raise click.UsageError("A batch has shapes and types of its own. Give either --batch or shapes.")
        if not is_reference(batch_reference):
            raise click.UsageError("--batch takes file.py:function or package.module:function.")
        return GivenBatch(batch=batch_referenced(batch_reference))
    if (input_shape is None) == (token_shape is None):
        raise click.UsageError("Give either --input-shape or --token-shape, the shape of one example, or --batch.")
    if dtype is not None and input_shape is None:
        raise click.UsageError("--dtype needs --input-shape: token ids are whole numbers.")
    if input_shape is not None:
        if vocabulary is not None:
            raise click.UsageError("--vocabulary needs --token-shape. Remove it, or give --token-shape.")
        return RandomNumbers(shape=input_shape, dtype=getattr(torch, dtype or "float32"))
    if token_shape is None or vocabulary is None:
        raise click.UsageError("--token-shape needs --vocabulary, the number of token ids.")
    return RandomTokens(shape=token_shape, vocabulary=vocabulary)


def _as_dict(found: Examination) -> dict[str, Any]:
    return {
        "model": found.model,
        "parameters": found.num_parameters,
        "can_be_trained": found.can_be_trained,
        "failure": found.failure,
        "layers": [_layer_dict(layer) for layer in found.layers],
        "cost": None if found.cost is None else _cost_dict(found.cost),
    }


def _layer_dict(layer: LayerFinding) -> dict[str, Any]:
    return {
        "layer": layer.name,
        "type": layer.kind,
        "parameters": layer.num_parameters,
        **_picked(layer, "rule", "problem", "fix", "strategy", "seconds", "kept_bytes"),
        "tried": [{"strategy": each.name, **_picked(each, "seconds", "kept_bytes")} for each in layer.tried],
    }


def _picked(found: object, *names: str) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names}


def _cost_dict(cost: ModelCost) -> dict[str, Any]:
    return {
        "batch_size": cost.num_examples,
        **_picked(cost, "device", "plain_seconds", "private_seconds"),
        "first_private_seconds": cost.first_seconds,
        "time_ratio": cost.private_seconds / cost.plain_seconds,
        "predicted_time_ratio": cost.predicted_seconds / cost.plain_seconds,
        "predicted_memory_ratio": cost.peak_ratio,
    }


def _print(found: Examination) -> None:
    rows = [
        [
            layer.name or "(model)",
            layer.kind,
            f"{layer.num_parameters:,}",
            layer.problem or layer.rule,
            layer.strategy or "",
            "" if layer.seconds is None else f"{layer.seconds * 1e3:.2f}",
            "" if layer.kept_bytes is None else f"{layer.kept_bytes / 1e6:.2f}",
        ]
        for layer in found.layers
    ]
    header = ["layer", "type", "parameters", "per-example gradient", "norms by", "ms", "MB kept"]
    console.show_table(header, rows, right=(2, 5, 6))
    for layer in found.layers:
        if layer.fix:
            click.echo(f"  {layer.name or '(model)'}: {layer.fix}")
    if found.failure is not None:
        click.echo(f"  {found.failure}")
    if found.cost is not None:
        console.show_facts(_facts(found.cost))
    verdict = "can be trained privately" if found.can_be_trained else "cannot be trained privately in its present form"
    click.echo(f"{found.model}: {found.num_parameters:,} parameters, {verdict}.")


def _facts(cost: ModelCost) -> dict[str, str]:
    measured, predicted = cost.private_seconds / cost.plain_seconds, cost.predicted_seconds / cost.plain_seconds
    return {
        "plain pass": f"{cost.plain_seconds * 1e3:.2f} ms for {cost.num_examples} examples on {cost.device}",
        "private pass": f"{cost.private_seconds * 1e3:.2f} ms: {measured:.2f} times as long, predicted {predicted:.2f}",
        "first private pass": f"{cost.first_seconds:.2f} s, with the trial pass and the choice of strategies",
        "memory": f"predicted peak {cost.peak_ratio:.2f} times that of plain training",
    }
