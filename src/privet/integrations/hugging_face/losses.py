"""One loss per example, for the tasks of transformers' models and for the trainers of TRL.

transformers returns a mean over all tokens of a batch, so that the loss of one example depends on the lengths of the
others. Here each example has the mean over its own labelled tokens; one without labelled tokens has loss zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privet.errors import DataError, UnsupportedModel

IGNORED = -100
"""The label of tokens that have no part in the loss, as everywhere in transformers."""


def own_mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return for each example the mean of its own counted values; zero where none counts."""
    return (values * counted).flatten(1).sum(1) / counted.flatten(1).sum(1).clamp(min=1)


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return for each example its mean cross-entropy over its tokens; ``logits`` and ``labels`` are aligned."""
    each = _of_tokens(logits, labels)
    return own_mean(each, (labels != IGNORED).to(each.dtype))


def _of_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each token; zero where it is ignored.

    Logits of a large vocabulary fill much memory. They are neither cut nor turned, either of which would copy them.
    """
    flat = F.cross_entropy(_wide(logits).flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return flat.view_as(labels)


def _next(labels: Tensor) -> Tensor:
    """Return for each token the label of the one after it; the last has none."""
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


def _wide(logits: Tensor) -> Tensor:
    """Return logits in single precision at least, as transformers' own losses do."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _next_tokens(model: Any, outputs: Any, labels: Tensor) -> Tensor:
    # a learned prompt stands in front of the tokens
    return token_losses(outputs["logits"][:, -labels.shape[1] :], _next(labels))


def _same_tokens(model: Any, outputs: Any, labels: Tensor) -> Tensor:
    return token_losses(outputs["logits"][:, -labels.shape[1] :], labels)


def _classes(model: Any, outputs: Any, labels: Tensor) -> Tensor:
    """Return the losses of a classifier of whole examples, by the rule with which transformers tells the problem."""
    logits, config = _wide(outputs["logits"]), model.config
    num_labels, problem = config.num_labels, config.problem_type
    if problem == "regression" or (problem is None and num_labels == 1):
        return (logits.flatten(1) - labels.to(logits.dtype).reshape(len(logits), -1)).square().mean(1)
    if problem == "multi_label_classification" or (problem is None and labels.is_floating_point()):
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").flatten(1).mean(1)
    return token_losses(logits.unsqueeze(1), labels.reshape(-1, 1))


def _spans(model: Any, outputs: Any, labels: tuple[Tensor, Tensor]) -> Tensor:
    """Return the losses of the two ends of an answer; an end outside the text counts as none."""
    ends = zip((outputs["start_logits"], outputs["end_logits"]), labels, strict=True)
    parts = [
        token_losses(logits.unsqueeze(1), place.masked_fill(place >= logits.shape[-1], IGNORED).reshape(-1, 1))
        for logits, place in ends
    ]
    return (parts[0] + parts[1]) / 2


# By the name under which transformers keeps the loss of a model.
_BY_TASK: Mapping[str, Callable[[Any, Any, Any], Tensor]] = {
    "ForCausalLM": _next_tokens,
    "ForMaskedLM": _same_tokens,
    "ForTokenClassification": _same_tokens,
    "ForSequenceClassification": _classes,
    "ForImageClassification": _classes,
    "ForQuestionAnswering": _spans,
}


# Causal models of transformers that are named in an older way. Others of that way do not shift the labels (XLNet).
_CAUSAL = frozenset(
    ["GPT2LMHeadModel", "OpenAIGPTLMHeadModel", "CTRLLMHeadModel", "BertLMHeadModel", "BertGenerationDecoder"]
)
# What transformers says of models with an encoder and a decoder; their labels stand where they are predicted.
_OF_ENCODER_DECODERS = (None, "ForCausalLM", "ForConditionalGeneration")


def bare_model(model: nn.Module) -> Any:
    """Return the model of transformers inside adapters of PEFT; the model itself if it has none."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model


def task_of(model: nn.Module) -> str:
    """Return the name of a model's loss, or refuse.

    Raises:
        UnsupportedModel: nobody knows the loss of one example.
    """
    inner = bare_model(model)
    check_no_balance(inner)
    task = getattr(inner, "loss_type", None)
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False) and task in _OF_ENCODER_DECODERS:
        return "ForMaskedLM"
    if task is None and not _CAUSAL.isdisjoint(kind.__name__ for kind in type(inner).__mro__):
        return "ForCausalLM"
    if task not in _BY_TASK:
        raise UnsupportedModel(
            f"The loss of one example is not known for {type(inner).__name__}, whose loss is {task!r}. Derive from the "
            "trainer and write compute_losses(model, inputs): it returns one loss per example."
        )
    return str(task)


def check_no_balance(inner: Any) -> None:
    """Refuse a mixture of experts whose loss has a part that is an average over the batch.

    Raises:
        UnsupportedModel: the part would be left out in silence.
    """
    config: Any = getattr(inner, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if getattr(text, "output_router_logits", False):
        raise UnsupportedModel(
            f"{type(inner).__name__} adds a loss that balances experts over the whole batch, which couples examples. "
            "Leave it out: model.config.output_router_logits = False, in TRL router_aux_loss_coef=0.0."
        )


def supervised(trainer: Any, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Return one loss per example for a model with labels; a ``compute_loss_func`` must return the same.

    Raises:
        DataError: there are no labels.
        UnsupportedModel: the user's function returns something else than one loss per example.
    """
    given = dict(inputs)
    task, inner = task_of(model), bare_model(model)
    names = ("start_positions", "end_positions") if task.endswith("Answering") else ("labels",)
    missing = [name for name in names if name not in given]
    if missing:
        raise DataError(
            f"The batch has no {' and no '.join(missing)}, only {', '.join(given)}. Name the column of "
            "a class 'label'; the trainer drops names that the model does not take. For texts use a collator that "
            "makes labels, such as DataCollatorForLanguageModeling."
        )
    taken = tuple(given.pop(name) for name in names)
    labels = taken if len(taken) > 1 else taken[0]
    if inner.config.is_encoder_decoder and "decoder_input_ids" not in given and isinstance(labels, Tensor):
        if not hasattr(inner, "prepare_decoder_input_ids_from_labels"):
            raise UnsupportedModel(
                f"The batch has no decoder_input_ids, and {type(inner).__name__} does not make them from labels in the "
                "usual way. Let the collator make them."
            )
        given["decoder_input_ids"] = inner.prepare_decoder_input_ids_from_labels(labels=labels)
    outputs = model(**given)
    if trainer.compute_loss_func is None:
        return _BY_TASK[task](inner, outputs, labels)
    losses = trainer.compute_loss_func(outputs, labels, num_items_in_batch=None)
    size = len(labels[0] if isinstance(labels, tuple) else labels)
    if not isinstance(losses, Tensor) or losses.shape != (size,):
        found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise UnsupportedModel(
            f"compute_loss_func must return one loss per example, here {size}; it returned {found}. Ask its losses for "
            "reduction='none' and average over the tokens of each example; num_items_in_batch is None."
        )
    return losses


def completion_scores(model: nn.Module, ids: Tensor, attention: Tensor, counted: Tensor) -> Tensor:
    """Return for each text the log-probability of its counted tokens, summed."""
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False)["logits"][:, -ids.shape[1] :]
    return -_of_tokens(logits, _next(ids.masked_fill(counted == 0, IGNORED))).sum(1)
