"""The API page: every public name of privet, from the package's own lists, so that none can be forgotten."""

from __future__ import annotations

import importlib
import inspect

from sphinx.application import Sphinx

import privet

PAGE = "api"
# Names at the top of the package, in the order in which a reader meets them; the others follow.
_FIRST = ("Plan", "privatize", "Performance", "Session", "preflight", "PrivateClassifier", "PrivateRegressor")
# Modules whose names need packages of their own are looked up only.
_NEEDS_OTHERS = frozenset(
    ["Patience", "client_app", "server_app", "PrivateModule", "PrivateSteps", "PrivateTrainer", "PrivateTraining"]
)


def public_names(module: str) -> list[str]:
    """Return the names that a public module lists as its own."""
    found = importlib.import_module(f"privet.{module}")
    names = getattr(found, "__all__", None) or dir(found)
    return [
        name
        for name in names
        if not name.startswith("_")
        and name not in _NEEDS_OTHERS
        and getattr(getattr(found, name), "__module__", "").startswith("privet")
    ]


def api_page() -> str:
    """Return the page's body: the names at the top, then one heading per public module."""
    top = [name for name in privet.__all__ if name in privet._WHERE]
    ordered = [*(name for name in _FIRST if name in top), *(name for name in top if name not in _FIRST)]
    parts = ["## privet\n", *(_entry(f"privet.{name}", getattr(privet, name)) for name in ordered)]
    seen = {id(getattr(privet, name)) for name in top}
    for module in privet._MODULES:
        found = importlib.import_module(f"privet.{module}")
        parts.append(f"## privet.{module}\n\n{inspect.getdoc(found)}\n")
        for name in public_names(module):
            value = getattr(found, name)
            # a class is described where it is met first; elsewhere its name leads there
            parts.append(_again(module, name) if id(value) in seen else _entry(f"privet.{module}.{name}", value))
            seen.add(id(value))
    return "\n".join(parts)


def _entry(name: str, value: object) -> str:
    kind = "autoclass" if inspect.isclass(value) else "autofunction" if inspect.isfunction(value) else "autodata"
    members = "   :members:\n" if kind == "autoclass" else ""
    return f"```{{eval-rst}}\n.. {kind}:: {name}\n{members}```\n"


def _again(module: str, name: str) -> str:
    return f"`privet.{module}.{name}`: described above.\n"


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    if page == PAGE:
        source[0] += "\n" + api_page()


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill the page when it is read."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
