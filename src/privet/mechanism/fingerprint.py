"""The fingerprint of what decides a run's privacy: the SHA-256 of canonical JSON with a format number.

A field that has its default is left out. So a piece may gain an optional field, and every plan that does not use it
keeps its name. The price is a law: a default never changes once it was published, because two meanings would then have
one name; another default is another kind of piece.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from privet.errors import PlanError

FORMAT = 2
"""Format 1, the hash of a ``repr``, is told apart in ``former_fingerprint``."""

Names = Mapping[type[Any], str]


def canonical(value: object) -> bytes:
    """Return the one JSON form of a value: sorted keys, no spaces, ASCII; NaN and infinity are refused."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.encode("ascii")


def fingerprint(piece: object, names: Names | None = None) -> str:
    """Return the fingerprint of a frozen dataclass and of all that it is made of.

    Args:
        piece: A plan, or a piece.
        names: The names that files have for classes; the others go by module and class.

    Guarantee:
        Equal pieces have equal fingerprints in every process. Pieces that differ in a kind or in any value have
        different ones. A field that was added with a default changes none.

    Raises:
        PlanError: a piece holds something other than numbers, words, tuples, mappings and pieces.
    """
    told = canonical({"format": FORMAT, "plan": form(piece, names or {}, where=type(piece).__name__)})
    return f"{FORMAT}:{hashlib.sha256(told).hexdigest()}"


def form(value: Any, names: Names, *, where: str) -> Any:
    """Return plain JSON values that say all of a value; what is left at its default is not said."""
    if isinstance(value, Enum):
        return form(value.value, names, where=where)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, tuple | list):
        return [form(item, names, where=f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        # in a list, so that no entry can be taken for the kind of a piece
        return [{key: form(item, names, where=f"{where}.{key}") for key, item in value.items()}]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _piece(value, names, where)
    raise PlanError(
        f"{where} is a {type(value).__name__}, which has no fingerprint, so that no ledger could say what was charged. "
        "Write pieces as frozen dataclasses of numbers, words, tuples and other pieces."
    )


def _piece(piece: Any, names: Names, where: str) -> dict[str, Any]:
    kind = names.get(type(piece)) or f"{type(piece).__module__}.{type(piece).__qualname__}"
    said = {"kind": kind}
    for field in dataclasses.fields(piece):
        value = form(getattr(piece, field.name), names, where=f"{where}.{field.name}")
        if not field.init or (_has_default(field) and value == form(_default(field), names, where=where)):
            continue
        if field.name == "kind":
            raise PlanError(f"{where} has a field named 'kind', which a fingerprint needs for the kind of the piece.")
        said[field.name] = value
    return said


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _number(value: float) -> Any:
    """Return a number so that equal ones are written alike, also those that JSON has no number for."""
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        return {"number": repr(float(value))}
    return int(value) if value.is_integer() else float(value)
