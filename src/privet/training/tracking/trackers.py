"""Trackers of experiments: one receiver of public values, and the places that it can write to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from privet.accounting.guarantee import Guarantee
from privet.errors import ArgumentError, CheckpointError, DependencyError
from privet.training.telemetry import Unprotected
from privet.training.tracking.progress import StepUpdate

if TYPE_CHECKING:
    from privet.runs.measures import CurvePoint

_UNPROTECTED = "unprotected/"


class Place(Protocol):
    """Where a tracker writes: the few calls that TensorBoard, MLflow and Weights & Biases have in common."""

    def open(self, promised: Guarantee, *, began: float, step: int) -> None:
        """Begin; ``promised`` is public."""
        ...

    def write(self, step: int, values: Mapping[str, float], *, at: float, hides_time: bool) -> None:
        """Write values of a step; ``hides_time`` if the moment of this call must not be seen from what is written."""
        ...

    def close(self) -> None:
        """Write the rest, and end."""
        ...


class Tracker:
    """Receives the steps of a run and writes them to one place, under the same names everywhere.

    The duration of a step reveals its private number of examples, so events bear times that count steps.

    Guarantee:
        Unless the run may show unprotected values, the record of a step is its number, learning rate and masked
        share, epsilon where it was computed, and a time that follows from the step's number. Losses and measurements
        are written only where the run may show them, under names that begin with ``unprotected/``.
    """

    def __init__(self, place: Place, *, clock: Callable[[], float] = time.time) -> None:
        """Write to ``place``, which is opened when the run starts."""
        self._place, self._clock = place, clock
        self._began, self._first_step, self._is_open = 0.0, 0, False

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        self._began, self._first_step, self._is_open = float(int(self._clock())), step, True
        self._place.open(promised, began=self._began, step=step)

    def stepped(self, update: StepUpdate) -> None:
        values = {"training/learning_rate": update.learning_rate, "training/masked_share": update.masked_share}
        if update.epsilon_spent is not None:
            values["privacy/epsilon"] = update.epsilon_spent
        if update.loss is not None:
            values[f"{_UNPROTECTED}mean_loss"] = update.loss
        at = self._clock() if update.may_show_time else self._step_time(update.step)
        self._place.write(update.step, values, at=at, hides_time=not update.may_show_time)

    def evaluated(self, point: CurvePoint) -> None:
        name = f"{_UNPROTECTED}test_{point.measure.name.replace(' ', '_')}"
        self._place.write(point.step, {name: point.measure.value}, at=self._step_time(point.step), hides_time=True)

    def ended(self) -> None:
        if self._is_open:
            self._is_open = False
            self._place.close()

    def unprotected(self, values: Unprotected) -> None:
        """Write values that the guarantee does not cover; ``privatize(..., telemetry=tracker.unprotected)``."""
        figures = {
            "mean_loss": values.mean_loss,
            "clipped_share": values.clipped_share,
            "batch_size": float(values.batch_size),
            "noise_to_signal": values.noise_to_signal,
        }
        known = {f"{_UNPROTECTED}{name}": value for name, value in figures.items() if value is not None}
        self._place.write(values.step + 1, known, at=self._step_time(values.step + 1), hides_time=True)

    def _step_time(self, step: int) -> float:
        return self._began + step - self._first_step


class TensorBoard(Tracker):
    """Writes a run's steps as TensorBoard events into a folder.

    TensorBoard's own writer stamps every event with the time and names its file after the machine, so the records are
    written here.
    """

    def __init__(self, folder: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        """Check that TensorBoard is installed; the folder is created when the run starts.

        Raises:
            DependencyError: TensorBoard is not installed.
        """
        _check_installed("tensorboard", "TensorBoard", "privet[tensorboard]")
        super().__init__(_EventFile(Path(folder)), clock=clock)


class MLflow(Tracker):
    """Writes a run's steps to a run of MLflow, with the guarantee among its parameters.

    Example::

        with mlflow.start_run() as run:
            tracker = pv.tracking.MLflow(run.info.run_id)
            with pv.privatize(model, optimizer, data, plan, progress=tracker) as private: ...
    """

    def __init__(self, run_id: str, *, client: Any = None) -> None:
        """Write to the run of this id; ``client`` is an ``MlflowClient``, a new one by default."""
        _check_installed("mlflow", "MLflow", "mlflow")
        from mlflow import MlflowClient

        super().__init__(_MLflowRun(run_id, client or MlflowClient()))


class WeightsAndBiases(Tracker):
    """Writes a run's steps to a run of Weights & Biases, with the guarantee in its configuration.

    Every row there bears the time at which it was sent, so rows of a private run are sent together, at its end. Its
    measurements of the machine tell times as well: start the run with
    ``wandb.init(settings=wandb.Settings(x_disable_stats=True))``.
    """

    def __init__(self, run: Any) -> None:
        """Write to the run that ``wandb.init()`` returned."""
        if not callable(getattr(run, "log", None)) or not hasattr(run, "config"):
            raise ArgumentError(f"run must be what wandb.init() returned, got {type(run).__name__}.")
        super().__init__(_WandbRun(run))


def _check_installed(module: str, name: str, package: str) -> None:
    if find_spec(module) is None:
        raise DependencyError(f"{name} is not installed. Install it with: pip install '{package}'.")


class _EventFile:
    """TensorBoard's records in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: Any = None

    def open(self, promised: Guarantee, *, began: float, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        path = self._folder / f"events.out.tfevents.{int(began):010d}.privet.{step}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._records = RecordWriter(path.open("wb"))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror}.") from None
        self._append(Event(wall_time=began, file_version="brain.Event:2"))

    def write(self, step: int, values: Mapping[str, float], *, at: float, hides_time: bool) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._append(Event(wall_time=at, step=step, summary=Summary(value=entries)))

    def close(self) -> None:
        self._records.close()
        self._records = None

    def _append(self, event: Any) -> None:
        try:
            self._records.write(event.SerializeToString())
            self._records.flush()
        except OSError as error:
            raise CheckpointError(
                f"Could not write to {self._folder}: {error.strerror}. Free space, then run the same command again to "
                "resume."
            ) from error


