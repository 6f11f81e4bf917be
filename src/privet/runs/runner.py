"""Runs of a recipe in a folder, with the guarantee before and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from privet import checks
from privet.accounting.guarantee import Guarantee, rounded_up
from privet.accounting.library_check import confirmed
from privet.datasets.arrays import ArrayDataset, Split
from privet.errors import BudgetExceeded, CheckpointError, LedgerMismatch, PrivetError
from privet.plan import Plan
from privet.runs.building import (
    build_model,
    build_optimizer,
    build_schedule,
    choose_device,
    find_physical_batch_size,
    load_data,
    load_tested,
    loss_function,
    on_device,
    with_owners,
    with_views,
)
from privet.runs.environment import describe_environment
from privet.runs.frozen_features import Trained, trained_on
from privet.runs.launched import own_folder, said_by_any, same_weights
from privet.runs.ledger_check import LedgerCheck, finished_ledger
from privet.runs.measures import CurvePoint, Metrics
from privet.runs.model_measures import measure_model
from privet.runs.pretraining import starting_model
from privet.runs.recipes.recipe import Recipe
from privet.runs.resuming import plan_of_run, resuming_command, stored_recipe, write_plan_and_recipe
from privet.runs.run_files import RunFiles, read_json, write_json, write_whole
from privet.runs.run_logs import StepLog, UnprotectedFile
from privet.training.augmentation import mean_over_views
from privet.training.averaging import ExponentialAverage
from privet.training.batching import MapDataset
from privet.training.checkpoint import load_checkpoint
from privet.training.data_seal import DataSeal
from privet.training.distributed.ranks import Point, Ranks
from privet.training.folder import RunFolder
from privet.training.performance import Performance
from privet.training.schedules import LearningRate
from privet.training.session import Session
from privet.training.start import privatize
from privet.training.tracking.progress import Progress, Several, Silent
from privet.training.tracking.spending import Spending


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The result of a run.

    Attributes:
        promised: The guarantee of the plan, known before any data was read.
        spent: The guarantee of all charges in the ledger.
        metrics: Measures on test data; None where they may not be shown or the run is not finished.
        steps_done: Steps charged so far, by all processes of the run.
        steps_taken: Steps in the model; the others were lost with an earlier process.
        num_steps: Steps planned.
        was_resumed: Whether an earlier process started the run.
        is_finished: Whether the plan is used up.
        seconds: Training time of this process.
    """

    promised: Guarantee
    spent: Guarantee
    metrics: Metrics | None
    steps_done: int
    steps_taken: int
    num_steps: int
    was_resumed: bool
    is_finished: bool
    seconds: float


def _never() -> bool:
    return False


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    progress: Progress | None = None,
    unprotected: bool = False,
    max_epsilon: float | None = None,
    should_stop: Callable[[], bool] = _never,
    announce: Callable[[Guarantee], None] | None = None,
    ranks: Ranks | None = None,
    assumptions: tuple[str, ...] = (),
) -> RunOutcome:
    """Run a recipe in a folder, or resume the run in that folder.

    Args:
        recipe: The recipe.
        folder: The run's folder. A folder that holds this run is resumed.
        progress: Receives the events of the run.
        unprotected: Show and keep losses and clipped shares although the data are not public.
        max_epsilon: Refuse a plan that spends more.
        should_stop: Called after every step; True ends the run cleanly. The run can be resumed.
        announce: Receives the guarantee of the plan, before any data is read.
        ranks: The processes that carry out the run together, each of which calls this. Rank 0 writes the folder.
        assumptions: What the guarantee of the run rests on besides its plan; written into its ledger.

    Guarantee:
        The plan is accounted and compared with ``max_epsilon`` before any data is read. When the plan is used up, the
        guarantee computed from the ledger equals that of the plan, or ``LedgerMismatch`` is raised.

    Raises:
        BudgetExceeded: the plan spends more than ``max_epsilon``.
        LedgerMismatch: the folder's run has another plan, or the steps that ran differ from the plan.
        PrivetError: any other failure before or between steps; the run can be resumed.
    """
    with nullcontext() if ranks is None else ranks.together(Point.PREPARING), own_folder(ranks, Path(folder)) as own:
        return _train(
            recipe, RunFiles(folder=own), progress, unprotected, max_epsilon, should_stop, announce, ranks, assumptions
        )  # fmt: skip


