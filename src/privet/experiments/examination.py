"""Looking at a model before training: every layer, the rule for its per-example gradient, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from privet.datasets.known import KNOWN_DATASETS
from privet.errors import RecipeError, UnsupportedModel
from privet.experiments.recipe_files import load_recipe
from privet.gradients.capture import Capture, mark_batch
from privet.gradients.layer_rules import RULES
from privet.gradients.support import check_model, find_problems
from privet.models import MODELS, count_parameters

_PROBE_BATCH = 3
_GENERAL_RULE = "general (vmap)"


@dataclass(frozen=True, kw_only=True)
class LayerFinding:
    """One layer that has parameters or a problem."""

    name: str
    kind: str
    num_parameters: int
    rule: str
    problem: str | None
    fix: str | None


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found about a model."""

    model: str
    num_parameters: int
    layers: tuple[LayerFinding, ...]
    failure: str | None

    @property
    def can_be_trained(self) -> bool:
        """Whether a private session would accept the model."""
        return self.failure is None and all(layer.problem is None for layer in self.layers)


def examine(model_or_recipe: str, overrides: Sequence[str] = ()) -> Examination:
    """Examine a network by its name, or the network of a recipe. Reads no data.

    Raises:
        RecipeError: nothing has this name.
    """
    if model_or_recipe in MODELS and not overrides:
        spec = MODELS[model_or_recipe]
        return examine_model(spec.name, spec.build(spec.input_shape, spec.num_classes), spec.input_shape)
    try:
        recipe = load_recipe(model_or_recipe, overrides)
    except RecipeError as error:
        raise RecipeError(f"{error} Models: {', '.join(MODELS)}.") from None
    info = KNOWN_DATASETS[recipe.dataset]
    model = MODELS[recipe.model].build(info.input_shape, info.num_classes or 1)
    return examine_model(recipe.model, model, info.input_shape)


def examine_model(name: str, model: nn.Module, input_shape: tuple[int, ...]) -> Examination:
    """Examine any model whose input is one tensor: known faults first, then one forward pass on random numbers."""
    model.train()
    problems = {finding.name: finding for finding in find_problems(model)}
    rules, failure = ({}, None) if problems else _observed_rules(model, input_shape)
    layers = []
    for path, module in model.named_modules():
        own = [value for value in module.parameters(recurse=False) if value.requires_grad]
        problem = problems.get(path)
        if not own and problem is None:
            continue
        layers.append(
            LayerFinding(
                name=path,
                kind=type(module).__name__,
                num_parameters=sum(value.numel() for value in own),
                rule=", ".join(sorted({rules.get(id(value), "not seen") for value in own})) if rules else "not tried",
                problem=None if problem is None else problem.problem,
                fix=None if problem is None else problem.fix,
            )
        )
    return Examination(model=name, num_parameters=count_parameters(model), layers=tuple(layers), failure=failure)


def _observed_rules(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[dict[int, str], str | None]:
    """Return the rule of each parameter's use in a forward pass, and why the pass failed if it did."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    inputs = torch.randn(_PROBE_BATCH, *input_shape, generator=torch.Generator().manual_seed(0))
    mark_batch([inputs])
    capture = Capture(parameters, _PROBE_BATCH)
    try:
        check_model(model)
        with capture:
            model(inputs)
    except (UnsupportedModel, RuntimeError) as error:
        return {}, str(error).splitlines()[0]
    found: dict[int, set[str]] = {}
    for use in capture.recording.uses:
        rule = RULES.get(use.function)
        said = _GENERAL_RULE if rule is None else getattr(rule, "__name__", _GENERAL_RULE).replace("_", " ")
        for source in use.sources:
            for position in source.parameters:
                found.setdefault(id(parameters[position]), set()).add(said)
    return {identity: ", ".join(sorted(names)) for identity, names in found.items()}, None
