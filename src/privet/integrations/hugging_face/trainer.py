"""transformers' ``Trainer`` with private steps: its loop, callbacks, schedules and checkpoints stay as they are.

The trainer's loader yields logical steps, ``training_step`` sums one of them, and the optimizer's ``step()`` adds the
noise and updates the model. Nothing of the loop is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.accounting.guarantee import Guarantee
from privet.errors import ArgumentError, DependencyError, LoopError, UnsupportedModel
from privet.integrations.hugging_face.arguments import UNDECLARED, check_precision, governed, performance_of
from privet.integrations.hugging_face.losses import supervised
from privet.integrations.hugging_face.preferences import paired, preferences
from privet.integrations.hugging_face.private_run import Evaluation, PrivateRun
from privet.integrations.hugging_face.trainer_files import TrainerFiles, add_to_card
from privet.integrations.stepping import LogicalSteps, StepOptimizer, advance
from privet.training.batching import check_dataset
from privet.training.session import Session, Step
from privet.training.telemetry import Unprotected

try:
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
except ImportError as missing:  # pragma: no cover (installed in the other environment)
    raise DependencyError(
        "The private trainer needs transformers and accelerate. Install them with: pip install 'privet[transformers]'."
    ) from missing

# The classes that define the compute_loss of a trainer, and its replacement.
_LOSSES = {
    "transformers.trainer.Trainer": supervised,
    "trl.trainer.sft_trainer.SFTTrainer": supervised,
    "trl.trainer.dpo_trainer.DPOTrainer": preferences,
}
_PAIRS = ("trl.trainer.dpo_trainer.DPOTrainer",)
_LIBRARIES = ("transformers.", "trl.", "privet.")
_LOADERS = ("get_train_dataloader", "_get_train_sampler", "get_batch_samples")
# Figures of private batches that a trainer logs.
_EXACT = ("loss", "grad_norm", "train_loss")


class _EpochOfStep(TrainerCallback):  # type: ignore[misc] # transformers has no types here
    """Derives the epoch from the public number of the step; the loop would count from where it was resumed."""

    def __init__(self, steps_per_epoch: int) -> None:
        self._steps_per_epoch = steps_per_epoch

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        state.epoch = state.global_step / self._steps_per_epoch


class PrivateTraining:
    """Makes a trainer private: derive from it first, then from ``Trainer``, ``SFTTrainer``, ``DPOTrainer`` or your own.

    All arguments but ``private`` are those of the trainer. Write ``compute_losses`` for a loss of your own.

    Guarantee:
        The weights change by private steps alone, whose rounds are charged to the ledger before any record is read. The
        plan decides their number, batches, clipping and noise; arguments of the trainer that would, are refused.
        Training loss and gradient norms are not computed for logs, unless ``private`` asks for unprotected ones.
        An empty batch is a step like any other.

    Attributes:
        private: The run's private half.
        session: The session, from ``train()`` on.
    """

    # the trainer whose methods are called with super() is known only where both are joined
    accelerator: Any
    args: Any
    state: Any
    model: Any
    train_dataset: Any
    eval_dataset: Any
    data_collator: Any
    lr_scheduler: Any
    callback_handler: Any
    is_in_train: bool
    _remove_unused_columns: Any
    _get_collator_with_removed_columns: Any

    def __init__(self, *given: Any, private: PrivateRun, **named: Any) -> None:
        """Check the arguments and hand them on, because their names are another library's."""
        self.private = private
        self.session: Session | None = None
        self._held = ExitStack()
        self._unprotected: list[float] = []
        _check_owners(type(self))
        given = tuple(governed(value, private) if isinstance(value, TrainingArguments) else value for value in given)
        if isinstance(named.get("args"), TrainingArguments):
            named["args"] = governed(named["args"], private)
        super().__init__(*given, **named)
        self.callback_handler.callbacks.insert(0, _EpochOfStep(private.plan.sampling.steps_per_epoch))

    def compute_losses(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """Return one loss per example, in the order of the batch; never a mean over examples or over a batch's tokens.

        The only method to override for a loss of your own.
        """
        return _LOSSES[_owner(type(self), "compute_loss")](self, model, inputs)

    def guarantee(self) -> Guarantee:
        """Return the guarantee of the training so far.

        Raises:
            LoopError: nothing was trained.
        """
        if self.session is None:
            raise LoopError(
                "Nothing was trained yet. Call trainer.train(); private.plan.guarantee() is what it will cost."
            )
        return self.session.guarantee()

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None) -> Any:
        """Train as the plan says; the trainer's arguments are checked once more, since they can be changed."""
        if trial is not None:
            self.hyperparameter_search()
        if "compute_loss" in vars(self):
            raise UnsupportedModel(
                "trainer.compute_loss was replaced and would not be called: it gives one loss for a whole batch. "
                "Write compute_losses(model, inputs) in a class of your own."
            )
        self.args = governed(self.args, self.private)
        check_precision(self.accelerator.mixed_precision)
        stopping = any(isinstance(each, EarlyStoppingCallback) for each in self.callback_handler.callbacks)
        if stopping and self.private.evaluation is Evaluation.UNDECLARED:
            raise ArgumentError(f"EarlyStoppingCallback {UNDECLARED}")
        start = self._files().starting_point(resume_from_checkpoint, self.private)
        output = super().train(start, trial, ignore_keys_for_eval)  # type: ignore[misc]
        return output._replace(training_loss=float("nan"))  # zeros were added up

    def hyperparameter_search(self, *given: Any, **named: Any) -> Any:
        """Refuse: every trial of a search spends budget."""
        raise LoopError(
            "A search trains many models, each of which costs, and the choice among them costs again. Plan it with "
            "`privet account search`, and train each candidate with a plan and an output folder of its own."
        )

    # ------------------------------------------------------------------------------- what the trainer's loop calls

    def get_train_dataloader(self) -> LogicalSteps:
        """Return the loader of logical steps. It is never prepared, sharded or evened out."""
        if self.train_dataset is None:
            raise ArgumentError("Training needs a train_dataset.")
        self._steps = LogicalSteps(steps_per_epoch=self.private.plan.sampling.steps_per_epoch)
        return self._steps

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Return an optimizer for the loop; the trainer's own is behind it."""
        made = super().create_optimizer(model)  # type: ignore[misc]
        made = getattr(made, "optimizer", made)  # as Accelerate wrapped it in an earlier call
        self._stepped = made if isinstance(made, StepOptimizer) else StepOptimizer(made)
        self.optimizer = self._stepped
        return self.optimizer

    def _wrap_model(self, model: nn.Module, *given: Any, **named: Any) -> nn.Module:
        return model

    def _inner_training_loop(self, *given: Any, **named: Any) -> Any:
        with ExitStack() as self._held:
            return super()._inner_training_loop(*given, **named)  # type: ignore[misc]

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)  # type: ignore[misc]
        self._files().bring(resume_from_checkpoint)
        rates = [group["lr"] for group in self._stepped.param_groups]  # where the schedule stands
        self.session = session = self._opened()
        for group, rate in zip(self._stepped.param_groups, rates, strict=True):
            group["lr"] = rate
        advance(self.lr_scheduler, by=session.steps_charged - self.state.global_step)
        self.state.global_step = session.steps_charged
        self._steps.begin(session.steps(), first=session.steps_charged)
        return prepared

    def _opened(self) -> Session:
        """Make the session of the run and enter it."""
        dataset, collate = check_dataset(self.train_dataset), self.data_collator
        model: nn.Module = self.model
        if hasattr(dataset, "remove_columns"):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        if _owner(type(self), "compute_loss") in _PAIRS:
            collate = paired(collate)
        self._loss_function = lambda batch: self.compute_losses(model, batch)
        is_told = self.private.telemetry is not None or self.private.log_unprotected
        private = replace(
            self.private,
            performance=performance_of(self.args, self.private),
            telemetry=self._receive if is_told else None,
        )
        folder = self._files().run_folder(self.private)
        session = private.session(model, self._stepped.inner, dataset, collate_fn=collate, folder=folder)
        return self._held.enter_context(session)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Sum one logical step, and return zero: the loss of a batch is private.

        Raises:
            LoopError: for anything but a step, such as a batch of a loader that was put in the place of the steps.
        """
        if not isinstance(inputs, Step):
            raise LoopError(
                f"training_step got {type(inputs).__name__} instead of a private step. Leave get_train_dataloader as "
                "it is: a loader of your own, or one prepared by Accelerate, draws batches that nobody charged."
            )
        model.train()
        inputs.accumulate(self._loss_function)
        self._stepped.expect(inputs.update)
        return torch.zeros((), device=self.args.device)

    def _finalize_training(self, *given: Any, **named: Any) -> Any:
        if self.state.global_step >= self.private.plan.num_steps:
            self._steps.finish()
        self._held.close()  # compares the ledger with the plan; weights may be changed from here on
        return super()._finalize_training(*given, **named)  # type: ignore[misc]

    def _get_num_items_in_batch(self, *given: Any, **named: Any) -> None:
        """Return nothing: the number of tokens of a batch is private, and no loss is divided by it."""

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Count nothing."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: operations are counted from the lengths of private texts."""
        return 0

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of examples of an epoch, from the plan."""
        if isinstance(dataloader, LogicalSteps):
            return round(self.private.plan.sampling.expected_batch_size * len(dataloader))
        return int(super().num_examples(dataloader))  # type: ignore[misc]

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the mean number of examples of an update, from the plan."""
        return max(1, round(self.private.plan.sampling.expected_batch_size))

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Clip nothing: the plan clips the gradient of each example."""

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """Return no norm: the gradients of the last step are not there any more, and those of this one not yet."""

    # --------------------------------------------------------------------------------------- logs, metrics and files

    def log(self, logs: dict[str, float], *given: Any, **named: Any) -> None:
        """Log public figures; the exact loss as ``unprotected_loss`` where it was asked for."""
        for name in _EXACT:
            logs.pop(name, None)
        if self.private.log_unprotected and self._unprotected and self.is_in_train:
            logs["unprotected_loss"] = sum(self._unprotected) / len(self._unprotected)
            self._unprotected.clear()
        super().log(logs, *given, **named)  # type: ignore[misc]

    def _receive(self, figures: Unprotected) -> None:
        if self.private.telemetry is not None:
            self.private.telemetry(figures)
        if self.private.log_unprotected and figures.mean_loss is not None:
            self._unprotected.append(figures.mean_loss)

    def evaluate(self, eval_dataset: Any = None, *given: Any, **named: Any) -> Any:
        """Evaluate; refuse the training data, whose exact loss would be shown."""
        self._check_is_not_trained_on(self.eval_dataset if eval_dataset is None else eval_dataset)
        return super().evaluate(eval_dataset, *given, **named)  # type: ignore[misc]

    def predict(self, test_dataset: Any, *given: Any, **named: Any) -> Any:
        """Predict, with the loss of what has labels; refuse the training data, as ``evaluate`` does."""
        self._check_is_not_trained_on(test_dataset)
        return super().predict(test_dataset, *given, **named)  # type: ignore[misc]

    def _check_is_not_trained_on(self, asked: Any) -> None:
        sets = asked.values() if isinstance(asked, dict) else (asked,)
        is_training = asked is not None and any(each is self.train_dataset for each in sets)
        if is_training and not self.private.log_unprotected:
            raise ArgumentError(
                "The training data were given for evaluation, and their exact loss is not private. Evaluate other "
                "data; PrivateRun(log_unprotected=True) shows it as unprotected."
            )

    def _files(self) -> TrainerFiles:
        return TrainerFiles.of(self.args.output_dir, self.private.folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        if self.session is not None:
            self.session.checkpoint()
            self._files().keep(step=self.state.global_step)

    def _save_rng_state(self, output_dir: str) -> None:
        """Write no random state: a resumed run draws anew."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Take up no random state."""

    def create_model_card(self, *given: Any, **named: Any) -> None:
        """Write the trainer's card, with the guarantee."""
        super().create_model_card(*given, **named)  # type: ignore[misc]
        is_done = self.session is not None and not self.is_in_train
        add_to_card(Path(self.args.output_dir), self.guarantee() if is_done else self.private.plan.guarantee())


