"""During an update only gradients with noise move the weights, whatever hooks and optimizers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from privet.errors import LoopError, WeightsChanged
from privet.training.optimizers import DPAdam
from privet.training.session import Session
from privet.training.start import privatize
from tests.training.tools import Counting, examples, flat, full_batch, losses_of, network, plain_sgd, run, walk

Raw = dict[nn.Parameter, Tensor]


def raw_gradients(model: nn.Module) -> Raw:
    """Gradients without noise, as a user's own backward pass leaves them."""
    losses = losses_of(model)(*examples().tensors).mean()
    parameters = list(model.parameters())
    return dict(zip(parameters, torch.autograd.grad(losses, parameters), strict=True))


def begin(model: nn.Module, optimizer: Optimizer, *, seed: int | None = None) -> Session:
    return privatize(model, optimizer, examples(), full_batch(4), seed=seed)


def swap(raw: Raw) -> None:
    for parameter, gradient in raw.items():
        parameter.grad = gradient


def copy(raw: Raw) -> None:
    for parameter, gradient in raw.items():
        assert parameter.grad is not None
        parameter.grad.copy_(gradient)


def copy_past_the_counters(raw: Raw) -> None:
    for parameter, gradient in raw.items():
        assert parameter.grad is not None
        parameter.grad.data.copy_(gradient)


@torch.no_grad()
def move(raw: Raw) -> None:
    for parameter, gradient in raw.items():
        parameter.sub_(gradient, alpha=0.5)


def write_by_numpy(raw: Raw) -> None:
    for parameter, gradient in raw.items():
        parameter.detach().numpy()[...] -= gradient.tolist()


def move_by_numbers(raw: Raw) -> None:
    for parameter, gradient in raw.items():
        parameter.data.sub_(torch.tensor(gradient.flatten()[0].item()))


MISUSES = pytest.mark.parametrize("misuse", [swap, copy, copy_past_the_counters, move, write_by_numpy, move_by_numbers])


def after_the_first(misuse: Callable[[Raw], None], raw: Raw) -> Callable[..., None]:
    calls = iter(range(100))
    return lambda *_: misuse(raw) if next(calls) == 1 else None


def refused(session: Session, model: nn.Module) -> None:
    with pytest.raises(WeightsChanged, match="During the private update"), session:
        run(session, model)
    assert session.guarantee().not_private_because


@MISUSES
@pytest.mark.parametrize("place", ["before", "hook before", "hook after", "everyone's hook before"])
def test_a_hook_that_uses_gradients_without_noise_is_refused(misuse: Callable[[Raw], None], place: str) -> None:
    if misuse is swap and place == "hook after":
        pytest.skip("what lies in .grad after the step is thrown away")
    model = network()
    optimizer, hook = plain_sgd(model), after_the_first(misuse, raw_gradients(model))
    if place == "before":
        optimizer.register_step_pre_hook(hook)
    session = begin(model, optimizer)
    with pytest.raises(WeightsChanged, match=r"the hook .*lambda"):
        _run_with(session, model, hook, place)
    assert session.guarantee().not_private_because


def _run_with(session: Session, model: nn.Module, hook: Any, place: str) -> None:
    handles = []
    with session:
        if place == "hook before":
            session.optimizer.register_step_pre_hook(hook)
        elif place == "hook after":
            session.optimizer.register_step_post_hook(hook)
        elif place == "everyone's hook before":
            handles.append(register_optimizer_step_pre_hook(hook))
        try:
            run(session, model)
        finally:
            for handle in handles:
                handle.remove()


def test_everyones_post_hook_is_followed_too() -> None:
    model = network()
    handle = register_optimizer_step_post_hook(after_the_first(move, raw_gradients(model)))
    try:
        refused(begin(model, plain_sgd(model)), model)
    finally:
        handle.remove()


@MISUSES
def test_an_optimizer_whose_step_uses_gradients_without_noise_is_refused(misuse: Callable[[Raw], None]) -> None:
    class Sneaky(SGD):
        secret = staticmethod(lambda: None)

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            written = [value.grad for group in self.param_groups for value in group["params"]]
            self.secret()
            super().step()
            for value, gradient in zip(self.param_groups[0]["params"], written, strict=True):
                value.grad = gradient  # as if nothing had happened

    model = network()
    raw = raw_gradients(model)
    hook = after_the_first(misuse, raw)
    Sneaky.secret = staticmethod(hook)  # type: ignore[assignment]
    refused(begin(model, Sneaky(model.parameters(), lr=0.1)), model)


