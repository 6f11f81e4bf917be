"""Names on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import click

_Named = TypeVar("_Named")


def pick(kind: str, known: Mapping[str, _Named], names: str) -> list[_Named]:
    """Return what comma-separated names stand for; refuse unknown names with the known ones."""
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in asked if name not in known]:
        raise click.BadParameter(f"unknown {kind} {', '.join(unknown)}; known are {', '.join(known)}")
    return [known[name] for name in asked]
