"""Examination of a model before training: for each layer the per-example gradient rule, its cost and its problems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from privet import checks
from privet.errors import PrivetError, RecipeError
from privet.gradients.capture.capture import Capture
from privet.gradients.capture.recorded import mark_batch, sources_of
from privet.gradients.engines.support import check_model, find_problems
from privet.gradients.rules.layer_rules import RULES
from privet.isolation.parts import tensors_of
from privet.models import MODELS, count_parameters
from privet.runs.building import build_model, choose_device
from privet.runs.model_cost import Inputs, ModelCost, RandomNumbers, RandomTokens, losses_for, measure_cost, outputs_of
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.user_models import build_referenced
from privet.training.preflight.preflight import preflight

# A prime: other axes of a network rarely have this length, so none of them is mistaken for the batch.
DEFAULT_BATCH = 13
_GENERAL_RULE = "general (vmap)"
_ONE_BY_ONE = "a backward pass for each example"
_POOLED = "written out"


@dataclass(frozen=True, kw_only=True)
class LayerFinding:
    """One layer that has parameters or a problem.

    Attributes:
        strategy: Strategy for the norms of its largest parameter; None where nothing ran.
        seconds: Measured time of its norms and sums; None where they are pooled with those of other layers.
        kept_bytes: Memory kept until the clipping factors are known.
        tried: All strategies that were measured before the choice.
    """

    name: str
    kind: str
    num_parameters: int
    rule: str
    problem: str | None
    fix: str | None
    strategy: str | None = None
    seconds: float | None = None
    kept_bytes: int | None = None
    tried: tuple[TriedStrategy, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TriedStrategy:
    """A strategy for a layer's norms, with its time and the memory that it keeps; None if it failed."""

    name: str
    seconds: float | None
    kept_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Findings about a model."""

    model: str
    num_parameters: int
    layers: tuple[LayerFinding, ...]
    failure: str | None
    cost: ModelCost | None = None

    @property
    def can_be_trained(self) -> bool:
        """Whether a private session would accept the model."""
        return self.failure is None and all(layer.problem is None for layer in self.layers)


def examine(
    model_or_recipe: str, overrides: Sequence[str] = (), *, num_examples: int = DEFAULT_BATCH, device: str = "auto"
) -> Examination:
    """Examine a network by its name, or the network of a recipe. Reads no data.

    Raises:
        RecipeError: nothing has this name.
    """
    if model_or_recipe in MODELS and not overrides:
        spec = MODELS[model_or_recipe]
        name, shape, model = spec.name, spec.input_shape, spec.build(spec.input_shape, spec.num_classes)
    else:
        try:
            recipe = load_recipe(model_or_recipe, overrides)
        except RecipeError as error:
            raise RecipeError(
                f"{error} Models: {', '.join(MODELS)}. A network of your own: file.py:function."
            ) from None
        info = recipe.info
        name, shape = recipe.model_title, info.input_shape
        model = build_model(recipe, torch.device("cpu"))
        if info.holds_tokens:  # numbers of words, of which every encoder knows the first two
            tokens = RandomTokens(shape=shape, vocabulary=2)
            return examine_model(name, model, tokens, num_examples=num_examples, device=device)
    return examine_model(name, model, RandomNumbers(shape=shape), num_examples=num_examples, device=device)


def examine_referenced(
    reference: str, inputs: Inputs, *, num_examples: int = DEFAULT_BATCH, device: str = "auto"
) -> Examination:
    """Examine a user's own network: see :func:`privet.runs.user_models.build_referenced`."""
    return examine_model(reference, build_referenced(reference), inputs, num_examples=num_examples, device=device)


