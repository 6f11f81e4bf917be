"""TensorBoard events of a run: only the curves that may be shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from privet.accounting.guarantee import Guarantee
from privet.errors import CheckpointError, RecipeError
from privet.runs.measures import CurvePoint
from privet.runs.progress import StepUpdate


class TensorBoardLog:
    """Writes a run's steps as TensorBoard events into a folder.

    TensorBoard's own writer stamps every event with the time and names its file after the machine. The duration of a
    step reveals its private number of examples, so the records are written here, with times that count steps.

    Guarantee:
        Unless the run may show unprotected values, an event holds the step's number, learning rate and masked share,
        epsilon where it was computed, and a time that follows from the step's number. Losses and measurements are
        written only where the run may show them, under tags that begin with ``unprotected/``.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Check that TensorBoard is installed; the folder is created when the run starts.

        Raises:
            RecipeError: TensorBoard is not installed.
        """
        if find_spec("tensorboard") is None:
            raise RecipeError("--tensorboard needs TensorBoard. Install it with: pip install 'privet[tensorboard]'.")
        self._folder, self._clock = folder, clock
        self._began, self._first_step = 0.0, 0
        self._records: Any = None

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        """Open a new file for this process."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._began, self._first_step = float(int(self._clock())), step
        path = self._folder / f"events.out.tfevents.{int(self._began):010d}.privet.{step}"
        try:
            self._folder.mkdir(exist_ok=True)
            self._records = RecordWriter(path.open("wb"))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror}.") from None
        self._append(Event(wall_time=self._began, file_version="brain.Event:2"))

    def stepped(self, update: StepUpdate) -> None:
        values = {
            "training/learning_rate": update.learning_rate,
            "training/masked_share": update.masked_share,
        }
        if update.epsilon_spent is not None:
            values["privacy/epsilon"] = update.epsilon_spent
        if update.loss is not None:
            values["unprotected/mean_loss"] = update.loss
        wall_time = self._clock() if update.may_show_time else self._step_time(update.step)
        self._write(update.step, wall_time, values)

    def evaluated(self, point: CurvePoint) -> None:
        tag = f"unprotected/test_{point.measure.name.replace(' ', '_')}"
        self._write(point.step, self._step_time(point.step), {tag: point.measure.value})

    def ended(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None

    def _step_time(self, step: int) -> float:
        return self._began + step - self._first_step

    def _write(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._append(Event(wall_time=wall_time, step=step, summary=Summary(value=entries)))

    def _append(self, event: Any) -> None:
        try:
            self._records.write(event.SerializeToString())
            self._records.flush()
        except OSError as error:
            raise CheckpointError(
                f"Could not write to {self._folder}: {error.strerror}. Free space, then run the same command again to "
                "resume."
            ) from error
