"""The loss of one pair of answers in TRL's DPO trainer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privet.integrations.hugging_face.losses import bare_model, check_no_balance, completion_scores

_PAIR = ("input_ids", "attention_mask", "completion_mask")


def preferences(trainer: Any, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Return one loss per pair: how much less than the reference the model prefers the chosen answer.

    TRL puts all chosen answers before all rejected ones; both halves go through the model one after the other, so that
    row i of each belongs to pair i.
    """
    check_no_balance(bare_model(model))
    halves = list(zip(*(inputs[name].unbind(1) for name in _PAIR), strict=True))
    chosen, rejected = (completion_scores(model, *half) for half in halves)
    if "ref_chosen_logps" in inputs:
        reference = inputs["ref_chosen_logps"] - inputs["ref_rejected_logps"]
    else:
        reference = _reference(trainer, model, halves)
    return -F.logsigmoid(trainer.beta * (chosen - rejected - reference))


def _reference(trainer: Any, model: Any, halves: list[tuple[Tensor, ...]]) -> Tensor:
    frozen = trainer.ref_model
    with torch.no_grad(), model.disable_adapter() if frozen is None else nullcontext():
        first, second = (completion_scores(model if frozen is None else frozen, *half) for half in halves)
    return first - second


def paired(collate: Any) -> Any:
    """Return TRL's collate function with one row per pair: (pairs, 2, tokens) instead of (2 * pairs, tokens)."""

    def collated(examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = dict(collate(examples))
        for name in _PAIR:
            batch[name] = torch.stack(batch[name].chunk(2), dim=1)
        return batch

    return collated
