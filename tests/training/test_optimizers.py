"""Optimizers after a private step: any of torch's, and Adam without what the noise adds to its second moment."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop

from privet.errors import ArgumentError, LoopError, PlanError
from privet.mechanism.changing_clipping import AdaptiveQuantile
from privet.mechanism.layout import Layout
from privet.mechanism.sums import PrivateSum
from privet.training.optimizers import DPAdam, DPAdamW, NoiseAware, tell_noise
from privet.training.start import privatize
from tests.training.tools import examples, flat, full_batch, network, poisson, run, walk

Make = Callable[[Iterable[nn.Parameter]], Optimizer]
MAKERS: dict[str, Make] = {
    "plain": lambda p: SGD(p, lr=0.1),
    "heavy ball": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, alpha=0.9),
    "centred rmsprop": lambda p: RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1),
    "nadam": lambda p: NAdam(p, lr=0.01),
    "radam": lambda p: RAdam(p, lr=0.01),
    "adagrad": lambda p: Adagrad(p, lr=0.01),
}
OWN: dict[str, Make] = {
    "dp-adam": lambda p: DPAdam(p, lr=0.01, guard=1e-4),
    "dp-adamw": lambda p: DPAdamW(p, lr=0.01, guard=1e-4, weight_decay=0.1),
}


@pytest.mark.parametrize("name", [*MAKERS, *OWN])
def test_an_optimizer_sees_the_noisy_gradients_and_nothing_else(name: str) -> None:
    make = (MAKERS | OWN)[name]
    model = network()
    twin = copy.deepcopy(model)
    optimizer, follower = make(model.parameters()), make(twin.parameters())
    with privatize(model, optimizer, examples(), poisson(6)) as session:
        for step in session.steps():
            walk(step, model)
            step.update()
            for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
                assert theirs.grad is not None
                ours.grad = theirs.grad.clone()
            if isinstance(follower, NoiseAware):
                follower.note_noise(1.0 * 1.0 / 4.0)  # multiplier times bound over expected batch size
            follower.step()
    assert torch.equal(flat(model), flat(twin))


@pytest.mark.parametrize("name", [*MAKERS, *OWN])
def test_the_state_of_an_optimizer_survives_a_stop(name: str, tmp_path: Path) -> None:
    make = (MAKERS | OWN)[name]
    model = network()
    optimizer = make(model.parameters())
    with privatize(model, optimizer, examples(), full_batch(9), folder=tmp_path) as session:
        run(session, model, at_most=4)
    again = network(seed=5)
    restored = make(again.parameters())
    with privatize(again, restored, examples(), full_batch(9), folder=tmp_path) as session:
        assert torch.equal(flat(again), flat(model))
        assert _numbers(restored.state_dict()) == _numbers(optimizer.state_dict())
        assert run(session, again) == 5


def _numbers(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.flatten().tolist()
    if isinstance(value, dict):
        return {str(key): _numbers(item) for key, item in value.items()}
    return [_numbers(item) for item in value] if isinstance(value, list | tuple) else value


def drive(optimizer: DPAdam, weight: nn.Parameter, gradients: Tensor, stds: Iterable[float]) -> None:
    for gradient, std in zip(gradients, stds, strict=True):
        weight.grad = gradient.clone()
        optimizer.note_noise(std)
        optimizer.step()


def test_without_noise_it_is_adam() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    for own, plain in ((DPAdam, Adam), (DPAdamW, AdamW)):
        mine, theirs = (nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2))
        drive(own([mine], lr=0.1, guard=1e-30, weight_decay=0.2), mine, gradients, [0.0] * 30)
        adam = plain([theirs], lr=0.1, eps=0, weight_decay=0.2)
        for gradient in gradients:
            theirs.grad = gradient.clone()
            adam.step()
        assert torch.allclose(mine, theirs, rtol=1e-12)


def test_it_follows_the_published_update() -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    drive(DPAdam([weight], lr=0.1, betas=(0.8, 0.95), guard=0.3), weight, gradients, [0.7] * 12)
    mean, square, expected = np.zeros(4), np.zeros(4), np.zeros(4)
    for index, gradient in enumerate(gradients.numpy(), start=1):
        mean, square = 0.8 * mean + 0.2 * gradient, 0.95 * square + 0.05 * gradient**2
        corrected = np.maximum(square / (1 - 0.95**index) - 0.7**2, 0.3)
        expected -= 0.1 * mean / (1 - 0.8**index) / np.sqrt(corrected)
    assert np.allclose(weight.detach().numpy(), expected, rtol=1e-12)


def test_the_corrected_moment_is_that_of_the_gradients_without_noise_also_when_the_noise_changes() -> None:
    generator = torch.Generator().manual_seed(2)
    signal = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64).repeat_interleave(4000)
    weight = nn.Parameter(torch.zeros_like(signal))
    optimizer = DPAdam([weight], lr=0.0, betas=(0.9, 0.99), guard=1e-12)
    stds = [2.0] * 100 + [0.5] * 100
    for std in stds:
        weight.grad = signal + std * torch.randn(signal.shape, generator=generator, dtype=torch.float64)
        optimizer.note_noise(std)
        optimizer.step()
    group = optimizer.param_groups[0]
    moments = (optimizer.state[weight]["square"] - group["noise_variance"]) / (1 - 0.99 ** group["steps_taken"])
    found = moments.view(3, 4000).mean(1)
    assert found.tolist() == pytest.approx([0.0, 0.09, 1.0], abs=0.03)


def test_steps_grow_with_the_gradient_only_after_the_correction() -> None:
    """What the correction is for: plain Adam gives all coordinates nearly the same denominator under heavy noise."""
    generator = torch.Generator().manual_seed(3)
    signal = torch.tensor([0.05, 0.5], dtype=torch.float64).repeat_interleave(2000)
    noise = torch.randn(400, 4000, generator=generator, dtype=torch.float64)
    mine, theirs = (nn.Parameter(torch.zeros(4000, dtype=torch.float64)) for _ in range(2))
    drive(DPAdam([mine], lr=0.01, guard=0.01), mine, signal + noise, [1.0] * 400)
    adam = Adam([theirs], lr=0.01)
    for row in noise:
        theirs.grad = signal + row
        adam.step()
    moved = [-weight.detach().view(2, 2000).mean(1) for weight in (mine, theirs)]
    # the sign-like step of Adam without noise would be 1 for both
    assert float(moved[0][0] / moved[0][1]) > 1.5 * float(moved[1][0] / moved[1][1])


def test_a_session_tells_the_noise_of_a_learned_threshold() -> None:
    told: list[float] = []

    class Listening(DPAdam):
        def note_noise(self, noise_std: float) -> None:
            told.append(noise_std)
            super().note_noise(noise_std)

    model, bounds = network(), []
    plan = replace(full_batch(4), clipping=AdaptiveQuantile(norm=0.05, count_noise_std=0.5))
    with privatize(model, Listening(model.parameters()), examples(), plan) as session:
        for step in session.steps():
            bounds.append(step.sensitivity.total)
            walk(step, model)
            step.update()
    assert told == pytest.approx([bound / 8.0 for bound in bounds])


@dataclass
class _Noted:
    told: float | None = None

    def note_noise(self, noise_std: float) -> None:
        self.told = noise_std


def test_masked_coordinates_share_the_noise_of_the_kept_ones() -> None:
    layout = Layout(names=("w",), shapes=((8,),), groups=(0,))
    private = PrivateSum(flat=torch.zeros(8), layout=layout, event=None, noise_std=3.0)  # type: ignore[arg-type]
    noted = _Noted()
    tell_noise(noted, private, divisor=2.0, keep=torch.arange(8) < 2)  # type: ignore[arg-type]
    assert noted.told == pytest.approx(1.5 * math.sqrt(1 / 4))
    private.noise_std = None
    with pytest.raises(PlanError, match="the same in every coordinate"):
        tell_noise(noted, private, divisor=2.0, keep=None)  # type: ignore[arg-type]
    assert not isinstance(SGD(network().parameters(), lr=0.1), NoiseAware)


def test_unknown_noise_and_closures_are_refused() -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = DPAdam([weight])
    weight.grad = torch.ones(2)
    with pytest.raises(LoopError, match="does not know how noisy"):
        optimizer.step()
    optimizer.note_noise(1.0)
    with pytest.raises(LoopError, match="closure"):
        optimizer.step(lambda: 0.0)
    optimizer.step()
    with pytest.raises(LoopError, match="does not know how noisy"):  # said again before every step
        optimizer.step()


def test_parameters_without_a_gradient_stay_where_they_are() -> None:
    one, other = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = DPAdamW([one, other], lr=0.1, weight_decay=0.5)
    one.grad = torch.ones(2)
    optimizer.note_noise(0.1)
    optimizer.step()
    assert float(one.detach().abs().min()) > 0
    assert other.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "changes", [{"lr": -1.0}, {"lr": math.nan}, {"betas": (0.9, 1.0)}, {"guard": 0.0}, {"weight_decay": -0.1}]
)
def test_constants_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(changes))):
        DPAdam([nn.Parameter(torch.zeros(1))], **changes)
