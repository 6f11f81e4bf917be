"""Names that are imported on first use: public names, for fast imports, and former names, with a warning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: The package's ``__name__``.
        homes: For each module the names to import from it: ``name`` or ``name as public_name``; the second form is for
            a name that a submodule of the same name would hide.
    """
    where = {
        name.split(" as ")[-1]: (module, name.split(" as ")[0]) for module, names in homes.items() for name in names
    }

    def look_up(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, name_there = where[name]
        return getattr(importlib.import_module(module), name_there)

    return look_up, lambda: sorted(where)


def moved(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names have moved; the old names work for one version and warn.

    Args:
        module: The former module's ``__name__``.
        names: The public name of each former name, such as ``privet.runs.model_of``.
    """

    def look_up(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new_name = names[name].rpartition(".")
        warnings.warn(
            f"{module}.{name} is now {names[name]}; the old name works in 0.2 and will be removed in 0.3.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(home), new_name)

    return look_up
