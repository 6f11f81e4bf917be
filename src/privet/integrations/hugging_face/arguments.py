"""Every argument of ``TrainingArguments``, ``SFTConfig`` and ``DPOConfig``: passed on, translated, refused or ignored.

The tables are complete for the tested versions, which a test holds. An argument that a later version adds is refused
unless it has its default, because nobody has looked at it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from privet.errors import ArgumentError
from privet.integrations.hugging_face.private_run import Evaluation, PrivateRun
from privet.plan import Plan
from privet.training.performance import Performance

_LOG = logging.getLogger("privet")
_DEFAULT_EPOCHS = 3.0


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """The treatment of one argument.

    Attributes:
        refusal: Why it is refused if it has another value than its default; empty if it is not.
        allowed: Values besides the default that are not refused.
        word: The warning if it is set and has no effect; empty if it has one.
    """

    refusal: str = ""
    allowed: tuple[Any, ...] = ()
    word: str = ""


def _all(names: str, treatment: Treatment) -> dict[str, Treatment]:
    return dict.fromkeys(names.split(), treatment)


_PASSED, _TRANSLATED = Treatment(), Treatment()
_MANY_PROCESSES = "one process holds the ledger, draws the batches and adds the noise"
_NO_EXAMPLE_AXIS = "several records would share one sequence, so that no gradient belongs to one record"

# ruff: noqa: E501
TRAINING: Mapping[str, Treatment] = {
    **_all(
        """output_dir learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim_args weight_decay adam_beta1 adam_beta2
        adam_epsilon optim_target_modules bf16 bf16_full_eval fp16_full_eval tf32 use_cache logging_strategy logging_steps
        logging_first_step log_on_each_node log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id
        trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay per_device_eval_batch_size
        prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps
        include_for_metrics batch_eval_metrics save_only_model save_strategy save_steps save_on_each_node save_total_limit
        push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision load_best_model_at_end
        metric_for_best_model greater_is_better restore_callback_states_from_checkpoint full_determinism seed use_cpu
        accelerator_config remove_unused_columns label_names skip_memory_metrics do_train do_eval do_predict
        resume_from_checkpoint local_rank""",
        _PASSED,
    ),
    # the plan decides; a value that is set must agree with it
    **_all(
        "per_device_train_batch_size num_train_epochs max_steps ignore_data_skip average_tokens_across_devices",
        _TRANSLATED,
    ),
    **_all(
        "dataloader_num_workers dataloader_prefetch_factor dataloader_pin_memory logging_nan_inf_filter", _TRANSLATED
    ),
    **_all(
        "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs optim",
        _TRANSLATED,
    ),
    "max_grad_norm": Treatment(
        refusal="the plan clips the gradient of each example; clipping their sum is something else",
        allowed=(0, 0.0, 1.0, None),
    ),
    "gradient_accumulation_steps": Treatment(
        refusal="the plan draws one logical batch per update, and per_device_train_batch_size says how much of it goes through the model at once"
    ),
    "label_smoothing_factor": Treatment(
        refusal="transformers' smoother averages over all tokens of a batch; smooth in compute_losses"
    ),
    "fp16": Treatment(
        refusal="its loss scale depends on private gradients, and sums in half precision round bounds away; use bf16=True"
    ),
    "train_sampling_strategy": Treatment(
        refusal="the plan draws the batches; grouping by length or in order is another sampling, with another guarantee"
    ),
    "auto_find_batch_size": Treatment(
        refusal="it starts training over, with new draws; a private step halves its physical batch by itself"
    ),
    "torch_compile": Treatment(
        refusal="it wraps the model; choose PrivateRun(performance=Performance(launch=...)) instead"
    ),
    "torch_compile_backend": Treatment(refusal="see torch_compile", allowed=(None,)),
    "torch_compile_mode": Treatment(refusal="see torch_compile", allowed=(None,)),
    **_all("use_liger_kernel liger_kernel_config", Treatment(refusal="its losses are averages over the batch")),
    "neftune_noise_alpha": Treatment(refusal="its noise depends on the longest text of the batch"),
    "include_num_input_tokens_seen": Treatment(
        refusal="the number of tokens of a batch is private", allowed=("no", False)
    ),
    "enable_jit_checkpoint": Treatment(refusal="it writes checkpoints in the middle of a step"),
    "debug": Treatment(refusal="it prints activations, which are private", allowed=([],)),
    **_all("parallelism_config fsdp deepspeed ddp_backend", Treatment(refusal=_MANY_PROCESSES)),
    **_all(
        """dataloader_drop_last dataloader_persistent_workers dataloader_multiprocessing_context dataloader_in_order data_seed
        length_column_name""",
        Treatment(word="the plan draws the batches, and privet's own workers read them"),
    ),
    **_all(
        "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_timeout fsdp_config",
        Treatment(word="one process trains"),
    ),
    "torch_empty_cache_steps": Treatment(word="a private step keeps its memory"),
}
_TRL_SHARED: Mapping[str, Treatment] = {
    **_all(
        "model_init_kwargs trust_remote_code dataset_num_proc max_length truncation_mode pad_to_multiple_of activation_offloading pad_token",
        _PASSED,
    ),
    "padding_free": Treatment(refusal=_NO_EXAMPLE_AXIS),
    "router_aux_loss_coef": Treatment(
        refusal="the loss that balances experts is an average over the batch", allowed=(0.0,)
    ),
}
SFT: Mapping[str, Treatment] = {
    **_TRL_SHARED,
    **_all(
        "chat_template_path dataset_text_field dataset_kwargs eos_token shuffle_dataset completion_only_loss assistant_only_loss eval_packing",
        _PASSED,
    ),
    "packing": Treatment(refusal=_NO_EXAMPLE_AXIS),
    "packing_strategy": Treatment(word="nothing is packed"),
    "loss_type": Treatment(refusal="only 'nll' has a loss per example here; write compute_losses for others"),
}
DPO: Mapping[str, Treatment] = {
    **_TRL_SHARED,
    **_all("disable_dropout precompute_ref_log_probs precompute_ref_batch_size beta", _PASSED),
    "loss_type": Treatment(refusal="only ['sigmoid'] has a loss per pair here; write compute_losses for others"),
    **_all(
        "loss_weights ld_alpha f_divergence_type label_smoothing use_weighting",
        Treatment(refusal="the loss per pair is the plain one; write compute_losses for others"),
    ),
    "sync_ref_model": Treatment(refusal="it moves weights outside private steps"),
    **_all(
        "f_alpha_divergence_coef discopop_tau ref_model_mixup_alpha ref_model_sync_steps",
        Treatment(word="belongs to a loss or a copy that is not used"),
    ),
}
# By the class of the arguments; a class derived from one of them has the arguments of its parents.
TABLES: Mapping[str, Mapping[str, Treatment]] = {
    "TrainingArguments": TRAINING,
    "Seq2SeqTrainingArguments": _all("sortish_sampler predict_with_generate generation_max_length generation_num_beams generation_config", _PASSED)
    | {"sortish_sampler": Treatment(refusal="the plan draws the batches; sorting by length is another sampling")},
    "SFTConfig": SFT,
    "DPOConfig": DPO,
}  # fmt: skip


def treatments(kind: type) -> dict[str, Treatment]:
    """Return the treatments that are known for a class of arguments."""
    found: dict[str, Treatment] = {}
    for parent in reversed(kind.__mro__):
        found |= TABLES.get(parent.__name__, {})
    return found


def governed(given: Any, private: PrivateRun) -> Any:
    """Return the arguments under which a private run trains; the given ones are not changed.

    Raises:
        ArgumentError: one of them asks for something that a private run cannot do, naming it.
    """
    known = treatments(type(given))
    for field in fields(given):
        value, default = getattr(given, field.name), _default(field)
        if value == default:
            continue
        treatment = known.get(field.name, Treatment(refusal="this version of privet does not know it"))
        if treatment.refusal and value not in treatment.allowed:
            raise ArgumentError(
                f"{field.name}={value!r} cannot be used in a private run: {treatment.refusal}. Leave it at {default!r}."
            )
        if treatment.word:
            _LOG.warning("%s=%r has no effect in a private run: %s.", field.name, value, treatment.word)
    _check_optimizer(given)
    _check_processes(given)
    _check_length(given, private.plan)
    _check_decisions(given, private.evaluation)
    args = copy.copy(given)
    args.max_steps, args.max_grad_norm = private.plan.num_steps, 0.0
    args.ignore_data_skip, args.average_tokens_across_devices, args.logging_nan_inf_filter = True, False, False
    args._n_gpu = 1  # several devices would otherwise be driven by one process, behind the session's back
    _set_checkpointing(args)
    return args


def _default(field: Field[Any]) -> Any:
    """Return the default of an argument; no others are built, because that would reset the state of Accelerate."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def performance_of(args: Any, private: PrivateRun) -> Performance:
    """Return how steps are computed: as the run says, or else as the trainer's arguments do."""
    if private.performance is not None:
        return private.performance
    return Performance(
        physical_batch_size=args.per_device_train_batch_size,
        workers=args.dataloader_num_workers,
        prefetch=args.dataloader_prefetch_factor or 2,
        pin_memory=args.dataloader_pin_memory,
    )


