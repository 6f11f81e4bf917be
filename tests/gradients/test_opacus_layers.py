"""Opacus' own tests of layers, with privet's engine in the place of its gradients; they need Opacus and its tests."""

from __future__ import annotations

import importlib
import unittest
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from privet.errors import UnsupportedModel
from privet.gradients.capture.recorded import mark_batch, tensors_in
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.isolation.watch import Watch
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum
from privet.training.batching import with_gradients

_PLACE = "opacus.tests.grad_samples"
_MODULES = (
    "conv1d", "conv2d", "conv3d", "dp_multihead_attention", "dp_rnn", "embedding_bag", "embedding", "group_norm",
    "instance_norm1d", "instance_norm2d", "instance_norm3d", "layer_norm", "linear", "rms_norm", "sequence_bias",
)  # fmt: skip


def _parts(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, tuple) and not isinstance(x, PackedSequence) else (x,)


def _losses(module: nn.Module, x: Any, *, batch_first: bool) -> Tensor:
    """Opacus' own loss, the mean square of the first output, for each example."""
    output = module(*_parts(x))
    output = output[0] if isinstance(output, tuple) and not isinstance(output, PackedSequence) else output
    if isinstance(output, PackedSequence):
        output = pad_packed_sequence(output, batch_first=True)[0]
    elif not batch_first and output.dim() > 1:
        output = output.transpose(0, 1)
    return output.reshape(len(output), -1).square().mean(1)


def _is_bags(x: Any) -> bool:
    """Whether an input is the numbers of all bags, and where each bag begins."""
    return isinstance(x, tuple) and not isinstance(x, PackedSequence) and len(x) == 2 and x[0].dim() == x[1].dim() == 1


def _num_examples(x: Any, *, batch_first: bool) -> int:
    if isinstance(x, PackedSequence):
        return int(x.batch_sizes[0])
    if _is_bags(x):
        return len(x[1])
    first = tensors_in(_parts(x))[0]
    return first.shape[0] if batch_first or first.dim() == 1 else first.shape[1]


def engine_sum(module: nn.Module, x: Any, bound: float, *, batch_first: bool) -> Tensor:
    named = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
    layout = Layout.of([(name, tuple(value.shape)) for name, value in named], OneGroup())
    rule = Threshold(norm=bound).for_groups(1)
    into = ClippedSum(flat=named[0][1].new_zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity)
    running = BookKeeping().start(module, [value for _, value in named], layout, Watch())
    size = _num_examples(x, batch_first=batch_first)
    try:
        parts = _parts(x) if batch_first or isinstance(x, PackedSequence) else tuple(
            part.transpose(0, 1) for part in _parts(x)
        )  # fmt: skip
        leaves: list[Tensor] = []
        if running.wants_input_gradients and not isinstance(x, PackedSequence):
            parts, leaves = with_gradients(parts, size)
        running.begin(size, leaves)
        mark_batch(
            [tensor for part in parts for tensor in ([part.data] if isinstance(part, PackedSequence) else [part])]
        )
        given = parts if batch_first or isinstance(x, PackedSequence) else tuple(part.transpose(0, 1) for part in parts)
        found = given if len(given) > 1 else given[0]
        running.add_clipped(_losses(module, found, batch_first=batch_first), rule, into)
    finally:
        running.close()
    return into.flat


def _one(x: Any, place: int, *, batch_first: bool) -> Any:
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        return nn.utils.rnn.pack_padded_sequence(
            padded[place : place + 1], lengths[place : place + 1], batch_first=True
        )
    if _is_bags(x):
        ids, offsets = x
        ends = [*offsets.tolist()[1:], len(ids)]
        return ids[int(offsets[place]) : ends[place]], torch.zeros(1, dtype=offsets.dtype)
    rows = tuple(
        part[place : place + 1] if batch_first or part.dim() == 1 else part[:, place : place + 1] for part in _parts(x)
    )
    return rows if len(rows) > 1 else rows[0]


@contextmanager
def adapted(outcomes: Counter[str], messages: list[str]) -> Iterator[None]:
    """Let Opacus' tests ask privet instead of Opacus."""
    common = importlib.import_module(f"{_PLACE}.common")

    def run_test(self: Any, x: Any, module: nn.Module, batch_first: bool = True, **_: Any) -> None:
        size = _num_examples(x, batch_first=batch_first)
        if size == 0 or not any(value.requires_grad for value in module.parameters()):
            outcomes["empty"] += 1
            return
        module.train()
        parameters = [value for value in module.parameters() if value.requires_grad]
        gradients = []
        for place in range(size):
            losses = _losses(module, _one(x, place, batch_first=batch_first), batch_first=batch_first)
            found = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
            filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
            gradients.append(torch.cat([gradient.reshape(-1) for gradient in filled]))
        norms = torch.stack(gradients).norm(dim=1)
        bound = max(float(norms.median()), 1e-6)
        expected = sum(g * min(1.0, bound / max(float(g.norm()), 1e-12)) for g in gradients)
        try:
            result = engine_sum(module, x, bound, batch_first=batch_first)
        except UnsupportedModel as error:
            outcomes["refused"] += 1
            messages.append(f"{type(module).__name__} {size}: {error}"[:300])
            return
        error_of_sum = float((result - expected).norm())
        is_exact = error_of_sum <= 1e-3 * float(expected.norm()) + 1e-5 * bound
        outcomes["exact" if is_exact else "wrong"] += 1
        if not is_exact:
            messages.append(f"WRONG {type(module).__name__} {size} {error_of_sum / float(expected.norm()):.1e}")

    with mock.patch.object(common.GradSampleHooks_test, "run_test", run_test):
        yield


def run_all(outcomes: Counter[str], messages: list[str]) -> unittest.TestResult:
    """Run all of Opacus' tests of layers with privet's gradients."""
    suite, loader = unittest.TestSuite(), unittest.TestLoader()
    for name in _MODULES:
        suite.addTests(loader.loadTestsFromModule(importlib.import_module(f"{_PLACE}.{name}_test")))
    result = unittest.TestResult()
    with adapted(outcomes, messages):
        suite.run(result)
    return result


@pytest.mark.slow
def test_opacus_own_tests_of_layers_are_exact() -> None:
    pytest.importorskip("opacus.tests.grad_samples.common")
    outcomes: Counter[str] = Counter()
    messages: list[str] = []
    result = run_all(outcomes, messages)
    assert not result.errors, result.errors[0][1]
    assert outcomes["wrong"] == 0, messages
    assert outcomes["exact"] >= 0.97 * (outcomes["exact"] + outcomes["refused"]), messages
