"""The fingerprint of a plan: the SHA-256 of its canonical JSON with a format number.

A field that equals its default is left out. So a piece can gain an optional field, and every plan that does not use it
keeps its fingerprint. The consequence is a rule: a published default never changes, because two meanings would then
have one fingerprint. Another default needs another kind of piece.
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
"""Format 1 was the hash of a ``repr``; see :mod:`privet.mechanism.former_fingerprint`."""

Names = Mapping[type[Any], str]


def canonical(value: object) -> bytes:
    """Return the canonical JSON of a value: sorted keys, no spaces, ASCII; NaN and infinity are refused."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.encode("ascii")


def fingerprint(piece: object, names: Names | None = None) -> str:
    """Return the fingerprint of a frozen dataclass with all its fields.

    Args:
        piece: A plan, or a piece.
        names: The names of classes in files; other classes are named by module and class name.

    Guarantee:
        Equal pieces have equal fingerprints in every process. Pieces that differ in a kind or in any value have
        different ones. A new field with a default changes no existing fingerprint.

    Raises:
        PlanError: a piece holds a value that is no number, string, tuple, mapping or piece.
    """
    data = canonical({"format": FORMAT, "plan": form(piece, names or {}, where=type(piece).__name__)})
    return f"{FORMAT}:{hashlib.sha256(data).hexdigest()}"


def form(value: Any, names: Names, *, where: str) -> Any:
    """Return a value as plain JSON values, without fields that equal their defaults."""
    if isinstance(value, Enum):
        return form(value.value, names, where=where)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, tuple | list):
        return [form(item, names, where=f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        # inside a list, so that no entry can be mistaken for the kind of a piece
        return [{key: form(item, names, where=f"{where}.{key}") for key, item in value.items()}]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _piece(value, names, where)
    raise PlanError(
        f"{where} is a {type(value).__name__}, which has no fingerprint, so a ledger cannot identify the plan. "
        "Write pieces as frozen dataclasses of numbers, strings, tuples and other pieces."
    )


def _piece(piece: Any, names: Names, where: str) -> dict[str, Any]:
    kind = names.get(type(piece)) or f"{type(piece).__module__}.{type(piece).__qualname__}"
    fields = {"kind": kind}
    for field in dataclasses.fields(piece):
        value = form(getattr(piece, field.name), names, where=f"{where}.{field.name}")
        if not field.init or (_has_default(field) and value == form(_default(field), names, where=where)):
            continue
        if field.name == "kind":
            raise PlanError(
                f"{where} has a field named 'kind', which the fingerprint reserves for its kind. Rename it."
            )
        fields[field.name] = value
    return fields


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _number(value: float) -> Any:
    """Return a number such that equal numbers have equal JSON, including infinity and NaN."""
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        return {"number": repr(float(value))}
    return int(value) if value.is_integer() else float(value)
