"""Lightning with private steps: ``trainer.fit`` runs its own loop, and each of its batches is one logical step.

The loader is a :class:`PrivateSteps`, the module a :class:`PrivateModule`. Optimization is Lightning's manual one, so
it neither clips, scales nor accumulates; its ``optimizer.step()`` finishes the private step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from privet.accounting.guarantee import Guarantee
from privet.errors import ArgumentError, DependencyError, LoopError
from privet.integrations.hugging_face.private_run import Evaluation, PrivateRun
from privet.integrations.stepping import LogicalSteps, StepOptimizer, advance
from privet.training.batching import Collate, MapDataset, check_dataset
from privet.training.session import Session, Step

try:
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
    from lightning.pytorch.core.optimizer import do_nothing_closure
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError as missing:  # pragma: no cover (installed in the other environment)
    raise DependencyError(
        "Private modules of Lightning need it. Install it with: pip install 'privet[lightning]'."
    ) from missing


_LOG = logging.getLogger("privet")


class PrivateSteps(LogicalSteps):
    """A data set and the terms of private training on it, for ``trainer.fit`` in place of a loader.

    Args:
        dataset: A map-style data set; one item is one unit of privacy.
        private: The run's private half, with its plan.
        collate_fn: Turns a list of items into a batch; torch's default otherwise.
    """

    def __init__(self, dataset: MapDataset, private: PrivateRun, *, collate_fn: Collate | None = None) -> None:
        """Check the data set; nothing is read."""
        super().__init__(steps_per_epoch=private.plan.sampling.steps_per_epoch)
        self.dataset, self.private, self.collate_fn = check_dataset(dataset), private, collate_fn


class _LightningStep(StepOptimizer):
    """The optimizer of Lightning's loop, which never calls ``step()`` without a closure."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # torch's returns the closure's loss
        """Finish the private step at hand; Lightning's own empty closure is run, for its hooks."""
        if isinstance(closure, partial) and closure.args[-1:] == (do_nothing_closure,):
            closure()
            closure = None
        super().step(closure)


@dataclass(kw_only=True, eq=False)
class _Fit:
    """One call of ``trainer.fit``."""

    session: Session
    private: PrivateRun
    optimizer: StepOptimizer
    losses: Callable[..., Tensor]
    is_open: bool = True
    is_summing: bool = False


