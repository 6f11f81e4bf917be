"""A study: a comparison that one command repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Row = dict[str, Any]


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
    """

    name: str
    description: str
    num_seeds: int
    run: Callable[[Sequence[int], torch.device, bool], Iterator[Row]]
    table: Callable[[Sequence[Row]], str]
    measure: str = "accuracy"
