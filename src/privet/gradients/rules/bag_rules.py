"""Per-example gradients of embedding bags: look-ups that are summed or averaged before they come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from privet.errors import NoExampleRule, UnsupportedModel
from privet.gradients.capture.recorded import Use
from privet.gradients.forms.per_example import Lookup
from privet.gradients.rules.example_axis import ExampleAxis
from privet.gradients.rules.rule_tools import Operand, exact, named_arguments, out_grad_of, source_of

_NAMES = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
    "per_sample_weights", "include_last_offset", "padding_idx",
)  # fmt: skip


def embedding_bag(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Rows of the table: each look-up receives its bag's output gradient, times its weight in the bag.

    An empty bag has no look-ups, so its gradient is zero.
    """
    given = named_arguments(use, *_NAMES)
    _refuse_unsupported(use, given)
    source = source_of(use, given["weight"])
    if source is None:
        return []
    ids, scales = _bags(given)
    out_grads = out_grad_of(use).unsqueeze(1) * scales.unsqueeze(2)
    rows = axis.in_front(ids, batch_size).reshape(batch_size, -1)
    grads = axis.in_front(out_grads, batch_size).reshape(batch_size, -1, out_grads.shape[-1])
    return [(source, Lookup(ids=rows, out_grads=grads, num_rows=source.tensor.shape[0]))]


def _refuse_unsupported(use: Use, given: Mapping[str, Any]) -> None:
    if given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        raise UnsupportedModel(
            "An embedding bag with max_norm or scale_grad_by_freq rescales rows by what the whole batch looks up, so "
            "one example changes another's gradient. Set max_norm=None and scale_grad_by_freq=False."
        )
    if given.get("mode", "mean") == "max":
        raise NoExampleRule(
            "An embedding bag with mode='max' has no exact per-example rule. Use mode='sum' or mode='mean', or "
            "nn.Embedding followed by amax(dim=1)."
        )
    if source_of(use, given.get("per_sample_weights")) is not None:
        raise NoExampleRule(
            "An embedding bag whose per_sample_weights are parameters has no exact per-example rule. Use nn.Embedding, "
            "multiply and sum."
        )


def _bags(given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return ids ``[bags, longest]`` and the weight of each look-up; places beyond a bag's end count zero."""
    ids: Tensor = given["input"]
    weights: Tensor | None = given.get("per_sample_weights")
    dtype = torch.promote_types(given["weight"].dtype, torch.float32)
    if ids.dim() == 1:
        offsets: Tensor = given["offsets"]
        ends = offsets if given.get("include_last_offset") else torch.cat([offsets, offsets.new_tensor([len(ids)])])
        starts, lengths = ends[:-1], ends.diff()
        longest = int(lengths.max()) if len(lengths) else 0
        place = torch.arange(longest, device=ids.device)
        inside = place < lengths.unsqueeze(1)
        where = (starts.unsqueeze(1) + place).masked_fill(~inside, 0)
        ids = ids[where].masked_fill(~inside, 0)
        weights = None if weights is None else weights[where]
    else:
        inside = torch.ones_like(ids, dtype=torch.bool)
    padding = given.get("padding_idx")
    if padding is not None:
        inside = inside & (ids != (padding if padding >= 0 else given["weight"].shape[0] + padding))
    scales = inside.to(dtype)
    if given.get("mode", "mean") == "mean":
        scales = scales / scales.sum(1, keepdim=True).clamp(min=1)
    elif weights is not None:
        scales = scales * exact(weights.detach())
    return ids, scales
