"""Options of a command that reach it as one object."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any


def gathered(kind: type[Any], name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Hand the options that are fields of a dataclass to a command as one object of it, under this name.

    The decorator stands below those of the options, and the dataclass says which they are: an option that is missing
    or has another name is an error when the command is called.
    """
    names = [field.name for field in fields(kind)]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(**options: Any) -> Any:
            chosen = {each: options.pop(each) for each in names}
            return command(**options, **{name: kind(**chosen)})

        return called

    return decorate
