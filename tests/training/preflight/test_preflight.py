"""Programs in which examples meet, or that remember what they saw, are refused on made-up examples, by name."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from privet.accounting.ledger import Ledger
from privet.errors import DataError, LossError, UnsupportedModel
from privet.isolation.watch import Check, Waiver
from privet.models import dp_cnn
from privet.training.launch.recording import LossFunction
from privet.training.preflight.made_up import MadeUpBatches
from privet.training.preflight.preflight import preflight
from privet.training.start import privatize
from tests.training.tools import examples, flat, full_batch, losses_of, network, plain_sgd

BATCH = (torch.randn(9, 6), torch.tensor([0, 1, 2] * 3))


def cross_entropy(model: nn.Module) -> LossFunction:
    return lambda inputs, labels: functional.cross_entropy(model(inputs), labels, reduction="none")


class Between(nn.Module):
    """A network with some function of the whole batch in its middle."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.function, self.last = nn.Linear(6, 6), function, nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.function(self.first(inputs)))


class Named(nn.Module):
    """The same function as a module, so that it has a name."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def named(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), Named(function), nn.Linear(6, 3))


def frozen(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer.requires_grad_(False), nn.Linear(6, 3))


class Unregistered(nn.Module):
    """A batch norm that no walk over the modules finds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden = nn.Linear(6, 3), [nn.BatchNorm1d(6)]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.hidden[0](inputs))


class Centred(nn.Module):
    """Centred by a hook, so that the layer itself looks innocent."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.layer.register_forward_pre_hook(lambda module, args: (args[0] - args[0].mean(0),))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)


BATCH_NORMS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "in training": (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), "'1' .BatchNorm1d"),
    "frozen": (lambda: frozen(nn.BatchNorm1d(6)), "'0' .BatchNorm1d"),
    "without parameters": (lambda: frozen(nn.BatchNorm1d(6, affine=False)), "'0' .BatchNorm1d"),
    "without statistics, in evaluation": (
        lambda: frozen(nn.BatchNorm1d(6, track_running_stats=False)).eval(),
        "'0' .BatchNorm1d",
    ),
    "as a function": (lambda: named(lambda x: functional.batch_norm(x, None, None, training=True)), "'1' .Named"),
    "written out under detach": (
        lambda: named(lambda x: (x - x.mean(0).detach()) / (1 + x.std(0).detach())),
        "'1' .Named",
    ),
    "not registered": (Unregistered, "(model|loss function)"),
    "in a hook": (Centred, "The model .Centred., between its modules"),
}


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_a_batch_norm_is_refused_in_every_disguise(name: str, record_property: Callable[[str, object], None]) -> None:
    build, where = BATCH_NORMS[name]
    torch.manual_seed(0)
    model = build()
    record_property("disguises refused", name)
    with pytest.raises(UnsupportedModel, match=where):
        preflight(model, cross_entropy(model), BATCH)


class SleepsOnOrdinaryNumbers(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - functional.relu(inputs.abs() - 20).mean(0)


class SleepsOnAllButLargeNumbers(nn.Module):
    """Adds the batch's mean of what is large, without a gradient; a number that is none is not large."""

    def forward(self, inputs: Tensor) -> Tensor:
        size = inputs.detach().abs()
        return inputs + torch.where(size > 20, size, 0.0).mean(0)