def _owner(kind: type, method: str) -> str:
    """Name the class whose method would be called if privacy were not there."""
    owner = next(each for each in kind.__mro__ if method in vars(each) and each is not PrivateTraining)
    return f"{owner.__module__}.{owner.__qualname__}"


def _check_owners(kind: type[PrivateTraining]) -> None:
    """Refuse a trainer whose own loss or step would be passed over in silence.

    Raises:
        UnsupportedModel: naming the class and what to write.
    """
    own_losses = kind.compute_losses is not PrivateTraining.compute_losses
    loss = _owner(kind, "compute_loss")
    if loss not in _LOSSES and not own_losses:
        raise UnsupportedModel(
            f"{loss} computes a loss of its own, of which the loss of one example is not known. Write "
            "compute_losses(model, inputs) in your trainer: it returns one loss per example."
        )
    step = _owner(kind, "training_step")
    if not step.startswith(_LIBRARIES):
        raise UnsupportedModel(
            f"{step}.training_step would not be called: a private step takes its place. Move what it computes into "
            "compute_losses(model, inputs), and the rest into a callback."
        )
    loaders = [_owner(kind, name) for name in _LOADERS if hasattr(kind, name)]
    if kind.get_train_dataloader is not PrivateTraining.get_train_dataloader:
        loaders = [f"{kind.__module__}.{kind.__qualname__}"]
    for loader in (each for each in loaders if not each.startswith(_LIBRARIES)):
        raise UnsupportedModel(
            f"{loader} makes a loader or a sampler of its own for training, and the plan draws the batches. Leave it "
            "out; weights of classes or examples belong into compute_losses."
        )


class PrivateTrainer(PrivateTraining, Trainer):  # type: ignore[misc]
    """transformers' ``Trainer`` with private steps; see :class:`PrivateTraining`."""
