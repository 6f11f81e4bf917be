"""Finding the physical batch size leaves no trace and stops where it should."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import privet
from privet.errors import ArgumentError, DataError, UnsupportedModel
from privet.training import physical_batch
from privet.training.physical_batch import suggest_physical_batch


class Noisy(nn.Module):
    """A model that draws random numbers and writes to a buffer in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        self.count += torch.rand(2)
        return nn.functional.dropout(self.map(inputs), 0.5)


def losses_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda inputs, labels: nn.functional.cross_entropy(model(inputs), labels, reduction="none")


def batch(size: int = 4) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(size, 3, generator=torch.Generator().manual_seed(0))
    return inputs, torch.arange(size) % 2


def rates(monkeypatch: pytest.MonkeyPatch, by_size: dict[int, float | None]) -> list[int]:
    """Pretend that sizes have these throughputs; None is out of memory. Return the list of sizes asked for."""
    asked: list[int] = []

    def examples_per_second(self: object, batch: tuple[Tensor, Tensor], size: int) -> float | None:
        assert [len(part) for part in batch] == [size, size]
        asked.append(size)
        return by_size[size]

    monkeypatch.setattr(physical_batch._Trial, "examples_per_second", examples_per_second)
    return asked


def test_weights_buffers_gradients_and_random_state_are_left_exactly_as_they_were() -> None:
    model = Noisy()
    model.map.weight.grad = torch.ones(2, 3)
    gradient = model.map.weight.grad
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    size = suggest_physical_batch(model, losses_of(model), batch(), limit=8)
    assert 1 <= size <= 8
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.map.weight.grad is gradient
    assert torch.equal(gradient, torch.ones(2, 3))
    assert model.map.bias.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_an_error_in_the_loss_function_leaves_no_trace_either() -> None:
    model = Noisy()

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        model(inputs)
        raise KeyError("oops")

    with pytest.raises(KeyError, match="oops"):
        suggest_physical_batch(model, losses, batch(), limit=8)
    assert torch.equal(model.count, torch.zeros(2))


def test_sizes_double_up_to_the_limit_and_the_last_one_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = rates(monkeypatch, {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0, 11: 11.0})
    model = nn.Linear(3, 2)
    assert suggest_physical_batch(model, losses_of(model), batch(), limit=11) == 11
    assert asked == [1, 2, 4, 8, 11]


def test_the_smallest_size_that_is_about_as_fast_as_the_best_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = rates(monkeypatch, {1: 10.0, 2: 20.0, 4: 30.0, 8: 31.0, 16: 30.5, 32: 99.0})
    model = nn.Linear(3, 2)
    assert suggest_physical_batch(model, losses_of(model), batch(), limit=64) == 4
    assert asked == [1, 2, 4, 8, 16]


def test_the_search_ends_where_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rates(monkeypatch, {1: 10.0, 2: 20.0, 4: None})
    model = nn.Linear(3, 2)
    assert suggest_physical_batch(model, losses_of(model), batch(), limit=64) == 2


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
    ],
    ids=["device", "python", "processor"],
)
def test_every_kind_of_lack_of_memory_is_recognised(error: Exception) -> None:
    model = nn.Linear(3, 2)

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        if len(inputs) > 2:
            raise error
        return losses_of(model)(inputs, labels)

    assert suggest_physical_batch(model, losses, batch(), limit=64) <= 2


def test_one_example_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rates(monkeypatch, {1: None})
    model = nn.Linear(3, 2)
    with pytest.raises(torch.OutOfMemoryError, match="one example"):
        suggest_physical_batch(model, losses_of(model), batch(), limit=4)


def test_other_errors_are_not_taken_for_lack_of_memory() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(RuntimeError, match="shapes"):
        suggest_physical_batch(model, losses_of(model), batch(), limit=4)


def test_what_a_session_would_refuse_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with pytest.raises(UnsupportedModel, match="mixes"):
        suggest_physical_batch(model, losses_of(model), batch(), limit=4)
    model = nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match="limit"):
        suggest_physical_batch(model, losses_of(model), batch(), limit=0)
    with pytest.raises(DataError, match="number of rows"):
        suggest_physical_batch(model, losses_of(model), (torch.zeros(3, 3), torch.zeros(2)), limit=4)


def test_it_is_part_of_the_package() -> None:
    assert privet.suggest_physical_batch is suggest_physical_batch
