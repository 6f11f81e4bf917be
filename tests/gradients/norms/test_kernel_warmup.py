"""Kernels are built ahead of their launch: once each, and never at the cost of the step that needs them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.gradients.capture.in_place import Function
from privet.gradients.capture.recorded import Recording, Use, mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping, RunningBookKeeping
from privet.gradients.norms import kernel_warmup, kernels
from privet.gradients.norms.kernel_warmup import KernelWarmup, launches_of
from privet.gradients.norms.kernels import Launch, launch, rehearsal
from privet.gradients.rules.example_axis import ExampleAxis
from privet.gradients.rules.layer_rules import RULES
from privet.gradients.rules.rule_tools import Operand, Rule
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout

BATCH = 4
CPU = torch.device("cpu")


class Kernel:
    """Stands in for a compiled function."""

    def __init__(self, *, fixed: tuple[bool, ...] = (), fails: bool = False) -> None:
        self.params = [SimpleNamespace(do_not_specialize=each) for each in fixed]
        self.built: list[tuple[Any, ...]] = []
        self.fails, self.gate = fails, threading.Event()

    def warmup(self, *arguments: Any, grid: tuple[int, ...], BLOCK: int = 0) -> SimpleNamespace:  # noqa: N803
        self.gate.wait(5)
        if self.fails:
            raise RuntimeError("no compiler")
        self.built.append(arguments)
        return SimpleNamespace(run=None)


@pytest.fixture(autouse=True)
def _without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels be found, built and rehearsed where there is neither triton nor a device."""
    monkeypatch.setattr(kernel_warmup, "_set_up", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(kernels, "_has_triton", lambda: True)
    names = ("gram", "scale", "conv", "conv_shift", "row_affine", "channel_affine")
    made = SimpleNamespace(**{f"{name}_kernel": SimpleNamespace(name=name) for name in names})
    monkeypatch.setattr(kernels, "_module", lambda: made)


def test_kernels_that_differ_in_nothing_they_are_built_for_are_built_once() -> None:
    kernel = Kernel(fixed=(False, False, True))
    kernel.gate.set()
    numbers = [(32, 5), (48, 6), (1, 7), (7, 8), (9, 8), (32, 5)]
    made = KernelWarmup([Launch(kernel, (torch.float32, *pair), {"BLOCK": 8}) for pair in numbers], CPU)
    made.wait()
    assert sorted(arguments[1] % 16 == 0 for arguments in kernel.built) == [False, False, True]
    assert len(kernel.built) == 3  # a multiple of 16, one, and neither; what is never looked at does not count


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(((torch.float16, 32), {"BLOCK": 8}), id="another type"),
        pytest.param(((torch.float32, 32), {"BLOCK": 16}), id="another constant"),
        pytest.param(((torch.float32, 1 << 31), {"BLOCK": 8}), id="a longer number"),
    ],
)
def test_kernels_that_differ_in_something_are_built_each(other: tuple[tuple[Any, ...], dict[str, int]]) -> None:
    kernel = Kernel()
    kernel.gate.set()
    KernelWarmup([Launch(kernel, (torch.float32, 32), {"BLOCK": 8}), Launch(kernel, *other)], CPU).wait()
    assert len(kernel.built) == 2


def test_waiting_ends_when_everything_is_built_and_warmup_is_done_beside_the_rest() -> None:
    kernel = Kernel()
    made = KernelWarmup([Launch(kernel, (torch.float32, 32), {})], CPU)
    assert kernel.built == []
    kernel.gate.set()
    made.wait()
    assert kernel.built == [(torch.float32, 32)]


