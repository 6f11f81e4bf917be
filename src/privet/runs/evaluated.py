"""The private evaluation in the folder of a run: its noisy vector, from which all figures follow. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from privet.effects.noisy_counts.figures import Figures, Released, figures_of
from privet.records import Record
from privet.runs.run_files import RunFiles, read_result


@dataclass(frozen=True, kw_only=True)
class PrivateEvaluation(Record):
    """A finished private evaluation, as it is stored in the folder of its run.

    Attributes:
        released: The noisy vector, from which all figures follow.
        epsilon: What the evaluation costs by itself, at the delta of the plan.
        head: The newest row of the ledger after it was charged.
        unit: What one counted unit is.
    """

    WHAT: ClassVar[str] = "a private evaluation"

    released: Released
    epsilon: float
    head: str
    unit: str

    @property
    def figures(self) -> Figures:
        """All figures with their intervals."""
        return figures_of(self.released)

    @property
    def temperature(self) -> float:
        """The number by which the logits of the model are divided before probabilities are shown."""
        return self.released.temperature * self.figures.temperature

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "figures": self.figures.to_dict()}


def stored_evaluation(files: RunFiles) -> PrivateEvaluation | None:
    """Return the newest private evaluation of a run; None if there was none."""
    return read_result(files.evaluation, PrivateEvaluation.from_dict)


def stored_temperature(files: RunFiles) -> float:
    """Return the number by which the logits of a run's model are divided; 1 for a run without a private evaluation."""
    found = stored_evaluation(files)
    return 1.0 if found is None else found.temperature