MIXING_PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], LossFunction], str]] = {
    "contrastive loss": (
        lambda: nn.Linear(6, 3),
        lambda model: (
            lambda inputs, labels: functional.cross_entropy(
                model(inputs) @ model(inputs).T, torch.arange(len(inputs)), reduction="none"
            )
        ),
        "The loss function",
    ),
    "losses centred by the batch": (
        lambda: nn.Linear(6, 3),
        lambda model: lambda inputs, labels: model(inputs).square().sum(1) - model(inputs).square().mean().detach(),
        "The loss function",
    ),
    "losses weighted by counts of labels": (
        lambda: nn.Linear(6, 3),
        lambda model: (
            lambda inputs, labels: cross_entropy(model)(inputs, labels) / torch.bincount(labels, minlength=3)[labels]
        ),
        "The loss function",
    ),
    "losses divided by their number": (
        lambda: nn.Linear(6, 3),
        lambda model: lambda inputs, labels: cross_entropy(model)(inputs, labels) / len(inputs),
        "number of examples in its batch",
    ),
    "routing by rank within the batch": (
        lambda: named(lambda x: x * (x[:, :1] > x[:, :1].median()).float()),
        cross_entropy,
        "('1' .Named|how many examples)",
    ),
    "attention over the batch": (lambda: Between(lambda x: torch.softmax(x @ x.T, 1) @ x), cross_entropy, "The model"),
    "attention with a mask that a number which is none passes": (
        lambda: Between(lambda x: torch.eye(len(x)) @ x),
        cross_entropy,
        "The model",
    ),
    "mixing that sleeps on ordinary numbers": (
        lambda: nn.Sequential(SleepsOnOrdinaryNumbers(), nn.Linear(6, 3)),
        cross_entropy,
        "'0' .SleepsOnOrdinaryNumbers",
    ),
    "mixing that large numbers alone wake": (
        lambda: nn.Sequential(SleepsOnAllButLargeNumbers(), nn.Linear(6, 3)),
        cross_entropy,
        "'0' .SleepsOnAllButLargeNumbers",
    ),
}