@MISUSES
def test_a_step_that_was_replaced_is_followed(misuse: Callable[[Raw], None]) -> None:
    model = network()
    optimizer, raw = plain_sgd(model), raw_gradients(model)
    inner = optimizer.step

    def step() -> None:
        if misuse is move or misuse is write_by_numpy:
            inner()
        misuse(raw)
        inner()

    optimizer.step = step  # type: ignore[method-assign,assignment]
    refused(begin(model, optimizer), model)


def test_a_closure_like_second_pass_over_the_data_is_refused() -> None:
    class TwoPasses(SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            with torch.enable_grad():
                losses_of(model)(*data).mean().backward()
            super().step()

    model, data = network(), examples().tensors
    refused(begin(model, TwoPasses(model.parameters(), lr=0.1)), model)


def test_gradients_that_an_optimizer_swaps_when_told_of_the_noise_are_refused() -> None:
    class Told(SGD):
        def note_noise(self, noise_std: float) -> None:
            swap(raw)

    model = network()
    raw = raw_gradients(model)
    refused(begin(model, Told(model.parameters(), lr=0.1)), model)


class Centred(SGD):
    """An optimizer of another make that treats its gradients as it likes."""

    def __init__(self, parameters: Any, **settings: Any) -> None:
        super().__init__(parameters, **settings)
        self.scale = torch.tensor([0.5])
        self.slow: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [value for group in self.param_groups for value in group["params"]]
        self.slow = self.slow or [value.clone() for value in held]
        for value, slow in zip(held, self.slow, strict=True):
            value.grad.mul_(self.scale).sub_(value.grad.mean())
            self.state[value]["seen"] = value.grad.square() + torch.tensor(1e-8) + 1e-3 * torch.randn_like(value)
            slow.lerp_(value, 0.1)
            value.add_(value.grad / self.state[value]["seen"].sqrt(), alpha=-0.1).clamp_(-3, 3)
            value.lerp_(slow, 0.01)


def test_an_optimizer_of_another_make_may_do_as_it_likes_with_noisy_gradients() -> None:
    model = network()
    with begin(model, Centred(model.parameters(), lr=0.1)) as session:
        assert run(session, model) == 4
    assert not session.guarantee().not_private_because


def test_what_an_optimizer_of_another_make_keeps_is_watched_between_steps() -> None:
    model = network()
    optimizer = Centred(model.parameters(), lr=0.1)
    session = begin(model, optimizer)

    def stash() -> None:
        with session:
            run(session, model, at_most=2)
            optimizer.slow[0].data.copy_(raw_gradients(model)[model[0].weight])
            run(session, model)

    with pytest.raises(WeightsChanged, match="the optimizer: slow 0"):
        stash()


def look(optimizer: Optimizer, *_: Any) -> None:
    [float(value.grad.norm()) for value in optimizer.param_groups[0]["params"]]


def project(optimizer: Optimizer, *_: Any) -> None:
    for value in optimizer.param_groups[0]["params"]:
        value.data.clamp_(-9.0, 9.0)


def test_hooks_that_only_look_clip_or_project_do_no_harm_and_schedules_are_not_followed() -> None:
    model, same = network(), network()
    for network_, hooked in ((model, True), (same, False)):
        optimizer = plain_sgd(network_)
        counting = Counting(optimizer) if hooked else None
        schedule = lr_scheduler.StepLR(optimizer, 1)
        with begin(network_, optimizer, seed=3) as session:
            if hooked:
                optimizer.register_step_pre_hook(look)
                optimizer.register_step_post_hook(project)
            for step in session.steps():
                walk(step, network_)
                step.update()
                schedule.step()
        assert counting is None or counting.steps == 4
    assert torch.equal(flat(model), flat(same))


def test_trusted_optimizers_and_schedules_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privet.training.weight_watch.guard.Following", lambda **_: pytest.fail("followed"))
    for make in (SGD, torch.optim.AdamW, DPAdam):
        model = network()
        optimizer = make(model.parameters(), lr=0.1)
        lr_scheduler.StepLR(optimizer, 1)
        with begin(model, optimizer) as session:
            run(session, model, at_most=1)


def test_a_session_whose_hook_was_taken_away_does_not_go_on() -> None:
    model = network()
    optimizer = plain_sgd(model)
    with begin(model, optimizer) as session:
        optimizer._optimizer_step_pre_hooks.clear()
        step = next(session.steps())
        walk(step, model)
        with pytest.raises(LoopError, match="taken off"):
            step.update()
