"""Argument checks with uniform messages.

Each function returns the value as a plain Python number, so numpy and torch scalars never reach plans or ledgers. A
number must not be a boolean, a string or None.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import SupportsFloat

from privet.errors import ArgumentError

_MISSING = frozenset({"", "nan", "nat", "none", "null", "na", "n/a", "<na>"})


def number(name: str, value: object) -> float:
    """Return ``value`` as a float; refuse booleans, strings, None, NaN and other values that are no real number."""
    # float and int first: the protocol check is slow, and every step checks some numbers
    if isinstance(value, bool | str | bytes | None) or not isinstance(value, float | int | SupportsFloat):
        raise ArgumentError(f"{name} must be a number, got {value!r} ({type(value).__name__}).")
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{name} must be one number, got {type(value).__name__}: {error}.") from None
    if math.isnan(result):
        raise ArgumentError(f"{name} must be a number, got NaN.")
    return result


def positive(name: str, value: object, *, allow_infinite: bool = False) -> float:
    """Return a number above zero."""
    result = number(name, value)
    if result <= 0 or (math.isinf(result) and not allow_infinite):
        raise ArgumentError(f"{name} must be positive and finite, got {result!r}.")
    return result


def non_negative(name: str, value: object) -> float:
    """Return a finite number of zero or more."""
    result = number(name, value)
    if result < 0 or math.isinf(result):
        raise ArgumentError(f"{name} must be zero or more and finite, got {result!r}.")
    return result


def probability(name: str, value: object, *, allow_zero: bool = False, allow_one: bool = False) -> float:
    """Return a number between 0 and 1; the ends only if they are allowed."""
    result = number(name, value)
    low_ok = result > 0 or (allow_zero and result == 0)
    high_ok = result < 1 or (allow_one and result == 1)
    if not (low_ok and high_ok):
        left, right = "[" if allow_zero else "(", "]" if allow_one else ")"
        raise ArgumentError(f"{name} must lie in {left}0, 1{right}, got {result!r}.")
    return result


def count(name: str, value: object, *, minimum: int = 1) -> int:
    """Return a whole number of at least ``minimum``; floats are refused, also whole ones."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentError(f"{name} must be a whole number, got {value!r} ({type(value).__name__}).")
    result = int(value)
    if result < minimum:
        raise ArgumentError(f"{name} must be at least {minimum}, got {result}.")
    return result


def natural(name: str, value: object) -> int:
    """Return a whole number of zero or more."""
    return count(name, value, minimum=0)


def require(piece: object, check: Callable[[str, object], object], *names: str) -> None:
    """Check the named attributes of an object, and leave them as they are."""
    for name in names:
        check(name, getattr(piece, name))


def fields(piece: object, check: Callable[[str, object], object], *names: str) -> None:
    """Check the named fields of a frozen dataclass, and store what the check returns."""
    for name in names:
        object.__setattr__(piece, name, check(name, getattr(piece, name)))


def is_missing(word: str) -> bool:
    """Whether a text is how programs write a name that is missing."""
    return word.strip().lower() in _MISSING


def near(word: object, known: Iterable[str]) -> str | None:
    """Return the known word that is most like an unknown one; None if none is."""
    return next(iter(difflib.get_close_matches(str(word), list(known), n=1)), None)


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """Return the message about a name that does not exist, with the nearest one and all of them."""
    names = list(known)
    close = near(name, names)
    hint = f" Did you mean {close!r}?" if close else ""
    return f"There is no {kind} {name!r}.{hint} Known {kind}s: {', '.join(names)}."


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn errors of the block, which reads a stored record, into ``ArgumentError``.

    Raises:
        ArgumentError: an entry is missing or of the wrong type. The message says that the record is not ``what``.
    """
    try:
        yield
    except ArgumentError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"This is not {what}: {error}.") from None