class PrivateModule(lightning.LightningModule):  # type: ignore[misc] # Lightning has no types here
    """A module of Lightning that trains privately: write ``compute_losses`` where you had ``training_step``.

    Guarantee:
        The weights change by private steps alone, whose rounds are charged to the ledger before any record is read. The
        plan decides their number, batches, clipping and noise; settings of the trainer that would, are refused.
        ``self.log`` refuses in ``compute_losses``: values there are private. An empty batch is a step like any
        other.

    Attributes:
        session: The session, once ``trainer.fit`` has begun.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        """Make a module whose optimization is manual."""
        super().__init__(*given, **named)
        self.automatic_optimization = False
        self._fit: _Fit | None = None

    @property
    def session(self) -> Session | None:
        """The session, once ``trainer.fit`` has begun."""
        return None if self._fit is None else self._fit.session

    def compute_losses(self, batch: Any) -> Tensor:
        """Return one loss per example of the batch, in its order; never a mean.

        Write it in your class. A batch of several parts comes as a tuple.
        """
        raise NotImplementedError(f"{type(self).__name__} must write compute_losses(batch): one loss per example.")

    def guarantee(self) -> Guarantee:
        """Return the guarantee of the training so far."""
        if self._fit is None:
            raise LoopError("Nothing was trained yet. Call trainer.fit(...); plan.guarantee() is what it will cost.")
        found = self._fit.session.guarantee()
        declared = self._fit.private.evaluation.assumptions
        return replace(found, assumptions=(*found.assumptions, *declared))

    # ----------------------------------------------------------------------------------------- what Lightning calls

    def configure_callbacks(self) -> Any:
        """Add the callback that opens and closes the session to those of the module."""
        return [*super().configure_callbacks(), _SessionOfFit()]

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Hand steps through; their examples are moved where they are read."""
        return batch if isinstance(batch, Step) else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Sum one logical step and update the weights by it.

        Raises:
            LoopError: for anything but a step, such as a batch of a loader that draws for itself.
        """
        fit = self._fit
        if fit is None or not isinstance(batch, Step):
            raise LoopError(_no_steps(type(batch).__name__))
        fit.is_summing = True
        try:
            batch.accumulate(fit.losses)
        finally:
            fit.is_summing = False
        fit.optimizer.expect(batch.update)
        self.optimizers().step()  # Lightning's own count of steps goes by this call
        _let_schedules_go_on(self, "step", batch.index % fit.session.plan.sampling.steps_per_epoch + 1)

    def log(self, name: str, value: Any, *given: Any, **named: Any) -> None:
        """Log a value, as Lightning does; refused while a private step is summed.

        Raises:
            LoopError: inside ``compute_losses``.
        """
        if self._fit is not None and self._fit.is_summing:
            raise LoopError(
                f"self.log({name!r}, ...) was called in compute_losses, whose values are private and would reach "
                "loggers and files. Log in validation_step on public data, or ask for unprotected values with "
                "PrivateRun(telemetry=...)."
            )
        super().log(name, value, *given, **named)


class _SessionOfFit(lightning.Callback):  # type: ignore[misc] # likewise
    """Opens the session when training starts and closes it however training ends."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        steps = _steps_of(trainer)
        private = steps.private
        _check_module(pl_module, private)
        _check_trainer(trainer, private)
        inner = _inner_optimizer(trainer)
        schedules = list(_timed(trainer))
        rates = [group["lr"] for group in inner.param_groups]
        session = private.session(pl_module, inner, steps.dataset, collate_fn=steps.collate_fn, folder=private.folder)
        session.__enter__()
        pl_module._fit = _Fit(
            session=session, private=private, optimizer=_LightningStep(inner), losses=_losses_of(pl_module)
        )
        done = session.steps_charged
        if schedules:
            for group, rate in zip(inner.param_groups, rates, strict=True):
                group["lr"] = rate
            _advance(schedules, done, per_epoch=len(steps))
        if len(schedules) < len(trainer.lr_scheduler_configs):
            _LOG.warning(
                "Lightning leaves ReduceLROnPlateau to you where optimization is manual. Step it where its value is "
                "known: on_validation_epoch_end calls self.lr_schedulers().step(self.trainer.callback_metrics[...])."
            )
        trainer.strategy.optimizers = [pl_module._fit.optimizer]
        _count_from(trainer, done, per_epoch=len(steps))
        steps.begin(session.steps(), first=done)
        _tell_of_early_end(trainer, private.plan.num_steps, per_epoch=len(steps))
        trainer.should_stop = trainer.should_stop or done >= private.plan.num_steps

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch.index + 1 >= pl_module.session.plan.num_steps:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        _let_schedules_go_on(pl_module, "epoch", trainer.current_epoch + 1)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        fit: _Fit | None = pl_module._fit
        if fit is not None and fit.is_open:
            steps = _steps_of(trainer)
            if steps.num_given >= fit.private.plan.num_steps:  # not where rounds are only charged ahead
                steps.finish()
            fit.is_open = False
            fit.session.__exit__(None, None, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        fit: _Fit | None = pl_module._fit
        if fit is not None and fit.is_open:
            fit.is_open = False
            fit.session.__exit__(type(exception), exception, exception.__traceback__)


def _no_steps(found: str) -> str:
    return (
        f"Lightning was given {found} in the place of private steps: a loader draws batches that nobody charged. Pass "
        "PrivateSteps(dataset, PrivateRun(plan=plan)) to trainer.fit, and prepare or wrap it with nothing."
    )


def _steps_of(trainer: Any) -> PrivateSteps:
    found = trainer.train_dataloader
    if not isinstance(found, PrivateSteps):
        raise LoopError(_no_steps(type(found).__name__))
    return found


def _losses_of(module: PrivateModule) -> Callable[..., Tensor]:
    def losses(*parts: Any) -> Tensor:
        return module.compute_losses(parts[0] if len(parts) == 1 else parts)

    return losses


_OF_AUTOMATIC_OPTIMIZATION = (
    "optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping", "on_before_backward",
    "on_after_backward", "on_before_zero_grad",
)  # fmt: skip


def _check_module(module: PrivateModule, private: PrivateRun) -> None:
    kind = type(module)
    if kind.training_step is not PrivateModule.training_step:
        raise ArgumentError(
            f"{kind.__name__} writes training_step, which would train without privacy. Call it compute_losses(self, "
            "batch) and return one loss per example (reduction='none')."
        )
    for name in _OF_AUTOMATIC_OPTIMIZATION:
        if getattr(kind, name) is not getattr(lightning.LightningModule, name):
            raise ArgumentError(
                f"{kind.__name__} writes {name}, which would not be called: private steps take the place of "
                "Lightning's own. Leave it out. The plan clips, and learning rates follow schedules."
            )
    if module._compiler_ctx is not None:
        raise ArgumentError(
            "The module was compiled, and nobody can look into compiled steps. Pass the module itself, and compile the "
            "step as a whole: PrivateRun(performance=pv.Performance(launch=pv.launch.Compiled()))."
        )
    if module.automatic_optimization:
        raise ArgumentError("automatic_optimization was set to True. Leave it: Lightning's own steps are not private.")
    if module._fit is not None and private.folder is None:
        raise LoopError(
            "This module was trained already, and training it further costs more than one guarantee says. Give "
            "PrivateRun(folder=...), whose ledger adds both up, or make a fresh module."
        )


def _check_trainer(trainer: Any, private: PrivateRun) -> None:
    """Refuse settings that would change steps, or decide by private values."""
    if not isinstance(trainer.strategy, SingleDeviceStrategy) or trainer.strategy.model is not trainer.lightning_module:
        raise ArgumentError(
            f"The strategy {type(trainer.strategy).__name__} wraps or splits the module. Use one device: "
            "Trainer(strategy='auto', devices=1)."
        )
    if getattr(trainer.precision_plugin, "scaler", None) is not None or trainer.precision == "16-true":
        raise ArgumentError(
            f"precision={trainer.precision!r} scales or rounds by private overflows. Use '32-true', '64-true' or "
            "'bf16-mixed'."
        )
    if trainer.limit_train_batches != 1.0 or trainer.overfit_batches or trainer.fast_dev_run:
        raise ArgumentError(
            "limit_train_batches, overfit_batches and fast_dev_run cut epochs short; the plan decides the number of "
            "steps. Make a plan with fewer steps."
        )
    for callback in trainer.callbacks:
        if isinstance(callback, StochasticWeightAveraging | WeightAveraging):
            raise ArgumentError(
                f"{type(callback).__name__} puts other weights into the module, which no private step made: after all "
                "steps were paid for, there would be no guarantee. Let the session keep an average: "
                "PrivateRun(averaging=pv.optim.ExponentialAverage(decay=...)), then model.session.averaged()."
            )
    if trainer.reload_dataloaders_every_n_epochs:
        raise ArgumentError("reload_dataloaders_every_n_epochs would begin the plan's steps anew. Leave it at 0.")
    if trainer.ckpt_path and (private.folder is None or not (Path(private.folder) / "ledger.jsonl").exists()):
        raise ArgumentError(
            "ckpt_path continues a run whose ledger is not here, so its cost is unknown. Give PrivateRun(folder=...) "
            "the folder that the run began with."
        )
    if private.evaluation is Evaluation.UNDECLARED:
        for name in _deciders(trainer):
            raise ArgumentError(
                f"{name} decides by values of the evaluation. Say where these come from: PrivateRun(evaluation="
                "Evaluation.PUBLIC) for public data, Evaluation.CHARGED for values that were charged elsewhere."
            )


def _tell_of_early_end(trainer: Any, num_steps: int, *, per_epoch: int) -> None:
    """Say that the trainer will stop before the plan does; a shorter plan would have had less noise."""
    limits = {"max_epochs": (trainer.max_epochs, per_epoch), "max_steps": (trainer.max_steps, 1)}
    for name, (limit, length) in limits.items():
        if limit is not None and 0 <= limit * length < num_steps:
            _LOG.warning(
                "%s=%d ends training after %d of the plan's %d steps, whose noise was made for all of them. Leave the "
                "end to the plan (max_epochs=-1), or make the plan with fewer steps.",
                name, limit, limit * length, num_steps,
            )  # fmt: skip


def _deciders(trainer: Any) -> Iterator[str]:
    for callback in trainer.callbacks:
        decides = isinstance(callback, EarlyStopping)
        if decides or (isinstance(callback, ModelCheckpoint) and callback.monitor is not None):
            yield type(callback).__name__
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, ReduceLROnPlateau):
            yield "ReduceLROnPlateau"


