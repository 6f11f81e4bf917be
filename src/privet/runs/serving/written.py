"""What the export of a model asks of each kind of records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import nn

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written of a model.

    Attributes:
        needs: The packages that ``predict.py`` needs; empty where there is no such program.
        left_out: Sentences about parts that were not written.
    """

    needs: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Served(Protocol):
    """A model with what it needs to read records of its kind."""

    def write(self, target: Path, model: nn.Module, *, temperature: float) -> Written:
        """Write model, reading and program into a new folder.

        Args:
            target: The folder, which may not exist yet.
            model: The final model of the run.
            temperature: What its outputs are divided by, for probabilities that fit.
        """
        ...
