"""Public names of a package that are looked up on first use, so that importing the package loads nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: The package's ``__name__``.
        homes: For each module the names to take from it, as in an import: ``name`` or ``name as public_name``, the
            second where the name is also that of a submodule, which would hide it.
    """
    where = {
        name.split(" as ")[-1]: (module, name.split(" as ")[0]) for module, names in homes.items() for name in names
    }

    def look_up(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, its_name = where[name]
        return getattr(importlib.import_module(module), its_name)

    return look_up, lambda: sorted(where)
