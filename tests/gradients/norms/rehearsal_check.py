"""Check that a rehearsal foresees every kernel of a first step; run as a script, with TRITON_INTERPRET=1 set."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping, RunningBookKeeping
from privet.gradients.norms import kernels, timing
from privet.gradients.norms.kernel_warmup import _kind, launches_of
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum

BATCH = 4


class Positions(nn.Module):
    """Takes the last axis for channels, and the mean over positions at the end."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs).mean(1)


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(3, 20, 3, padding=1),
            nn.GroupNorm(4, 20),
            nn.ReLU(inplace=True),
            nn.Conv2d(20, 24, 3, padding=1, bias=False),
            nn.InstanceNorm2d(24, affine=True),
            nn.Conv2d(24, 8, 1, stride=2),
            nn.Flatten(),
            nn.Linear(8 * 9, 3),
        ),
        (3, 6, 6),
    ),
    "positions": (Positions(nn.Linear(16, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 3)), (40, 16)),
}


def running(model: nn.Module) -> tuple[RunningBookKeeping, Layout]:
    named = list(model.named_parameters())
    layout = Layout.of([(name, tuple(value.shape)) for name, value in named], OneGroup())
    return BookKeeping().start(model, [value for _, value in named], layout), layout


def losses_of(model: nn.Module, shape: tuple[int, ...], engine: RunningBookKeeping) -> Tensor:
    inputs, labels = torch.randn(BATCH, *shape), torch.arange(BATCH) % 3
    mark_batch((inputs, labels))
    engine.begin(BATCH)
    return functional.cross_entropy(model(inputs), labels, reduction="none")


def foreseen(model: nn.Module, shape: tuple[int, ...]) -> set[object]:
    engine, _ = running(model)
    losses_of(model, shape, engine)
    capture, engine._capture = engine._capture, None
    assert capture is not None
    recording = capture.close()
    return {_kind(launch) for launch in launches_of(recording, engine.rules, engine.planner)}


def launched(model: nn.Module, shape: tuple[int, ...]) -> set[object]:
    found: set[object] = set()
    real = kernels.launch

    def noted(
        kernel: object, grid: tuple[int, ...], arguments: tuple[object, ...], settings: dict[str, object]
    ) -> None:
        if kernels._rehearsed.get() is None:
            kinds = tuple(each.dtype if isinstance(each, Tensor) else each for each in arguments)
            found.add(_kind(kernels.Launch(kernel, kinds, settings)))
        real(kernel, grid, arguments, settings)

    kernels.launch = noted
    try:
        engine, layout = running(model)
        rule = Threshold(norm=1.0).for_groups(1)
        into = ClippedSum(flat=torch.zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity)
        engine.add_clipped(losses_of(model, shape, engine), rule, into)
    finally:
        kernels.launch = real
    return found


def main() -> None:
    """Compare what is foreseen with what is launched."""
    timing._NUM_SLICES = 1  # a device tries strategies on whole batches
    for name, (model, shape) in MODELS.items():
        seen, expected = launched(model, shape), foreseen(model, shape)
        assert seen, f"{name} launches no kernel at all"
        assert seen <= expected, f"{name}: {seen - expected} were not foreseen"
    print("every kernel was foreseen")


if __name__ == "__main__":
    main()