class _MLflowRun:
    """A run of MLflow. Its metrics bear the times that they are given; they are sent so many steps at a time."""

    _STEPS_AT_ONCE = 100

    def __init__(self, run_id: str, client: Any) -> None:
        self._run_id, self._client = run_id, client
        self._rows: list[tuple[int, Mapping[str, float], float]] = []

    def open(self, promised: Guarantee, *, began: float, step: int) -> None:
        from mlflow.entities import Param

        facts = [Param(key=name, value=value) for name, value in facts_of(promised).items()]
        self._client.log_batch(self._run_id, params=facts)

    def write(self, step: int, values: Mapping[str, float], *, at: float, hides_time: bool) -> None:
        self._rows.append((step, values, at))
        if step % self._STEPS_AT_ONCE == 0:
            self._send()

    def close(self) -> None:
        self._send()

    def _send(self) -> None:
        from mlflow.entities import Metric

        rows = [
            Metric(key=name, value=value, timestamp=int(at * 1000), step=step)
            for step, values, at in self._rows
            for name, value in values.items()
        ]
        self._rows = []
        for start in range(0, len(rows), 1000):  # the most that MLflow takes at once
            self._client.log_batch(self._run_id, metrics=rows[start : start + 1000])


class _WandbRun:
    """A run of Weights & Biases."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._rows: dict[int, dict[str, float]] = {}

    def open(self, promised: Guarantee, *, began: float, step: int) -> None:
        self._run.config.update(facts_of(promised), allow_val_change=True)

    def write(self, step: int, values: Mapping[str, float], *, at: float, hides_time: bool) -> None:
        if hides_time:
            self._rows.setdefault(step, {}).update(values)
        else:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        for step in sorted(self._rows):
            self._run.log(self._rows[step], step=step)
        self._rows = {}


def facts_of(promised: Guarantee) -> dict[str, str]:
    """Return the terms of a guarantee as short words, for the parameters of a tracker."""
    return {
        "privacy/guarantee": str(promised),
        "privacy/epsilon": repr(promised.epsilon),
        "privacy/delta": repr(promised.delta),
        "privacy/adjacency": promised.adjacency.value,
        "privacy/unit": promised.unit.value,
    }
