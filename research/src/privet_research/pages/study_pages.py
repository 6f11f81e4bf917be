"""HTML pages of studies by name, generated from rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def _groups(rows: Rows) -> str:
    from privet_research.pages.groups_page import groups_page

    return groups_page(rows)


def _reconstruction(rows: Rows) -> str:
    from privet_research.pages.reconstruction_page import reconstruction_page

    return reconstruction_page(rows)


PAGES: Mapping[str, Callable[[Rows], str]] = MappingProxyType(
    {"adult-groups": _groups, "reconstruction-cifar10": _reconstruction}
)
"""From a study's rows to HTML text, for the studies that have a page."""