def examine_model(
    name: str, model: nn.Module, inputs: Inputs, *, num_examples: int = DEFAULT_BATCH, device: str = "auto"
) -> Examination:
    """Examine any model: known faults first, then passes over made-up examples.

    The model is moved to the device and left in training mode; its weights stay as they are.
    """
    checks.count("num_examples", num_examples, minimum=2)
    where = choose_device(device)
    model.to(where).train()
    problems = {finding.name: finding for finding in find_problems(model)}
    rules: Mapping[int, str] = {}
    cost, failure = None, None
    if not problems:
        try:
            check_model(model)
            batch = pytree.tree_map(lambda leaf: leaf.to(where), inputs.draw(num_examples))
            preflight(
                model, lambda *items: _losses(model, items, batch), batch if type(batch) in (tuple, list) else (batch,)
            )
            rules = _observed_rules(model, batch)
            cost = measure_cost(model, inputs, num_examples=num_examples, device=where)
            if not cost.is_by_rules:
                rules = dict.fromkeys(map(id, model.parameters()), _ONE_BY_ONE)
        except (PrivetError, RuntimeError, IndexError, TypeError) as error:
            failure = (str(error).strip().splitlines() or [type(error).__name__])[0]
    layers = []
    for path, module in model.named_modules():
        own = {key: value for key, value in module.named_parameters(path, recurse=False) if value.requires_grad}
        problem = problems.get(path)
        if own or problem is not None:
            used = {rules.get(id(value), "not seen") for value in own.values()} if rules else {"not tried"}
            finding = LayerFinding(
                name=path,
                kind=type(module).__name__,
                num_parameters=sum(value.numel() for value in own.values()),
                rule=", ".join(sorted(used)),
                problem=None if problem is None else problem.problem,
                fix=None if problem is None else problem.fix,
            )
            layers.append(finding if cost is None else _with_cost(finding, own, cost))
    number = count_parameters(model)
    return Examination(model=name, num_parameters=number, layers=tuple(layers), failure=failure, cost=cost)


def _with_cost(finding: LayerFinding, own: Mapping[str, nn.Parameter], cost: ModelCost) -> LayerFinding:
    """Add the measured cost of a layer's parameters; the strategy is that of the largest parameter."""
    planned = {name: cost.choices[name] for name in own if name in cost.choices}
    pooled = sum(own[name].numel() * max(4, own[name].element_size()) for name in own if name not in planned)
    kept = cost.num_examples * pooled + sum(choice.used.kept_bytes for choice in planned.values())
    main = max(planned, key=lambda name: own[name].numel(), default=None)
    return replace(
        finding,
        strategy=_POOLED if main is None else planned[main].strategy.name,
        seconds=sum(choice.used.seconds for choice in planned.values()) if planned else None,
        kept_bytes=round(kept),
        tried=() if main is None else tuple(
            TriedStrategy(
                name=each.strategy.name,
                seconds=each.seconds if math.isfinite(each.seconds) else None,
                kept_bytes=round(each.kept_bytes) if math.isfinite(each.kept_bytes) else None,
            )
            for each in planned[main].tried
        ),
    )  # fmt: skip


def _losses(model: nn.Module, items: tuple[Any, ...], like: Any) -> torch.Tensor:
    given = items if type(like) in (tuple, list) else items[0]
    return losses_for(outputs_of(model, given), len(tensors_of(given)[0]))


def _observed_rules(model: nn.Module, inputs: Any) -> dict[int, str]:
    """Return the rule of each parameter's use in a forward pass."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    tensors = tensors_of(inputs)
    mark_batch(tensors)
    capture = Capture(sources_of(parameters), len(tensors[0]))
    with capture:
        outputs_of(model, inputs)
    found: dict[int, set[str]] = {}
    for use in capture.recording.uses:
        rule = RULES.get(use.function)
        name = _GENERAL_RULE if rule is None else getattr(rule, "__name__", _GENERAL_RULE).replace("_", " ")
        for source in use.sources:
            for position in source.parameters:
                found.setdefault(id(parameters[position]), set()).add(name)
    capture.recording.release()
    return {identity: ", ".join(sorted(names)) for identity, names in found.items()}
