"""Trackers receive public values of a session, and unprotected ones only where somebody handed them over."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import privet as pv
from privet.accounting.guarantee import Guarantee
from privet.errors import ArgumentError, DependencyError
from privet.training.tracking.trackers import facts_of

PUBLIC = {"training/learning_rate", "training/masked_share", "privacy/epsilon"}


class Rows:
    """A place that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float], float, bool]] = []
        self.promised: list[Guarantee] = []
        self.is_closed = False

    def open(self, promised: Guarantee, *, began: float, step: int) -> None:
        self.promised.append(promised)

    def write(self, step: int, values: Any, *, at: float, hides_time: bool) -> None:
        self.rows.append((step, dict(values), at, hides_time))

    def close(self) -> None:
        self.is_closed = True


def plan(steps: int = 4) -> pv.Plan:
    return pv.Plan.dpsgd(dataset_size=64, batch_size=8, steps=steps, noise_multiplier=1.0, delta=1e-3)


def train(progress: Any, *, folder: Path | None = None, stop_after: int | None = None, **options: Any) -> pv.Session:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = TensorDataset(torch.randn(64, 2), torch.randint(0, 2, (64,)))
    session = pv.privatize(model, optimizer, data, plan(), progress=progress, folder=folder, **options)
    with session:
        for step in session.steps():
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
            if step.index + 1 == stop_after:
                break
    return session


def test_a_session_tells_a_tracker_public_values_of_each_step_and_times_that_count_steps() -> None:
    place = Rows()
    train(pv.tracking.Tracker(place))
    assert [step for step, *_ in place.rows] == [1, 2, 3, 4]
    assert {name for _, values, *_ in place.rows for name in values} <= PUBLIC
    assert [later[2] - place.rows[0][2] for later in place.rows] == [0.0, 1.0, 2.0, 3.0]
    assert all(hides_time for *_, hides_time in place.rows)
    assert place.promised == [plan().guarantee()]
    assert place.rows[-1][1]["privacy/epsilon"] == plan().guarantee().epsilon
    assert place.is_closed


def test_unprotected_values_reach_a_tracker_only_by_its_own_method_and_under_their_own_names() -> None:
    place = Rows()
    tracker = pv.tracking.Tracker(place)
    train(tracker, telemetry=tracker.unprotected)
    names = {name for _, values, *_ in place.rows for name in values}
    assert {"unprotected/mean_loss", "unprotected/batch_size"} <= names
    assert {name for name in names if not name.startswith("unprotected/")} <= PUBLIC


def test_a_resumed_session_goes_on_with_its_number_of_steps(tmp_path: Path) -> None:
    first, second = Rows(), Rows()
    train(pv.tracking.Tracker(first), folder=tmp_path, stop_after=2, checkpoint_every=1)
    train(pv.tracking.Tracker(second), folder=tmp_path, checkpoint_every=1)
    assert [step for step, *_ in first.rows + second.rows] == [1, 2, 3, 4]
    assert first.is_closed
    assert second.is_closed


def test_a_place_is_closed_when_training_fails() -> None:
    place = Rows()

    def failing(values: pv.Unprotected) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        train(pv.tracking.Tracker(place), telemetry=failing)
    assert place.is_closed


def test_tensorboard_writes_into_a_folder_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(pv.tracking.TensorBoard(tmp_path / "deep" / "events"))
    (file,) = (tmp_path / "deep" / "events").iterdir()
    assert file.stat().st_size > 100


class WandbRun:
    def __init__(self) -> None:
        self.config = SimpleNamespace(update=lambda values, allow_val_change: self.facts.update(values))
        self.facts: dict[str, str] = {}
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.logged.append((step, values))


def test_weights_and_biases_gets_the_rows_of_a_private_run_at_its_end() -> None:
    run = WandbRun()
    train(pv.tracking.WeightsAndBiases(run), telemetry=lambda _: None if not run.logged else pytest.fail("too early"))
    assert [step for step, _ in run.logged] == [1, 2, 3, 4]
    assert run.facts == facts_of(plan().guarantee())
    with pytest.raises(ArgumentError, match=r"wandb\.init"):
        pv.tracking.WeightsAndBiases(object())


def test_mlflow_gets_metrics_with_the_times_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    entities = ModuleType("mlflow.entities")
    entities.Metric = entities.Param = SimpleNamespace  # type: ignore[attr-defined]
    package = ModuleType("mlflow")
    package.MlflowClient = None  # type: ignore[attr-defined]
    package.__spec__ = SimpleNamespace(name="mlflow")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    sent: list[Any] = []

    def log_batch(run_id: str, *, metrics: Any = (), params: Any = ()) -> None:
        assert run_id == "one"
        sent.extend([*metrics, *params])

    train(pv.tracking.MLflow("one", client=SimpleNamespace(log_batch=log_batch)))
    metrics = [row for row in sent if hasattr(row, "timestamp")]
    assert {row.step for row in metrics} == {1, 2, 3, 4}
    assert {row.key for row in metrics} <= PUBLIC
    assert {row.timestamp - metrics[0].timestamp for row in metrics} == {0, 1000, 2000, 3000}
    assert {row.key: row.value for row in sent if not hasattr(row, "timestamp")} == facts_of(plan().guarantee())


def test_a_bar_shows_steps_and_epsilon_and_no_durations(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    train(pv.tracking.Bar())
    said = capsys.readouterr().err
    assert "4/4" in said
    assert "epsilon <=" in said
    assert "it/s" not in said
    assert "00:0" not in said


RECEIVERS = {
    "tqdm": lambda: pv.tracking.Bar(),
    "tensorboard": lambda: pv.tracking.TensorBoard("folder"),
    "mlflow": lambda: pv.tracking.MLflow("one"),
}


@pytest.mark.parametrize("package", RECEIVERS)
def test_a_receiver_whose_package_is_missing_says_how_to_install_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("privet.training.tracking.bar", "privet.training.tracking.trackers"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=rf"pip install .*({package}|notebook)"):
        RECEIVERS[package]()