def check_precision(mixed: str) -> None:
    """Refuse a precision that did not come through the arguments: ``accelerate launch`` hands it on in variables."""
    if mixed not in ("no", "bf16"):
        raise ArgumentError(
            f"Accelerate was told mixed_precision={mixed!r}, by its configuration or ACCELERATE_MIXED_PRECISION. Its "
            "scales depend on private gradients, and sums in it round bounds away; use bf16."
        )


def _check_optimizer(args: Any) -> None:
    name = str(getattr(args.optim, "value", args.optim))
    if "layerwise" in name or "lomo" in name:
        raise ArgumentError(f"optim={name!r} updates weights during the backward pass, before noise. Choose another.")


def _check_processes(args: Any) -> None:
    if args.world_size > 1:
        raise ArgumentError(
            f"{args.world_size} processes were started, but {_MANY_PROCESSES}. Start one; to train on several devices "
            "use a session of your own."
        )


def _check_length(args: Any, plan: Plan) -> None:
    epochs = plan.num_steps / plan.sampling.steps_per_epoch
    if args.max_steps not in (-1, plan.num_steps):
        raise ArgumentError(
            f"max_steps={args.max_steps}, but the plan has {plan.num_steps} steps, for which its noise was made. Leave "
            "it out, or make the plan with so many steps."
        )
    # a plan rounds its steps up, and those of one epoch to the nearest number
    is_rounded = abs(args.num_train_epochs / plan.sampling.inclusion - plan.num_steps) <= 1
    if args.num_train_epochs != _DEFAULT_EPOCHS and abs(args.num_train_epochs - epochs) > 0.5 and not is_rounded:
        raise ArgumentError(
            f"num_train_epochs={args.num_train_epochs}, but the plan has {plan.num_steps} steps, {epochs:.3g} epochs. "
            "Leave it out, or make the plan with so many epochs."
        )


