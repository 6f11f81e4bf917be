"""What watching the weights costs: its share of the time of private steps.

    python -m benchmarks.watching --model gpt2 --batch 8

Every call of the watch is timed by itself within ordinary steps; a device is waited for around each call, which makes
its share look larger than it is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch
from privet.plan import Plan
from privet.training.session import privatize
from privet.training.weights import WeightWatch
from privet.vocabulary import Adjacency, Unit

_WATCHED = ("begin_step", "check_forward", "look", "accept")


class _Gpt2(nn.Module):
    """The shapes of GPT-2 small: 124 million numbers, in plain modules."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        block = {"d_model": 768, "nhead": 12, "dim_feedforward": 3072, "dropout": 0.0, "batch_first": True}
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(**block, norm_first=True) for _ in range(12)])
        self.norm = nn.LayerNorm(768)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.words.weight)


def _gpt2_losses(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda tokens, wanted: functional.cross_entropy(model(tokens).mT, wanted, reduction="none").mean(1)


def _image_losses(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda images, labels: functional.cross_entropy(model(images), labels, reduction="none")


def _workload(name: str, batch: int, length: int) -> tuple[nn.Module, TensorDataset, Any]:
    if name == "gpt2":
        model: nn.Module = _Gpt2()
        model.places.requires_grad_(False)  # type: ignore[union-attr,operator]
        tokens = torch.randint(0, 50257, (batch, length))
        return model, TensorDataset(tokens, tokens.roll(-1, 1)), _gpt2_losses(model)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip
    data = TensorDataset(torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,)))
    return model, data, _image_losses(model)


class _Stopwatch:
    """Adds up the outermost calls of some methods."""

    def __init__(self, device: torch.device) -> None:
        self.seconds, self._depth, self._device = 0.0, 0, device

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._depth += 1
            begin = self.now()
            try:
                return method(*args, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += self.now() - begin

        return call

    def now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


@click.command()
@click.option("--model", "name", type=click.Choice(["gpt2", "cnn"]), default="cnn")
@click.option("--batch", default=256, help="Examples of one step.")
@click.option("--physical", default=256, help="Examples that go through the model at once.")
@click.option("--length", default=64, help="Tokens of one example of gpt2.")
@click.option("--steps", default=12)
@click.option("--optimizer", type=click.Choice(["SGD", "Adam"]), default="SGD")
@click.option("--device", "where", default="cpu")
def main(name: str, batch: int, physical: int, length: int, steps: int, optimizer: str, where: str) -> None:
    """Print the share of the watch, over all steps and over those that look at a part of a large model."""
    torch.manual_seed(0)
    device = torch.device(where)
    model, data, losses = _workload(name, batch, length)
    model.to(device)
    trained = [value for value in model.parameters() if value.requires_grad]
    plan = Plan(
        sampling=FullBatch(steps=steps, expected_batch_size=batch),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=Adjacency.ZERO_OUT,
        unit=Unit.RECORD,
    )
    made = getattr(torch.optim, optimizer)(trained, lr=1e-3)
    watch, rows = _Stopwatch(device), []
    originals = {method: getattr(WeightWatch, method) for method in _WATCHED}
    for method, original in originals.items():
        setattr(WeightWatch, method, watch.timed(original))
    with privatize(model, made, data, plan, physical_batch_size=physical) as session:
        begin, before = watch.now(), watch.seconds
        for step in session.steps():
            for batch_of_step in step.microbatches():
                step.backward(losses(*batch_of_step))
            step.update()
            rows.append((watch.now() - begin, watch.seconds - before))
            begin, before = watch.now(), watch.seconds
    for method, original in originals.items():
        setattr(WeightWatch, method, original)
    for number, (whole, watched) in enumerate(rows):
        click.echo(f"step {number}: {whole:.4f} s, watch {watched * 1e3:.2f} ms, {watched / whole:.2%}")
    # the first steps try the program out; those after powers of two look at everything
    usual = [row for number, row in enumerate(rows) if number > 2 and number & (number + 1) and number & (number - 1)]
    for words, chosen in (("all steps but the first three", rows[3:]), ("usual steps", usual)):
        whole, watched = (statistics.median(column) for column in zip(*chosen, strict=True))
        click.echo(f"{words}: median {whole:.4f} s, watch {watched * 1e3:.2f} ms, {watched / whole:.2%}")


if __name__ == "__main__":
    main()
