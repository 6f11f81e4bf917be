"""A study: a comparison that one command repeats."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privet.errors import ArgumentError

if TYPE_CHECKING:
    import torch

Row = dict[str, Any]
Run = Callable[[Sequence[int], "torch.device", bool], Iterator[Row]]


def table_of(module: str, name: str) -> Callable[[Sequence[Row]], str]:
    """Return a writer of tables that imports its module of studies when it is called, so that listing is quick."""

    def table(rows: Sequence[Row]) -> str:
        writer = getattr(importlib.import_module(f"privet_research.studies.{module}"), name)
        return str(writer(rows))

    return table


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison that one command repeats.

    Attributes:
        name: What the command calls it.
        description: One line.
        num_seeds: Runs per arm, unless told otherwise.
        run: From seeds, device and whether to be quick to rows of figures.
        table: From rows to Markdown.
        measure: The figure of a row that is shown while the study runs.
        vary: From changes such as ``rank=8,16`` to a run over all combinations; None where nothing can be changed.
        resume: From rows of an earlier run to one that yields those and trains the others only; None where a run
            cannot go on.
    """

    name: str
    description: str
    num_seeds: int
    run: Run
    table: Callable[[Sequence[Row]], str]
    measure: str = "accuracy"
    vary: Callable[[Sequence[str]], Run] | None = None
    resume: Callable[[Sequence[Row]], Run] | None = None

    def varied(self, changes: Sequence[str]) -> Run:
        """Return the run with these changes; the study's own without any.

        Raises:
            ArgumentError: the study has nothing to change, or not this.
        """
        if not changes:
            return self.run
        if self.vary is None:
            raise ArgumentError(f"The study {self.name!r} has no settings that can be changed. Leave out --set.")
        return self.vary(changes)

    def resumed(self, rows: Sequence[Row]) -> Run:
        """Return the run that goes on after these rows.

        Raises:
            ArgumentError: the study cannot go on.
        """
        if self.resume is None:
            raise ArgumentError(
                f"The study {self.name!r} cannot go on where it stopped. Leave out --resume, or cut it by --part."
            )
        return self.resume(rows)
