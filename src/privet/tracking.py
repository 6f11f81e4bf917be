"""Progress bars and trackers of experiments: receivers of the public values of a run."""

from __future__ import annotations

from privet.training.tracking.bar import Bar
from privet.training.tracking.progress import Progress, Several, StepUpdate
from privet.training.tracking.trackers import MLflow, TensorBoard, Tracker, WeightsAndBiases

__all__ = ["Bar", "MLflow", "Progress", "Several", "StepUpdate", "TensorBoard", "Tracker", "WeightsAndBiases"]