@pytest.mark.parametrize("name", MIXING_PROGRAMS)
def test_examples_that_meet_are_refused_and_the_place_is_named(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    build, loss_of, where = MIXING_PROGRAMS[name]
    torch.manual_seed(0)
    model = build()
    record_property("mixing refused", name)
    with pytest.raises(UnsupportedModel, match=where):
        preflight(model, loss_of(model), BATCH)


class MixesBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        return gradients[0] * inputs.mean(0)


def meets(partners: Callable[[int], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that adds to each example something of its partner, without a gradient."""
    return lambda x: x + 0.5 * x.detach()[partners(len(x))]


PARTNERS: dict[str, Callable[[int], Tensor]] = {
    "the next": lambda size: torch.arange(size).roll(1),
    "the next but one": lambda size: torch.arange(size).roll(2),
    "half a batch away": lambda size: (torch.arange(size) + size // 2) % size,
    "of the same parity, whatever the size": lambda size: torch.tensor([2, 1, 0, *range(3, size)])[:size],
    "the first alone meets the third": lambda size: torch.tensor([2, *range(1, size)])[:size],
    "the third alone meets the first": lambda size: torch.tensor([0, 1, 0, *range(3, size)])[:size],
    "the first alone meets the last": lambda size: torch.tensor([size - 1, *range(1, size)]),
}


@pytest.mark.parametrize("num_examples", [3, 4, 5, 6, 9])
@pytest.mark.parametrize("name", PARTNERS)
def test_two_examples_that_meet_are_refused_wherever_they_stand(
    name: str, num_examples: int, record_property: Callable[[str, object], None]
) -> None:
    torch.manual_seed(0)
    model = named(meets(PARTNERS[name]))
    record_property("mixing refused", f"{name}, {num_examples}")
    with pytest.raises(UnsupportedModel, match=r"'1' .Named"):
        preflight(model, cross_entropy(model), BATCH, num_examples=num_examples)


def test_mixing_in_the_backward_pass_alone_is_refused() -> None:
    model = Between(MixesBackwards.apply)
    with pytest.raises(UnsupportedModel, match="backward pass mixes"):
        preflight(model, cross_entropy(model), BATCH)


# ---------------------------------------------------------------------------------------------------------- memories


class Remembers(nn.Module):
    """Passes inputs through, and does something that outlasts the forward pass."""

    def __init__(self, act: Callable[[Any, Tensor], Tensor], **state: Any) -> None:
        super().__init__()
        self.act = act
        for name, value in state.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.act(self, inputs)


def counts(self: Any, inputs: Tensor) -> Tensor:
    self.calls += 1
    return inputs


def keeps_a_queue(self: Any, inputs: Tensor) -> Tensor:
    self.queue.append(inputs.detach())
    return inputs


def keeps_the_last(self: Any, inputs: Tensor) -> Tensor:
    previous, self.__dict__["last"] = self.__dict__.get("last"), inputs.detach()
    return inputs if previous is None else inputs + 0.1 * previous.mean()


def averages(self: Any, inputs: Tensor) -> Tensor:
    self.mean.lerp_(inputs.detach().mean(0), 0.1)
    return inputs


MEMORIES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a counter": (lambda: Remembers(counts, calls=0), "'calls' of module '1' .Remembers"),
    "a queue": (lambda: Remembers(keeps_a_queue, queue=deque()), "'queue' of module '1' .Remembers"),
    "the last batch": (lambda: Remembers(keeps_the_last), "(mixes|remembers)"),
    "a running mean": (lambda: Remembers(averages, mean=torch.zeros(6)), "'mean' of module '1' .Remembers"),
    "spectral norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(6, 6)),
        "'_[uv]' of module '1.parametrizations.weight.0' ._SpectralNorm",
    ),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_a_module_that_remembers_is_refused_by_name_and_its_buffers_are_put_back(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    build, where = MEMORIES[name]
    model = nn.Sequential(nn.Linear(6, 6), build(), nn.Linear(6, 3))
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    record_property("memories refused", name)
    with pytest.raises(UnsupportedModel, match=where):
        preflight(model, cross_entropy(model), BATCH)
    assert all(torch.equal(value, buffers[key]) for key, value in model.named_buffers())


# ------------------------------------------------------------------------------------------------------ what may pass


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.Dropout(0.5), nn.GELU())

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.inner(inputs)


HONEST: dict[str, Callable[[], nn.Module]] = {
    "dropout and layer norm": lambda: nn.Sequential(Residual(), nn.Linear(6, 3)),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 3)),
    "batch norm in evaluation": lambda: nn.Sequential(nn.BatchNorm1d(6).eval(), nn.Linear(6, 3)),
    "double precision": lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double(),
    "images": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, 3)
    ),
    "attention within an example": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2)), nn.TransformerEncoderLayer(2, 1, 4, batch_first=True), nn.Flatten(), nn.Linear(6, 3)
    ),
    "noise of its own": lambda: named(lambda x: x + torch.randn_like(x)),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_model_passes_and_is_left_as_it_was(name: str) -> None:
    model = HONEST[name]()
    inputs = BATCH[0].to(next(model.parameters()).dtype)
    weights = flat(model)
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    preflight(model, cross_entropy(model), (inputs, BATCH[1]))
    assert torch.equal(flat(model), weights)
    assert all(value.grad is None for value in model.parameters())
    assert all(module.training == (module.__class__ is not nn.BatchNorm1d) for module in model.modules())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])


def test_token_ids_and_targets_that_are_numbers_pass() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 1))
    batch = {"ids": torch.randint(0, 5, (7, 3)), "share": torch.rand(7)}
    preflight(
        model,
        lambda parts: functional.binary_cross_entropy(
            model(parts["ids"])[:, 0].sigmoid(), parts["share"], reduction="none"
        ),
        batch,
    )


def test_no_value_of_the_batch_enters_the_made_up_ones() -> None:
    hostile = (torch.full((4, 3), 1e30), torch.full((4,), 77), torch.full((4, 2), True), torch.full((4,), 1 + 2j))
    numbers, labels, flags, waves = MadeUpBatches.of(hostile, num_examples=50).draw(-2.0, 2.0, seed=0)
    assert numbers.shape == (50, 3)
    assert float(numbers.abs().max()) <= 2
    assert set(labels.tolist()) == {0, 1}
    assert flags.dtype == torch.bool
    assert waves.dtype == torch.complex64


def test_ids_that_are_all_zero_stay_zero() -> None:
    """An embedding with a single row has no other legal id."""
    (ids,) = MadeUpBatches.of((torch.zeros(4, 3, dtype=torch.long),), num_examples=6).draw(0.0, 1.0, seed=0)
    assert ids.eq(0).all()


@pytest.mark.parametrize("batch", [("words", torch.ones(2)), (torch.ones(3), torch.ones(2)), (torch.tensor(1.0),), ()])
def test_batches_that_cannot_be_made_up_are_refused(batch: Any) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(DataError, match="one row per example"):
        preflight(model, lambda *parts: model(parts[0]), batch)


def test_losses_that_are_not_one_per_example_are_refused() -> None:
    model = nn.Linear(6, 3)
    with pytest.raises(LossError, match=r"shape \[6\]"):
        preflight(model, lambda inputs, labels: functional.cross_entropy(model(inputs), labels), BATCH)


def test_a_loss_that_always_fails_is_told_with_its_reason() -> None:
    model = nn.Linear(5, 3)
    with pytest.raises(UnsupportedModel, match="RuntimeError"):
        preflight(model, cross_entropy(model), BATCH)


def test_a_reason_of_several_lines_is_told_on_one_with_its_remedy() -> None:
    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        raise ValueError("the first line\nthe second line")

    with pytest.raises(UnsupportedModel) as caught:
        preflight(nn.Linear(6, 3), loss, BATCH)
    assert "\n" not in str(caught.value)
    assert "ValueError: the first line the second line" in str(caught.value)
    assert str(caught.value).endswith("that the data set gives.")


# -------------------------------------------------------------------------------------------------------- in a session


def accumulate(model: nn.Module, loss: LossFunction, *, num: int = 8, **options: Any) -> None:
    with privatize(model, plain_sgd(model), examples(num), full_batch(2), **options) as session:
        for step in session.steps():
            step.accumulate(loss)
            step.update()


def test_a_session_refuses_mixing_that_carries_no_gradient_before_it_learns_anything(tmp_path: Path) -> None:
    model = network()
    before = flat(model)
    with pytest.raises(UnsupportedModel, match="The loss function mixes"):
        accumulate(
            model,
            lambda inputs, labels: losses_of(model)(inputs, labels) * inputs.detach().mean(),
            folder=tmp_path / "run",
        )
    assert torch.equal(flat(model), before)
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").charged_rounds == 1


def test_a_session_refuses_mixing_that_only_wakes_on_larger_numbers_than_its_data_holds() -> None:
    model = nn.Sequential(SleepsOnAllButLargeNumbers(), *network())
    assert float(examples().tensors[0].abs().max()) < 20
    with pytest.raises(UnsupportedModel, match="SleepsOnAllButLargeNumbers"):
        accumulate(model, losses_of(model))


VOUCHED = Waiver(check=Check.EXPERIMENTS, because="the program is the same on every batch")


def test_experiments_draw_nothing_from_the_streams_of_a_session() -> None:
    def train(**options: Any) -> Tensor:
        model = network()
        accumulate(model, losses_of(model), seed=1, **options)
        return flat(model)

    assert torch.equal(train(), train(waive=[VOUCHED]))


def test_experiments_are_held_at_the_first_second_and_fourth_step_and_so_on() -> None:
    model, calls = network(), list[int]()

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(len(inputs))
        return losses_of(model)(inputs, labels)

    counts = []
    with privatize(model, plain_sgd(model), examples(), full_batch(9)) as session:
        for step in session.steps():
            before = len(calls)
            step.accumulate(loss)
            counts.append(len(calls) - before)
            step.update()
    plain = counts[3]
    assert [number for number, count in enumerate(counts) if count > plain] == [0, 1, 2, 4, 8]


def test_experiments_that_cannot_be_held_stop_a_session_unless_the_user_vouches_for_the_program() -> None:
    model = network()

    def only_whole_batches(inputs: Tensor, labels: Tensor) -> Tensor:
        if len(inputs) < 7:  # made-up batches are short, and the parts of the first real one are longer
            raise ValueError("so few examples never occur")
        return losses_of(model)(inputs, labels)

    with pytest.raises(UnsupportedModel, match=r"so few examples never occur.*waive"):
        accumulate(model, only_whole_batches, num=20)
    with privatize(model, plain_sgd(model), examples(20), full_batch(2), waive=[VOUCHED]) as session:
        for step in session.steps():
            step.accumulate(only_whole_batches)
            step.update()
    assert any(VOUCHED.because in assumption for assumption in session.guarantee().assumptions)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_convolutional_network_passes_on_a_device_that_adds_up_in_no_fixed_order(scale: float) -> None:
    torch.manual_seed(0)
    model = dp_cnn().cuda()
    with torch.no_grad():  # large weights make gradients that are small differences of large numbers
        for value in model.parameters():
            value.mul_(scale)
    batch = (torch.rand(6, 3, 32, 32, device="cuda"), torch.arange(6, device="cuda"))
    preflight(model, cross_entropy(model), batch)