def _train(
    recipe: Recipe,
    files: RunFiles,
    progress: Progress | None,
    unprotected: bool,
    max_epsilon: float | None,
    should_stop: Callable[[], bool],
    announce: Callable[[Guarantee], None] | None,
    ranks: Ranks | None,
    assumptions: tuple[str, ...],
) -> RunOutcome:
    was_resumed = files.is_run
    assumptions = (*assumptions, *recipe.assumptions)
    plan = plan_of_run(recipe, files)
    promised = plan.guarantee()
    promised = replace(promised, assumptions=promised.assumptions + assumptions)
    _check_budget(promised, max_epsilon)
    if announce is not None:
        announce(promised)
    device = choose_device(recipe.training.device)
    split = load_data(recipe)
    if plan.sampling.contribution is None:
        split.train.one_item.check(plan.unit)
    if not was_resumed:
        files.prepare()
        write_plan_and_recipe(recipe, plan, promised, files)
    run = _Run(
        recipe=recipe, plan=plan, promised=promised, files=files, device=device, split=split, was_resumed=was_resumed,
        progress=progress or Silent(), shows_unprotected=unprotected or recipe.is_public, ranks=ranks,
        assumptions=assumptions,
    )  # fmt: skip
    return run.run_to_end(said_by_any(ranks, should_stop))


def evaluate(folder: str | Path, *, device: str = "auto", test: ArrayDataset | None = None) -> Metrics:
    """Measure a run's model on the test split: the final one, or the newest checkpoint of a run that is not finished.

    ``test`` replaces the run's test split. Not covered by the guarantee: exact functions of the test data.
    """
    files = RunFiles(folder=Path(folder))
    recipe = stored_recipe(files)
    model = stored_model(files, recipe, choose_device(device))
    data = load_tested(recipe).test if test is None else test
    return Metrics(measures=measure_model(model, data, recipe.info), curve=stored_curve(files))