def test_what_cannot_be_built_is_left_to_its_launch(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel(fails=True)
    kernel.gate.set()
    with caplog.at_level(logging.DEBUG, logger="privet"):
        KernelWarmup([Launch(kernel, (torch.float32,), {})], CPU).wait()
    assert "no compiler" in caplog.text
    KernelWarmup([], CPU).wait()


def test_a_rehearsal_launches_nothing_and_what_has_no_memory_needs_one() -> None:
    empty = torch.empty(3, device="meta")
    assert not kernels.available(empty)
    with rehearsal() as noted:
        assert kernels.available(empty)
        launch("kernel", (1,), (empty, 7), {"BLOCK": 8})
    assert noted == [Launch("kernel", (torch.float32, 7), {"BLOCK": 8})]
    assert not kernels.available(empty)


@pytest.mark.parametrize("missing", ["nothing", "compiler", "headers"])
@pytest.mark.parametrize("builds", [True, False])
def test_a_machine_that_cannot_build_kernels_is_known_before_one_is_needed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, missing: str, builds: bool
) -> None:
    tried: list[str] = []

    def scaled_rows(*_: object) -> None:
        tried.append("kernel")
        if not builds:
            raise RuntimeError("Failed to find C compiler.\nMore.")

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None if missing == "compiler" else f"/bin/{name}")
    monkeypatch.setattr(kernels.sysconfig, "get_path", lambda name, scheme: str(tmp_path))
    if missing != "headers":
        (tmp_path / "Python.h").touch()
    monkeypatch.setattr(kernels, "scaled_rows", scaled_rows)
    monkeypatch.setattr(torch, "ones", lambda *shape, device: None)
    kernels._can_build.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="privet"):
            answers = {kernels._can_build() for _ in range(2)}
    finally:
        kernels._can_build.cache_clear()
    assert answers == {missing == "nothing" or builds}
    assert len(tried) == (missing != "nothing")  # once for the whole process
    assert ("Failed to find C compiler" in caplog.text) == (missing != "nothing" and not builds)


class Rows(nn.Module):
    """Positions by channels, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 48), nn.LayerNorm(48), nn.Linear(48, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs).mean(1)


IMAGES = nn.Sequential(
    nn.Conv2d(3, 20, 3, padding=1), nn.GroupNorm(4, 20), nn.Conv2d(20, 4, 3, padding=1), nn.Flatten(), nn.Linear(144, 3)
)


def _recorded(
    model: nn.Module, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, rules: Mapping[Function, Rule]
) -> tuple[RunningBookKeeping, Recording]:
    named = list(model.named_parameters())
    layout = Layout.of([(name, tuple(value.shape)) for name, value in named], OneGroup())
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_has_triton", lambda: False)  # the processor has its own way through normalisations
        engine = BookKeeping(rules=rules).start(model, [value for _, value in named], layout)
        inputs, labels = torch.randn(BATCH, *shape), torch.arange(BATCH) % 3
        mark_batch((inputs, labels))
        engine.begin(BATCH)
        functional.cross_entropy(model(inputs), labels, reduction="none")
        capture, engine._capture = engine._capture, None
        assert capture is not None
        recording = capture.close()
    return engine, recording


def test_a_rule_of_the_users_own_is_not_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
        raise AssertionError("a rehearsal called it")

    rules = {**RULES, functional.layer_norm: own}
    engine, recording = _recorded(Rows(), (40, 16), monkeypatch, rules)
    assert {each.kernel.name for each in launches_of(recording, rules, engine.planner)} == {"gram"}


@pytest.mark.parametrize(
    ("model", "shape", "names"),
    [
        pytest.param(IMAGES, (3, 6, 6), {"conv", "conv_shift", "channel_affine"}, id="images"),
        pytest.param(Rows(), (40, 16), {"gram", "row_affine"}, id="positions"),
        pytest.param(nn.Linear(16, 3), (16,), set(), id="nothing to build"),
    ],
)
def test_the_kernels_of_a_first_step_are_known_after_its_forward_pass(
    model: nn.Module, shape: tuple[int, ...], names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recording = _recorded(model, shape, monkeypatch, RULES)
    named = list(model.named_parameters())
    before = [each.clone() for _, each in named]
    found = launches_of(recording, engine.rules, engine.planner)
    assert {each.kernel.name for each in found} == names
    assert all(torch.equal(old, new) for old, (_, new) in zip(before, named, strict=True))
    assert engine.planner.chosen == {}  # nothing was chosen by tensors that hold nothing
