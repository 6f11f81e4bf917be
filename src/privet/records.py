"""Results that are stored as JSON: the types of a dataclass say how its fields are read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from privet import checks

T = TypeVar("T")
Count = Annotated[int, checks.count]
"""A whole number of one or more; a plain ``int`` may be zero."""
Size = Annotated[float, checks.non_negative]
"""A finite number of zero or more; a plain ``float`` may be any number."""

_PLAIN: dict[Any, Callable[[str, object], Any]] = {
    float: checks.number,
    int: checks.natural,
    str: lambda _, value: str(value),
}


def read_record(kind: type[T], data: Any, *, what: str) -> T:
    """Read a dataclass from JSON values.

    Raises:
        ArgumentError: an entry is missing, although it may not be None, or is of the wrong type. The message says that
            the values are not ``what``.
    """
    with checks.reading(what):
        found: T = _read("it", kind, data)
        return found


class Record:
    """A dataclass that is stored as JSON.

    Attributes:
        WHAT: The name of the record in errors.
    """

    WHAT: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        return read_record(cls, data, what=cls.WHAT)


def _read(name: str, kind: Any, value: Any) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind](name, value)
    if is_dataclass(kind):
        return _read_fields(name, kind, value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return arguments[1](name, value)
    if origin in (Union, UnionType):
        (other,) = (argument for argument in arguments if argument is not NoneType)
        return None if value is None else _read(name, other, value)
    assert origin is tuple, f"records have no fields of type {kind}"
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} is not a list")
    kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
    return tuple(_read(name, each, entry) for each, entry in zip(kinds, value, strict=True))


def _read_fields(name: str, kind: Any, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"{name} is not a JSON object")
    kinds = get_type_hints(kind, include_extras=True)
    given: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in data:
            given[field.name] = _read(field.name, kinds[field.name], data[field.name])
        elif field.default is not None:  # files of earlier versions lack what may be None
            raise KeyError(field.name)
    return kind(**given)