def _check_decisions(args: Any, evaluation: Evaluation) -> None:
    """Refuse arguments by which evaluations decide what is trained or kept, unless they may."""
    if evaluation is not Evaluation.UNDECLARED:
        return
    rate = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    kept = str(getattr(args.save_strategy, "value", args.save_strategy))
    asked = {
        "load_best_model_at_end=True": args.load_best_model_at_end,
        "save_strategy='best'": kept == "best",
        f"lr_scheduler_type={rate!r}": rate in ("reduce_lr_on_plateau", "greedy"),
    }
    for name in (name for name, is_asked in asked.items() if is_asked):
        raise ArgumentError(f"{name} {UNDECLARED}")


UNDECLARED = (
    "decides by evaluations, which tell of private data unless the evaluation set is public or each of its numbers was "
    "charged. Declare it: PrivateRun(evaluation=Evaluation.PUBLIC) or Evaluation.CHARGED; it stands in the guarantee."
)


def _set_checkpointing(args: Any) -> None:
    """Let gradients be recomputed by the way that keeps the graph whole."""
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if not getattr(args, name, None):
            continue
        settings = dict(getattr(args, f"{name}_kwargs") or {})
        if settings.get("use_reentrant"):
            raise ArgumentError(
                f"{name}_kwargs={{'use_reentrant': True}} hides the graph from the gradients of single examples. "
                "Leave it out, or set it to False."
            )
        setattr(args, f"{name}_kwargs", {**settings, "use_reentrant": False})
