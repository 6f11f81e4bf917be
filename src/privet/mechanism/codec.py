"""Conversion of pieces to and from plain dictionaries; :mod:`privet.mechanism.registry` maps names in files to classes.

A piece checks its own fields when it is built. A separate schema would repeat these checks and could disagree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from privet import checks
from privet.errors import PrivetError, RecipeError
from privet.mechanism import registry
from privet.mechanism.strong_convexity import StronglyConvexDescent

Family = Mapping[str, type[Any]]

SAMPLING: Family = registry.SAMPLERS.kinds
CLIPPING: Family = registry.CLIPPINGS.kinds
NOISE: Family = {**registry.NOISES.kinds, **registry.GEOMETRIES.kinds, **registry.LEARNINGS.kinds}
"""Noise pieces, and the geometries and unit sources inside them."""
GROUPING: Family = registry.GROUPINGS.kinds
MASK: Family = {**registry.MASKS.kinds, **registry.GRANULARITIES.kinds, **registry.RATE_SCHEDULES.kinds}
"""Mask pieces, and the granularities and schedules inside them."""
DESCENT: Family = {"strongly_convex": StronglyConvexDescent}
FAMILIES: Mapping[str, Family] = {
    "sampling": SAMPLING,
    "clipping": CLIPPING,
    "noise": NOISE,
    "grouping": GROUPING,
    "mask": MASK,
    "descent": DESCENT,
}
NAMES: Mapping[type[Any], str] = {
    piece: f"{family}/{name}" for family, pieces in FAMILIES.items() for name, piece in pieces.items()
}
"""The name of every piece in fingerprints. A published name is never reused for another piece."""


def suggestion(word: str, known: list[str]) -> str:
    """Return a did-you-mean clause, or the list of known words."""
    close = checks.near(word, known)
    return f"Did you mean '{close}'?" if close else f"Known: {', '.join(sorted(known))}."


def encode_piece(piece: object, family: Family, *, where: str) -> dict[str, Any]:
    """Return a piece as its kind and its fields, without fields that are None."""
    kind = next((name for name, known in family.items() if type(piece) is known), None)
    if kind is None or not dataclasses.is_dataclass(piece):
        raise RecipeError(
            f"{where} is a {type(piece).__name__}, which has no name in files. Only {', '.join(sorted(family))} can be "
            "stored."
        )
    values = {field.name: getattr(piece, field.name) for field in dataclasses.fields(piece)}
    return {"kind": kind} | {
        name: _plain(value, family, f"{where}.{name}") for name, value in values.items() if value is not None
    }


def _plain(value: Any, family: Family, where: str) -> Any:
    if dataclasses.is_dataclass(value):
        return encode_piece(value, family, where=where)  # a piece made of pieces of its own family
    return [_plain(item, family, where) for item in value] if isinstance(value, tuple) else value


def decode_piece(data: object, family: Family, *, where: str) -> Any:
    """Build a piece from its kind and fields.

    Raises:
        RecipeError: naming the dotted path, for an unknown kind or key, a missing key, or a value the piece refuses.
    """
    if not isinstance(data, Mapping):
        raise RecipeError(f"{where} must be a table with a 'kind', got {type(data).__name__}.")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in family:
        raise RecipeError(f"{where}.kind is {kind!r}. {suggestion(str(kind), list(family))}")
    piece = family[kind]
    fields = {field.name: field for field in dataclasses.fields(piece)}
    values = {key: _frozen(value, family, f"{where}.{key}") for key, value in data.items() if key != "kind"}
    for key in values:
        if key not in fields:
            raise RecipeError(f"{where}.{key} is not an option of '{kind}'. {suggestion(key, list(fields))}")
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise RecipeError(f"{where} ('{kind}') lacks {', '.join(missing)}.")
    try:
        return piece(**values)
    except PrivetError as error:
        raise RecipeError(f"{where} ('{kind}'): {error}") from error


def _frozen(value: Any, family: Family, where: str) -> Any:
    if isinstance(value, Mapping):
        return decode_piece(value, family, where=where)
    return tuple(_frozen(item, family, where) for item in value) if isinstance(value, list) else value