def stored_model(files: RunFiles, recipe: Recipe, device: torch.device) -> nn.Module:
    """Return a run's model: the final one, or the newest checkpoint of a run that is not finished.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    model = build_model(recipe, device)
    _load_weights(model, files)
    return model


def stored_curve(files: RunFiles) -> tuple[CurvePoint, ...]:
    """Return the measures that a run took during training."""
    return Metrics.from_dict(read_json(files.metrics)).curve if files.metrics.exists() else ()


def _check_budget(promised: Guarantee, max_epsilon: float | None) -> None:
    if max_epsilon is not None and promised.epsilon > checks.positive("max_epsilon", max_epsilon):
        raise BudgetExceeded(
            f"The plan spends epsilon {rounded_up(promised.epsilon)}, and {max_epsilon:g} is allowed. Nothing was run. "
            "Lower privacy.epsilon, or allow more."
        )


def _load_weights(model: nn.Module, files: RunFiles) -> None:
    try:
        if files.model.exists():
            model.load_state_dict(safetensors.torch.load_file(files.model))
            return
        checkpoint = load_checkpoint(files.checkpoint)
        if checkpoint is None:
            raise CheckpointError(
                f"{files.folder} holds no model yet: the run is not finished, and no checkpoint of it was written. "
                f"Resume it: {resuming_command(files)}"
            )
        prefix = "model."
        model.load_state_dict(
            {name.removeprefix(prefix): value for name, value in checkpoint.tensors.items() if name.startswith(prefix)}
            | dict(checkpoint.average)
        )
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"The model in {files.folder} cannot be read: {reason}. Restore it from a copy."
        ) from None


class _Run:
    """One process's part of a run."""

    def __init__(
        self,
        *,
        recipe: Recipe,
        plan: Plan,
        promised: Guarantee,
        files: RunFiles,
        device: torch.device,
        split: Split,
        progress: Progress,
        shows_unprotected: bool,
        was_resumed: bool,
        ranks: Ranks | None,
        assumptions: tuple[str, ...],
    ) -> None:
        self._ranks = ranks
        self._recipe, self._plan, self._promised, self._files = recipe, plan, promised, files
        self._device, self._assumptions = device, assumptions
        self._progress: Progress = Several(receivers=(StepLog(files.steps), progress))
        self._was_resumed = was_resumed
        self._train, self._test = on_device(split.train, device), on_device(split.test, device)
        has_checkpoint = was_resumed and files.checkpoint.exists()
        self._model = build_model(recipe, device) if has_checkpoint else starting_model(recipe, device)
        if has_checkpoint and recipe.network is not None:
            _load_weights(self._model, files)  # a frozen body is run before the session begins
        same_weights(ranks, self._model)
        self._unprotected = UnprotectedFile(files.unprotected) if shows_unprotected else None
        self._curve: list[CurvePoint] = []

    def run_to_end(self, should_stop: Callable[[], bool]) -> RunOutcome:
        finished = finished_ledger(self._files, self._plan) if self._was_resumed else None
        is_finished = finished is not None and finished.trained.epsilon == self._promised.epsilon
        if self._ranks is not None:
            was_finished = bool(self._ranks.meet(Point.PREPARING, note=b"finished" if is_finished else b""))
            if was_finished and not self._ranks.is_first:
                return self._finished_by_rank_0()
        if finished is not None and is_finished:
            return self._already_finished(finished, self._dataset(self._train))
        return self._run_session(should_stop)

    def _dataset(self, records: ArrayDataset) -> MapDataset:
        return with_owners(with_views(records, self._recipe.training.augmentation), records.persons, self._plan)

    def _finished_by_rank_0(self) -> RunOutcome:
        """Return the outcome of a run that the folder of rank 0 holds to its end."""
        num_steps = self._plan.num_steps
        return RunOutcome(
            promised=self._promised, spent=self._promised, metrics=None, steps_done=num_steps, steps_taken=num_steps,
            num_steps=num_steps, was_resumed=True, is_finished=True, seconds=0.0,
        )  # fmt: skip

    def _already_finished(self, ledger: LedgerCheck, dataset: MapDataset) -> RunOutcome:
        DataSeal.of_run(self._files.ledger).check(dataset)
        _load_weights(self._model, self._files)
        self._curve = list(stored_curve(self._files))
        self._progress.ended()
        return RunOutcome(
            promised=self._promised,
            spent=ledger.spent,
            metrics=self._measured(),
            steps_done=ledger.steps_charged,
            steps_taken=ledger.steps_kept or 0,
            num_steps=self._plan.num_steps,
            was_resumed=True,
            is_finished=True,
            seconds=0.0,
        )

    def _run_session(self, should_stop: Callable[[], bool]) -> RunOutcome:
        trained = trained_on(self._recipe, self._model, self._train)
        dataset = self._dataset(trained.dataset)
        settings = self._recipe.training
        trained.set_mode(self._model)
        session = privatize(
            self._model,
            build_optimizer(settings, self._model),
            dataset,
            self._plan,
            performance=Performance(
                physical_batch_size=self._physical_batch_size(trained.part, dataset), workers=settings.workers
            ),
            folder=RunFolder(self._files.folder, every=settings.checkpoint_every, assumptions=self._assumptions),
            telemetry=self._unprotected,
            averaging=None if settings.averaging is None else ExponentialAverage(decay=settings.averaging.decay),
            seed=settings.seed,
            group=self._ranks,
        )
        began = time.monotonic()
        # The session holds the lock of the ledger from here on: no other process writes to the folder.
        self._curve = list(stored_curve(self._files))
        self._write_environment()
        self._write_status("running", session)
        failed = True
        try:
            # An interrupt ends cleanly: the session has voided the step, written a checkpoint and closed the ledger.
            with suppress(KeyboardInterrupt):
                self._take_steps(session, trained, should_stop)
            failed = False
        finally:
            self._progress.ended()
            if self._unprotected is not None:
                self._unprotected.close()
            if failed:
                with suppress(PrivetError):
                    self._write_status("failed", session)
        return self._outcome(session, time.monotonic() - began)

    def _losses(self, part: nn.Module) -> Callable[..., Tensor]:
        losses = loss_function(self._recipe.info, part)
        return losses if self._recipe.training.augmentation is None else mean_over_views(losses)

    def _physical_batch_size(self, part: nn.Module, dataset: MapDataset) -> int:
        size = self._recipe.training.physical_batch_size
        if isinstance(size, int):
            return size
        return find_physical_batch_size(part, self._losses(part), dataset, self._plan, self._device)

    def _take_steps(self, session: Session, trained: Trained, should_stop: Callable[[], bool]) -> None:
        self._progress.started(self._promised, step=session.steps_charged, num_steps=self._plan.num_steps)
        settings = self._recipe.training
        every, losses = settings.evaluate_every, self._losses(trained.part)
        spending = Spending(self._plan, measured_every=every)
        # Created before the session restores the rates of a checkpoint.
        rate = LearningRate(session.optimizer, build_schedule(settings.schedule), num_steps=self._plan.num_steps)
        trained.set_mode(self._model)
        with session:
            for step in session.steps():
                rate.set(step.index)
                step.accumulate(losses)
                step.update()
                done = step.index + 1
                update = spending.update(
                    done,
                    learning_rate=session.optimizer.param_groups[0]["lr"],
                    masked_share=0.0 if step.kept is None else step.kept.masked_share,
                    loss=None if self._unprotected is None else self._unprotected.newest_loss,
                    may_show_time=self._unprotected is not None,
                )
                self._progress.stepped(update)
                if every is not None and done % every == 0:
                    with self._released_weights(session):
                        self._measure_now(
                            done, update.epsilon if update.epsilon_spent is None else update.epsilon_spent
                        )
                if should_stop():
                    break

    def _released_weights(self, session: Session) -> AbstractContextManager[None]:
        """Put the released weights into the model: their average, if the recipe asks for one."""
        return nullcontext() if self._recipe.training.averaging is None else session.averaged()

    def _measure_now(self, done: int, epsilon: float) -> None:
        measures = measure_model(self._model, self._test, self._recipe.info)
        if not measures:
            return
        point = CurvePoint(step=done, epsilon=epsilon, measure=measures[0])
        self._curve.append(point)
        self._write_metrics(Metrics(measures=(), curve=tuple(self._curve)))
        self._progress.evaluated(point)

    def _outcome(self, session: Session, seconds: float) -> RunOutcome:
        spent = confirmed(session.guarantee(), self._plan.spent_event(session.ledger))
        is_finished = session.is_complete
        if is_finished and spent.epsilon != self._promised.epsilon:
            raise LedgerMismatch(
                f"The plan promised epsilon {self._promised.epsilon!r}, the ledger says {spent.epsilon!r}. The "
                "ledger's value holds; please report this run."
            )
        metrics = None
        if is_finished:
            with self._released_weights(session):
                self._write_model()
                metrics = self._measured()
        self._write_status("finished" if is_finished else "interrupted", session)
        return RunOutcome(
            promised=self._promised,
            spent=spent,
            metrics=metrics,
            steps_done=session.steps_charged,
            steps_taken=session.steps_taken,
            num_steps=self._plan.num_steps,
            was_resumed=self._was_resumed,
            is_finished=is_finished,
            seconds=seconds,
        )

    def _measured(self) -> Metrics | None:
        if self._unprotected is None or not len(self._test):
            return None
        measures = measure_model(self._model, self._test, self._recipe.info)
        metrics = Metrics(measures=measures, curve=tuple(self._curve))
        self._write_metrics(metrics)
        return metrics

    def _write_model(self) -> None:
        weights = {
            name: value.detach().to("cpu", copy=True).contiguous() for name, value in self._model.state_dict().items()
        }
        write_whole(self._files.model, safetensors.torch.save(weights))

    def _write_metrics(self, metrics: Metrics) -> None:
        write_json(self._files.metrics, metrics.to_dict())

    def _write_environment(self) -> None:
        path = self._files.environment
        earlier = read_json(path).get("processes", []) if path.exists() else []
        write_json(path, {"processes": [*earlier, describe_environment(self._device)]})

    def _write_status(self, state: str, session: Session) -> None:
        # The reason of a failure is not recorded: it may depend on a private record.
        found = {"state": state, "steps_done": session.steps_charged, "num_steps": self._plan.num_steps}
        write_json(self._files.status, found)
