"""``trainer.fit`` on private steps: the weights of the own loop, its ledger, and refusals of what would break them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning")
import lightning
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger

import privet as pv
from privet.errors import ArgumentError, LoopError, WeightsChanged
from privet.integrations import Evaluation, PrivateRun, PrivateSteps
from tests.integrations.lightning_jobs import Job, data, own_loop, plan, steps, trainer
from tests.training.tools import flat

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers, loggers and devices


@pytest.mark.parametrize("schedule", [False, True], ids=["fixed rate", "schedule"])
def test_a_fit_ends_with_the_weights_of_the_own_loop_and_its_ledger_equals_the_plan(
    tmp_path: Path, schedule: bool
) -> None:
    job = Job(schedule=schedule)
    fit = trainer(tmp_path)
    fit.fit(job, steps())
    own = Job().network
    private = own_loop(own, schedule=schedule)
    assert torch.equal(flat(job.network), flat(own))
    assert fit.global_step == plan().num_steps
    assert job.session is not None
    assert job.session.is_complete
    assert job.guarantee().epsilon == plan().guarantee().epsilon == private.guarantee().epsilon


def test_a_fit_in_bf16_ends_with_the_weights_of_the_own_loop_under_the_same_autocast(tmp_path: Path) -> None:
    inputs, labels = data().tensors
    single = TensorDataset(inputs.float(), labels)
    job, own = Job().float(), Job().network.float()
    trainer(tmp_path, precision="bf16-mixed").fit(job, PrivateSteps(single, PrivateRun(plan=plan(), seed=5)))

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.cross_entropy(own(x), y, reduction="none")

    optimizer = torch.optim.SGD(own.parameters(), lr=0.5, momentum=0.9)
    with pv.privatize(own, optimizer, single, plan(), seed=5) as private:
        for step in private.steps():
            step.accumulate(losses)
            step.update()
    assert torch.equal(flat(job.network), flat(own))


def test_empty_logical_batches_are_steps(tmp_path: Path) -> None:
    rare = plan(batch_size=0.5, epochs=1)
    sizes: list[int] = []
    job = Job()
    fit = trainer(tmp_path)
    fit.fit(job, steps(plan=rare, telemetry=lambda values: sizes.append(values.batch_size)))
    assert 0 in sizes
    assert len(sizes) == fit.global_step == rare.num_steps
    own = Job().network
    own_loop(own, plan=rare)
    assert torch.equal(flat(job.network), flat(own))


def test_a_seed_of_lightning_changes_neither_batches_nor_noise(tmp_path: Path) -> None:
    weights, sizes = [], []
    for _ in range(2):
        lightning.seed_everything(0, workers=True, verbose=False)
        job, told = Job(), []
        trainer(tmp_path).fit(job, steps(seed=None, telemetry=lambda values, told=told: told.append(values.batch_size)))
        weights.append(flat(job.network))
        sizes.append(told)
        assert not job.guarantee().not_private_because
    assert not torch.equal(*weights)
    assert sizes[0] != sizes[1]


@pytest.mark.parametrize("with_checkpoint", [False, True], ids=["folder alone", "Lightning's checkpoint"])
def test_a_fit_that_was_stopped_goes_on_where_the_ledger_ends(tmp_path: Path, with_checkpoint: bool) -> None:
    folder, num_steps = tmp_path / "run", plan().num_steps

    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 7:
                trainer.should_stop = True

    first = Job(schedule=True)
    stopped = trainer(tmp_path, callbacks=[Stop()])
    stopped.fit(first, steps(folder=folder))
    assert first.session is not None
    assert first.session.steps_taken == 7
    if with_checkpoint:
        stopped.save_checkpoint(tmp_path / "theirs.ckpt")
    second = Job(schedule=True)
    rates: list[float] = []

    class Rates(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            rates.append(trainer.strategy.optimizers[0].param_groups[0]["lr"])

    resumed = trainer(tmp_path, callbacks=[Rates()])
    resumed.fit(second, steps(folder=folder), ckpt_path=str(tmp_path / "theirs.ckpt") if with_checkpoint else None)
    assert second.session is not None
    assert second.session.is_complete
    assert second.session.steps_taken == num_steps
    assert resumed.global_step == num_steps
    assert rates == pytest.approx([0.5 * 0.9**index for index in range(7, num_steps)])
    assert second.guarantee().epsilon == plan().guarantee().epsilon
    weights = flat(second.network)
    again = Job(schedule=True)
    trainer(tmp_path).fit(again, steps(folder=folder))
    assert torch.equal(flat(again.network), weights)


def test_an_error_closes_the_session_and_its_rounds_stay_charged(tmp_path: Path) -> None:
    class Broken(Job):
        def compute_losses(self, batch: Any) -> Any:
            raise OSError("broken")

    job = Broken()
    with pytest.raises(OSError, match="broken"):
        trainer(tmp_path).fit(job, steps())
    assert job.session is not None
    assert job.session.ledger.charged_rounds == 1
    with pytest.raises(LoopError, match="trained already"):
        trainer(tmp_path).fit(job, steps())


@pytest.mark.parametrize(
    ("interval", "frequency", "rate"),
    [("step", 1, 0.5 * 0.9**20), ("step", 4, 0.5 * 0.9**4), ("epoch", 1, 0.5 * 0.9**2), ("epoch", 2, 0.5 * 0.9)],
)
def test_schedules_go_on_as_lightning_lets_them_and_a_resumed_fit_finds_them_again(
    tmp_path: Path, interval: str, frequency: int, rate: float
) -> None:
    class Scheduled(Job):
        stepped = 0

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
            return [optimizer], [{"scheduler": schedule, "interval": interval, "frequency": frequency}]

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            self.stepped += 1
            super().lr_scheduler_step(scheduler, metric)

        def on_train_epoch_end(self) -> None:
            pass  # as users write it, without super()

    class Stop(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.should_stop or trainer.global_step == 13

    whole, fit = Scheduled(), trainer(tmp_path)
    fit.fit(whole, steps())
    assert fit.optimizers[0].param_groups[0]["lr"] == pytest.approx(rate)
    assert 0.5 * 0.9**whole.stepped == pytest.approx(rate)
    trainer(tmp_path, callbacks=[Stop()]).fit(Scheduled(), steps(folder=tmp_path / "run"))
    resumed = trainer(tmp_path)
    resumed.fit(Scheduled(), steps(folder=tmp_path / "run"))
    assert resumed.optimizers[0].param_groups[0]["lr"] == pytest.approx(rate)


def test_a_rate_that_falls_by_public_evaluations_is_stepped_by_its_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Falling(Job):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0, factor=0.5)
            return [optimizer], [schedule]

        def on_validation_epoch_end(self) -> None:
            self.lr_schedulers().step(self.trainer.callback_metrics["val_loss"])

    fit = trainer(tmp_path, num_sanity_val_steps=0)
    fit.fit(Falling(), steps(evaluation=Evaluation.PUBLIC, plan=plan(epochs=3)), DataLoader(data(8), batch_size=8))
    assert fit.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5 * 0.5**3)
    assert "leaves ReduceLROnPlateau to you" in caplog.text
    with pytest.raises(ArgumentError, match="ReduceLROnPlateau decides"):
        trainer(tmp_path).fit(Falling(), steps(), DataLoader(data(8), batch_size=8))


@pytest.mark.parametrize("name", ["optimizer_step", "configure_gradient_clipping", "on_after_backward"])
def test_a_hook_that_would_not_be_called_is_refused_by_name(tmp_path: Path, name: str) -> None:
    kind = type("Hooked", (Job,), {name: lambda self, *given, **named: None})
    with pytest.raises(ArgumentError, match=f"Hooked writes {name}"):
        trainer(tmp_path).fit(kind(), steps())


def test_a_compiled_module_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="was compiled"):
        trainer(tmp_path).fit(torch.compile(Job()), steps())


def test_a_search_for_a_rate_gets_no_steps(tmp_path: Path) -> None:
    search = lightning.pytorch.callbacks.LearningRateFinder(num_training_steps=3)
    job = Job()
    job.lr = 0.1  # type: ignore[assignment]
    with pytest.raises(LoopError, match="search for a learning rate"):
        trainer(tmp_path, callbacks=[search]).fit(job, steps())
    assert job.session is None


def test_nothing_private_reaches_a_logger(tmp_path: Path) -> None:
    class Logging(Job):
        def compute_losses(self, batch: Any) -> Any:
            losses = super().compute_losses(batch)
            self.log("train_loss", losses.mean())
            return losses

    with pytest.raises(LoopError, match="train_loss"):
        trainer(tmp_path, logger=CSVLogger(tmp_path)).fit(Logging(), steps())
    fit = trainer(tmp_path, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    fit.fit(Job(), steps(), DataLoader(data(8), batch_size=8))
    assert set(fit.callback_metrics) == {"val_loss"}


@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(lambda: DataLoader(data(), batch_size=4), id="a loader"),
        pytest.param(lambda: [steps(), steps()], id="two of them"),
    ],
)
def test_a_loader_in_the_place_of_private_steps_is_refused(tmp_path: Path, loader: Any) -> None:
    with pytest.raises(LoopError, match="PrivateSteps"):
        trainer(tmp_path).fit(Job(), loader())


def test_a_loader_is_no_data_set() -> None:
    with pytest.raises(pv.PrivetError, match="DataLoader"):
        PrivateSteps(DataLoader(data()), PrivateRun(plan=plan()))  # type: ignore[arg-type]


def test_a_training_step_of_the_old_kind_is_refused(tmp_path: Path) -> None:
    class Old(Job):
        def training_step(self, batch: Any, batch_idx: int) -> Any:  # type: ignore[override]
            x, y = batch
            return functional.cross_entropy(self.network(x), y)

    with pytest.raises(ArgumentError, match="compute_losses"):
        trainer(tmp_path).fit(Old(), steps())


def test_an_optimizer_step_without_a_private_step_is_refused(tmp_path: Path) -> None:
    class Twice(Job):
        def on_train_batch_end(self, *_: Any) -> None:
            self.optimizers().step()

    with pytest.raises(LoopError, match="without a private step"):
        trainer(tmp_path).fit(Twice(), steps())


def test_weights_that_something_else_changes_are_noticed(tmp_path: Path) -> None:
    class Meddling(Job):
        def on_train_batch_start(self, *_: Any) -> None:
            with torch.no_grad():
                self.network[0].bias.add_(1.0)

    with pytest.raises(WeightsChanged):
        trainer(tmp_path).fit(Meddling(), steps())


SETTINGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "clipping": ({"gradient_clip_val": 1.0}, MisconfigurationException, "gradient clipping"),
    "accumulation": ({"accumulate_grad_batches": 2}, MisconfigurationException, "gradient accumulation"),
    "loaders made anew": ({"reload_dataloaders_every_n_epochs": 1}, ArgumentError, "reload_dataloaders"),
    "fewer batches": ({"limit_train_batches": 3}, ArgumentError, "limit_train_batches"),
    "overfitting": ({"overfit_batches": 2}, ArgumentError, "overfit_batches"),
    "a strategy that wraps": ({"strategy": "ddp", "devices": 1}, ArgumentError, "DDPStrategy"),
    "half precision": ({"precision": "16-true"}, ArgumentError, "16-true"),
    "an average of weights": ({"callbacks": [EMAWeightAveraging()]}, ArgumentError, "EMAWeightAveraging.*averaging="),
    "swapped weights": ({"callbacks": [StochasticWeightAveraging(0.1)]}, ArgumentError, "Stochastic.*averaging="),
    "early stopping": ({"callbacks": [EarlyStopping("val_loss")]}, ArgumentError, "EarlyStopping"),
    "a best model": (
        {"callbacks": [ModelCheckpoint(monitor="val_loss")], "enable_checkpointing": True},
        ArgumentError,
        "ModelCheckpoint",
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_that_would_break_the_accounting_are_refused(tmp_path: Path, setting: str) -> None:
    changes, error, words = SETTINGS[setting]
    job = Job()
    before = flat(job.network)
    with pytest.raises(error, match=words):
        trainer(tmp_path, **changes).fit(job, steps(), DataLoader(data(8), batch_size=8))
    assert torch.equal(flat(job.network).double(), before.double()) or setting == "half precision"


def test_a_best_model_by_public_data_is_kept_and_the_guarantee_says_so(tmp_path: Path) -> None:
    job = Job()
    best = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss")
    fit = trainer(tmp_path, callbacks=[best], enable_checkpointing=True)
    fit.fit(job, steps(evaluation=Evaluation.PUBLIC), DataLoader(data(8), batch_size=8))
    assert Path(best.best_model_path).exists()
    assert any("are public, as was declared" in words for words in job.guarantee().assumptions)


def test_a_checkpoint_without_its_ledger_is_refused(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    first.fit(Job(), steps())
    first.save_checkpoint(tmp_path / "theirs.ckpt")
    for folder in (None, tmp_path / "new"):
        with pytest.raises(ArgumentError, match="ledger is not here"):
            trainer(tmp_path).fit(Job(), steps(folder=folder), ckpt_path=str(tmp_path / "theirs.ckpt"))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_epochs": 1}, ["max_epochs=1 ends training after 10 of the plan's 20 steps"]),
        ({"max_epochs": -1, "max_steps": 15}, ["max_steps=15 ends training after 15 of the plan's 20 steps"]),
        ({"max_epochs": 2}, []),
        ({"max_epochs": -1}, []),
    ],
    ids=["epochs", "steps", "enough", "no limit"],
)
def test_a_trainer_that_stops_before_the_plan_does_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limits: dict[str, int], said: list[str]
) -> None:
    job, fit = Job(), trainer(tmp_path, **limits)
    fit.fit(job, steps())
    assert fit.global_step == (int(said[0].split(" after ")[1].split()[0]) if said else 20)
    found = [record.getMessage() for record in caplog.records if "ends training" in record.getMessage()]
    assert len(found) == len(said)
    assert all(message.startswith(start) for message, start in zip(found, said, strict=True))


def test_an_epoch_that_the_plan_cuts_short_is_validated(tmp_path: Path) -> None:
    validated: list[int] = []

    class Look(lightning.Callback):  # type: ignore[misc]
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            validated.append(trainer.global_step)

    short = pv.Plan.dpsgd(dataset_size=40, batch_size=4, steps=13, noise_multiplier=1.0, delta=1e-3)
    fit = trainer(tmp_path, callbacks=[Look()], num_sanity_val_steps=0)
    fit.fit(Job(), steps(plan=short), DataLoader(data(), batch_size=20))
    assert validated == [10, 13]
