"""Attributes that were renamed: the former name still works, with a warning that says the new one."""

from __future__ import annotations

import warnings
from typing import Any


class Renamed:
    """The former name of an attribute."""

    def __init__(self, new: str) -> None:
        """Stand for the attribute ``new`` of the same object."""
        self._new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self._former = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        warnings.warn(
            f"{self._former} is deprecated and will be removed in the version after next; use "
            f"{owner.__name__}.{self._new}.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(instance, self._new)
