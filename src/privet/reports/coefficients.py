"""The coefficients of a linear model on standardised columns, as rows of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from privet.runs.recipes.recipe import Recipe
from privet.runs.run_files import RunFiles

_WEIGHTS, _STATISTICS = "linear.weight", "statistics.weight"
_MOST_ROWS = 30

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """The effects of the columns on one target, the largest first.

    Attributes:
        target: Its name.
        rows: Column, size of the effect, and what it raises and lowers.
        num_left_out: How many columns of smaller effect are not shown.
        unit: In what the effects are measured.
    """

    target: str
    rows: tuple[tuple[str, str, str, str], ...]
    num_left_out: int
    unit: str


def coefficients_of(files: RunFiles, recipe: Recipe) -> tuple[Coefficients, ...]:
    """Return the coefficients of a finished run's model; nothing for other models.

    Guarantee: a function of the released model and of the declaration. No record is read, and nothing is charged.
    """
    names = recipe.info.feature_names or ()
    weights = _weights(files) if recipe.table is not None and names else None
    if weights is None or weights.shape[1] != len(names) + 1:
        return ()
    effects, found, at = weights[:, :-1] / math.sqrt(len(names)), [], 0
    for target in recipe.info.task.served():
        found.append(_target(target, names, effects[at : at + target["outputs"]]))
        at += target["outputs"]
    return tuple(found)


def _weights(files: RunFiles) -> Array | None:
    if files.model.is_symlink() or not files.model.is_file():
        return None
    try:
        with safe_open(str(files.model), "numpy") as tensors:
            if not {_WEIGHTS, _STATISTICS} <= set(tensors.keys()):
                return None
            found: Array = tensors.get_tensor(_WEIGHTS).astype(float)
    except (OSError, SafetensorError):
        return None
    return found if found.ndim == 2 and np.isfinite(found).all() else None


def _target(target: Mapping[str, Any], names: Sequence[str], effects: Array) -> Coefficients:
    """Return the rows of one target; of classes, how far apart an effect moves the two that it moves most."""
    classes = target.get("class_names")
    if classes:
        sizes = effects.max(0) - effects.min(0)
        ends = [(classes[top], classes[low]) for top, low in zip(effects.argmax(0), effects.argmin(0), strict=True)]
        unit = "the logarithm of the odds between the two classes"
    else:
        own = effects[0] * (target["high"] - target["low"]) / 2 if target["kind"] == "number" else effects[0]
        sizes = np.abs(own)
        ends = [(target["name"], "") if value > 0 else ("", target["name"]) for value in own]
        unit = (
            "the prediction, in the unit of the target,"
            if target["kind"] == "number"
            else "the logarithm of the expected number"
        )
    order = np.argsort(-sizes, kind="stable")
    rows = tuple((_shown(names[place]), f"{sizes[place]:.3g}", *ends[place]) for place in order[:_MOST_ROWS])
    return Coefficients(
        target=target["name"] or "class", rows=rows, num_left_out=max(0, len(names) - _MOST_ROWS), unit=unit
    )


def _shown(name: str) -> str:
    """Return the name of an encoded column; an empty category is a gap."""
    return f"{name[:-1]} is missing" if name.endswith("=") else name
