"""The end of a step: recorded or not, it writes the same noise law, the same event, the same update."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from privet import Adjacency, Gaussian, Performance, Plan, Poisson, Threshold, Unit, privatize
from privet.errors import LoopError
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.noise import FixedNoise
from privet.mechanism.sums import ClippedSum
from privet.training.launch.replay import CudaGraph, Eager, Launch
from privet.training.optimizers import DPAdam
from privet.training.randomness import Streams
from privet.training.updates import GradientViews, Updates, _RecordedUpdate, check_draws


def at_work(noise_multiplier: float) -> FixedNoise:
    return FixedNoise(noise=Gaussian(noise_multiplier=noise_multiplier), layout=Layout.of([("w", (1,))], OneGroup()))


NOISE = at_work(0.5)


def _updates(
    *, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, device: str = "cpu", width: int = 7
) -> tuple[Updates, ClippedSum]:
    model = nn.Linear(width, 3).to(device)
    named = list(model.named_parameters())
    layout = Layout.of([(name, tuple(value.shape)) for name, value in named], OneGroup())
    rule = Threshold(norm=2.0).for_groups(1)
    flat = torch.zeros(layout.num_coordinates, device=device)
    updates = Updates(
        source=Streams.new(torch.device(device), seed=0).noise,
        parameters=list(model.parameters()),
        memory=torch.zeros_like(flat),
        views=GradientViews(layout=layout),
        optimizer=optimizer(model.parameters(), lr=0.1),  # type: ignore[call-arg]
        opened=nullcontext,
        divisor=4.0,
        records=True,
    )
    return updates, ClippedSum(flat=flat, layout=layout, sensitivity=rule.sensitivity)


def test_an_eager_update_writes_the_noisy_sum_over_the_divisor_and_moves_the_weights_by_it() -> None:
    updates, total = _updates()
    updates.records = False
    before = torch.cat([value.detach().flatten().clone() for value in updates.parameters])
    update = updates.add_noise(NOISE, total)
    assert update.private.noise_std == 1.0
    update.apply(keep=None)
    after = torch.cat([value.detach().flatten() for value in updates.parameters])
    torch.testing.assert_close(after, before - 0.1 * total.flat / 4.0)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, DPAdam, torch.optim.RMSprop])
def test_only_plain_sgd_is_ever_recorded(optimizer: type[torch.optim.Optimizer]) -> None:
    updates, total = _updates(optimizer=optimizer)
    assert updates._key(NOISE, total) is None
    assert _updates()[0]._key(NOISE, total) is not None


def test_an_optimizer_with_hooks_of_the_users_own_is_not_recorded() -> None:
    updates, total = _updates()
    updates.optimizer.register_step_post_hook(lambda *_: None)
    assert updates._key(NOISE, total) is None


def test_another_noise_bound_rate_or_memory_never_meets_an_old_recording() -> None:
    updates, total = _updates()
    keys = {updates._key(NOISE, total), updates._key(at_work(0.6), total)}
    wider = Threshold(norm=3.0).for_groups(1).sensitivity
    keys.add(updates._key(NOISE, ClippedSum(flat=total.flat, layout=total.layout, sensitivity=wider)))
    keys.add(updates._key(NOISE, ClippedSum(flat=total.flat.clone(), layout=total.layout, sensitivity=wider)))
    updates.optimizer.param_groups[0]["lr"] = 0.2
    keys.add(updates._key(NOISE, total))
    assert len(keys) == 5
    keep = torch.ones_like(total.flat, dtype=torch.bool)
    masked = ClippedSum(flat=total.flat, layout=total.layout, sensitivity=total.sensitivity, keep=keep)
    assert updates._key(NOISE, masked) is None


def test_a_recording_is_replayed_for_its_own_noise_alone() -> None:
    updates, total = _updates()
    recorded = _RecordedUpdate(private=NOISE.add(total, updates.source), graph=None, updates=updates)  # type: ignore[arg-type]
    updates._recorded[updates._key(NOISE, total)] = recorded
    assert updates.add_noise(NOISE, total) is recorded
    other = updates.add_noise(at_work(0.6), total)
    assert other is not recorded
    assert other.private.noise_std == pytest.approx(1.2)


def test_noise_made_on_the_processor_is_not_recorded_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    updates, total = _updates()
    if torch.cuda.is_available():
        pytest.skip("the refusal of a machine without a device")
    for _ in range(5):
        updates.add_noise(NOISE, total).apply(keep=None)
    assert not updates.records
    assert not updates._recorded
    assert caplog.records


def test_draws_of_the_wrong_size_or_drawn_twice_are_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(20_000, generator=generator, dtype=torch.float64) for _ in range(2))
    check_draws([first], std=1.0)
    check_draws([first, second], std=1.0)
    with pytest.raises(LoopError, match="another size"):
        check_draws([first * 0.9], std=1.0)
    with pytest.raises(LoopError, match="repeated"):
        check_draws([first, first + 1e-7], std=1.0)
    with pytest.raises(LoopError, match="another size"):
        check_draws([torch.full((9,), math.nan, dtype=torch.float64)], std=1.0)


def _trained(launch: Launch, *, drops_rate: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(50, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    data = TensorDataset(torch.randn(64, 50).cuda(), torch.randint(0, 3, (64,)).cuda())
    plan = Plan(
        sampling=Poisson(rate=0.3, steps=14, expected_batch_size=19),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )
    steps = []

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(inputs), labels, reduction="none")

    with privatize(
        model, optimizer, data, plan, performance=Performance(physical_batch_size=64, launch=launch), seed=3
    ) as session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()
            steps.append(model.weight.detach().clone())
            if drops_rate and step.index == 7:
                optimizer.param_groups[0]["lr"] = 0.05
        if isinstance(launch, CudaGraph):
            assert len(session._run.updates._recorded) == 1 + drops_rate
    return steps


@pytest.mark.gpu
@pytest.mark.parametrize("drops_rate", [False, True])
def test_recorded_updates_draw_the_same_noise_and_follow_the_learning_rate(drops_rate: bool) -> None:
    recorded, openly = (_trained(launch, drops_rate=drops_rate) for launch in (CudaGraph(), Eager()))
    for one, other in zip(recorded, openly, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_noise_of_recorded_updates_is_independent_from_step_to_step() -> None:
    updates, total = _updates(device="cuda", width=20_000)
    draws = []
    for _ in range(8):
        total.flat.zero_()
        updates.add_noise(NOISE, total).apply(keep=None)
        draws.append(total.flat.double().clone())
    assert len(updates._recorded) == 1
    correlation = torch.corrcoef(torch.stack(draws)) - torch.eye(8, device="cuda", dtype=torch.float64)
    assert float(correlation.abs().max()) < 6 / math.sqrt(total.flat.numel())
    assert float(torch.stack(draws).std()) == pytest.approx(1.0, abs=0.01)


def test_gradients_that_were_given_other_memory_are_made_anew() -> None:
    updates, total = _updates()
    updates.records = False
    noise = FixedNoise(noise=Gaussian(noise_multiplier=1.0), layout=total.layout)
    updates.add_noise(noise, total).apply(keep=None)
    first, *_ = updates.parameters
    assert first.grad is not None
    elsewhere = torch.full_like(first.grad, 7.0)
    first.grad.data = elsewhere
    total.flat.zero_()
    updates.add_noise(noise, total).apply(keep=None)
    assert first.grad is not None
    assert first.grad.data_ptr() == updates.memory.data_ptr()
    assert torch.equal(first.grad.reshape(-1), updates.memory[: first.numel()])
    assert torch.equal(elsewhere, torch.full_like(elsewhere, 7.0))
