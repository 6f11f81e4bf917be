"""Variants of a study's settings: from ``key=value,value`` to one settings object per combination."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from privet.errors import ArgumentError
from privet.mechanism.codec import suggestion

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Settings = TypeVar("Settings", bound=DataclassInstance)
else:
    Settings = TypeVar("Settings")

_BOOLEANS = {"true": True, "false": False}


def variants(base: Settings, changes: Sequence[str]) -> list[Settings]:
    """Return one copy of the settings per combination of the values asked for.

    Args:
        base: The settings; a value's type is that of the field it replaces. Fields that hold a tuple of words take one
            value, its words separated by ``+``.
        changes: Such as ``rank=8,16`` and ``learning_rate=1e-3``.

    Raises:
        ArgumentError: for a key that is not a field, a value of another type, or a key given twice.
    """
    names = [field.name for field in fields(base)]
    options: dict[str, list[Any]] = {}
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator or not text:
            raise ArgumentError(f"--set takes key=value or key=value,value; got {change!r}.")
        if key not in names:
            raise ArgumentError(f"{key!r} cannot be set in this study. {suggestion(key, names)}")
        if key in options:
            raise ArgumentError(f"{key!r} is set twice. Give all its values at once: {key}=value,value.")
        options[key] = [_value(key, word, getattr(base, key)) for word in text.split(",")]
    return [replace(base, **dict(zip(options, values, strict=True))) for values in itertools.product(*options.values())]


def _value(key: str, word: str, present: object) -> Any:
    try:
        match present:
            case bool():
                return _BOOLEANS[word]
            case int():
                return int(word)
            case float():
                return float(word)
            case tuple():
                return tuple(word.split("+"))
            case str():
                return word
    except (KeyError, ValueError):
        raise ArgumentError(f"{key} is {present!r} by default; {word!r} is not a value of that type.") from None
    raise ArgumentError(f"{key} cannot be set from the command line.")