def _inner_optimizer(trainer: Any) -> Optimizer:
    optimizers = trainer.strategy.optimizers
    if len(optimizers) != 1:
        raise ArgumentError(
            f"configure_optimizers returned {len(optimizers)} optimizers, and a session has one. Use one optimizer, or "
            "several sessions in a loop of your own."
        )
    (found,) = optimizers
    return found.inner if isinstance(found, StepOptimizer) else found


def _timed(trainer: Any) -> Iterator[Any]:
    """Yield the schedules that go by steps or epochs. One that goes by evaluations is stepped by its user."""
    for config in trainer.lr_scheduler_configs:
        if not isinstance(config.scheduler, ReduceLROnPlateau):
            yield config


def _let_schedules_go_on(module: PrivateModule, interval: str, number: int) -> None:
    """Let schedules go on after a step, which has this number in its epoch, or after an epoch; as Lightning does."""
    for config in _timed(module.trainer):
        if config.interval == interval and number % config.frequency == 0:
            module.lr_scheduler_step(config.scheduler, None)


def _advance(schedules: list[Any], done: int, *, per_epoch: int) -> None:
    """Bring schedules to the public number of the step: steps that a crash lost stay paid for."""
    epochs, rest = divmod(done, per_epoch)
    for config in schedules:
        each = config.frequency  # counted anew in every epoch
        wanted = epochs * (per_epoch // each) + rest // each if config.interval == "step" else epochs // each
        if config.scheduler.last_epoch > wanted:
            raise LoopError("The schedule of learning rates is ahead of the ledger: it belongs to another run.")
        advance(config.scheduler, by=wanted - config.scheduler.last_epoch)


def _count_from(trainer: Any, done: int, *, per_epoch: int) -> None:
    """Let Lightning's counters begin where the ledger ends."""
    total = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total
    total.ready = total.completed = done
    if not trainer.ckpt_path:
        epochs = trainer.fit_loop.epoch_progress.current
        epochs.ready = epochs.started = epochs.processed = epochs.completed = done // per_epoch
