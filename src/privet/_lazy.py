"""Names that are imported on first use: public names, for fast imports, and former names, with a warning."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def names_of_stub(package: str) -> dict[str, tuple[str, str]]:
    """Return the public names of a package: for each its module, and its name there.

    The imports of the stub ``__init__.pyi`` are the only list of a package's names; type checkers read it, too.
    """
    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None, f"{package} has a stub"
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package that imports the names of its stub on first use."""
    where = names_of_stub(package)

    def look_up(name: str) -> Any:
        if name not in where:
            raise _unknown(package, name)
        module, name_there = where[name]
        if module == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(module), name_there)

    return look_up, lambda: sorted(where)


def _unknown(module: str, name: str) -> AttributeError:
    return AttributeError(f"module {module!r} has no attribute {name!r}")


def moved(module: str, names: Mapping[str, str], otherwise: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names have moved; the old names work for one version and warn.

    Args:
        module: The module's ``__name__``.
        names: The public name of each former name, such as ``privet.runs.model_of``.
        otherwise: Looks up names that have not moved.
    """

    def look_up(name: str) -> Any:
        if name in names:
            home, _, new_name = names[name].rpartition(".")
            warnings.warn(
                f"{module}.{name} is now {names[name]}; the old name works in 0.2 and will be removed in 0.3.",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(importlib.import_module(home), new_name)
        if otherwise is None:
            raise _unknown(module, name)
        return otherwise(name)

    return look_up
