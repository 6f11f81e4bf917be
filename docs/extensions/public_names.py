"""The API page: every public name of privet, from the package's own list, so that none can be forgotten."""

from __future__ import annotations

import inspect
from itertools import groupby

from sphinx.application import Sphinx

import privet

PAGE = "api"
# Packages in the order in which a reader meets them.
_HEADINGS = {
    "privet.plan": "The plan",
    "privet.training": "Training",
    "privet.isolation": "Isolation",
    "privet.convex": "Convex training",
    "privet.mechanism": "Pieces of a plan",
    "privet.accounting": "Guarantees and ledgers",
    "privet.gradients": "Gradients",
    "privet.errors": "Errors",
}


def family(module: str) -> str:
    """Return the package, or the module right below privet, that a name belongs to."""
    return ".".join(module.split(".")[:2])


def api_page() -> str:
    """Return the page's body: one heading per package, one entry per name."""
    names = sorted(
        (name for name in privet.__all__ if not name.startswith("_")),
        key=lambda name: (list(_HEADINGS).index(family(_module(name))), _module(name), name.lower()),
    )
    parts = []
    for package, members in groupby(names, key=lambda name: family(_module(name))):
        parts.append(f"## {_HEADINGS[package]}\n")
        parts += [_entry(name) for name in members]
    return "\n".join(parts)


def _module(name: str) -> str:
    module: str = getattr(privet, name).__module__
    return module


def _entry(name: str) -> str:
    kind = "autoclass" if inspect.isclass(getattr(privet, name)) else "autofunction"
    members = "   :members:\n" if kind == "autoclass" else ""
    return f"```{{eval-rst}}\n.. {kind}:: privet.{name}\n{members}```\n"


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    if page == PAGE:
        source[0] += "\n" + api_page()


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill the page when it is read."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
