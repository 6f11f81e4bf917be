"""Sampling by a declared, public data set size: ``dataset_size``, ``batch_size`` and the length of the run.

A sampling piece offers it through its constructor ``for_dataset``, whose arguments are the keys of the recipe.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from privet.errors import RecipeError
from privet.mechanism import codec


def with_fields(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sampling table by the fields of its piece; a table without a declared size is returned unchanged.

    Raises:
        RecipeError: a key is unknown or missing beside a declared size.
    """
    inner = given.get("sampling")
    if isinstance(inner, Mapping):  # a sampler of persons contains the sampler with the declared size
        given = {**given, "sampling": with_fields(inner)}
    piece = codec.SAMPLING.get(str(given.get("kind")))
    build = getattr(piece, "for_dataset", None)
    if piece is None or build is None:
        return given
    arguments = inspect.signature(build).parameters
    fields = {field.name for field in dataclasses.fields(piece)}
    if not arguments.keys() - fields & given.keys():
        return given
    for key in given:
        if key not in arguments and key != "kind":
            raise RecipeError(
                f"privacy.sampling.{key} does not go with a declared size. {codec.suggestion(key, list(arguments))}"
            )
    missing = [key for key in ("dataset_size", "batch_size") if key not in given]
    if missing:
        raise RecipeError(
            f"privacy.sampling lacks {', '.join(missing)}. The size is declared, never counted from the data: under "
            "add-or-remove the true number of records is itself private."
        )
    absent = [key for key, argument in arguments.items() if argument.default is argument.empty and key not in given]
    if absent:
        raise RecipeError(f"privacy.sampling lacks {', '.join(absent)}. Give the length of the run.")
    sampling = build(**{key: value for key, value in given.items() if key != "kind"})
    return codec.encode_piece(sampling, codec.SAMPLING, where="privacy.sampling")
