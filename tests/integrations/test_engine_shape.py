"""A script with an engine of Opacus' shape: the session of privet behind it, and refusals of what the shape invites."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import privet as pv
from privet.errors import ArgumentError, DataError, LoopError
from privet.integrations import PrivacyEngine
from tests.training.tools import flat


def data() -> TensorDataset:
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def made(**changes: Any) -> tuple[PrivacyEngine, nn.Module, Any, Any]:
    model, engine = network(), PrivacyEngine()
    given: dict[str, Any] = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "data_loader": DataLoader(data(), batch_size=8),
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "epochs": 2,
        "dataset_size": 40,
        "delta": 1e-3,
        "seed": 5,
    }
    return engine, *engine.make_private(**(given | changes))


def train(model: Any, optimizer: Any, loader: Any, epochs: int = 2) -> None:
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            optimizer.backward(functional.cross_entropy(model(inputs), labels, reduction="none"))
            optimizer.step()


@pytest.mark.parametrize("physical", [3, 256], ids=["many physical batches", "one"])
@pytest.mark.parametrize("batch_size", [8, 1], ids=["usual batches", "empty ones among them"])
def test_a_loop_ends_with_the_weights_of_the_own_loop_and_its_ledger_equals_the_plan(
    batch_size: int, physical: int
) -> None:
    performance = pv.Performance(physical_batch_size=physical)
    engine, model, optimizer, loader = made(
        data_loader=DataLoader(data(), batch_size=batch_size), performance=performance
    )
    train(model, optimizer, loader)
    own = network()
    plan = pv.Plan.dpsgd(dataset_size=40, batch_size=batch_size, epochs=2, noise_multiplier=1.0, delta=1e-3)
    sgd = torch.optim.SGD(own.parameters(), lr=0.5)
    with pv.privatize(own, sgd, data(), plan, performance=performance, seed=5) as private:
        for step in private.steps():
            for inputs, labels in step.microbatches():
                step.backward(functional.cross_entropy(own(inputs), labels, reduction="none"))
            step.update()
    assert torch.equal(flat(model), flat(own))
    assert engine.get_epsilon(1e-3) == plan.guarantee().epsilon
    assert engine.guarantee().not_private_because


def test_an_epsilon_is_kept_and_a_third_epoch_hands_out_nothing() -> None:
    model, engine = network(), PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), max_grad_norm=1.0,
        data_loader=DataLoader(data(), batch_size=8), target_epsilon=4.0, target_delta=1e-3, epochs=2, dataset_size=40,
    )  # fmt: skip
    train(model, optimizer, loader)
    before = flat(model)
    train(model, optimizer, loader, epochs=1)
    assert torch.equal(flat(model), before)
    assert 3.9 < engine.get_epsilon(1e-3) <= 4.0
    with pytest.raises(ArgumentError, match="delta"):
        engine.get_epsilon(1e-5)


def test_what_the_shape_invites_is_refused() -> None:
    _, model, optimizer, loader = made()
    inputs, _ = next(iter(loader))
    with pytest.raises(LoopError, match="without privacy"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="scalar"):
        model(inputs).sum(1).backward()  # as in a script whose loss was made one per example, and nothing else
    for words, change in {
        "WeightedRandomSampler": DataLoader(data(), batch_size=8, sampler=WeightedRandomSampler([1.0] * 40, 40)),
        "batch_size": DataLoader(data(), batch_size=None),
    }.items():
        with pytest.raises(DataError, match=words):
            made(data_loader=change)


def test_the_optimizer_behind_it_cannot_step_by_itself() -> None:
    _, model, optimizer, loader = made()
    for inputs, labels in loader:
        functional.cross_entropy(model(inputs), labels).backward()
        with pytest.raises(LoopError, match="outside a private step"):
            optimizer.inner.step()
        break


def test_a_rate_that_goes_by_the_private_number_of_batches_is_refused() -> None:
    _, model, optimizer, loader = made()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer.inner, gamma=0.9)

    def loop() -> None:
        for inputs, labels in loader:
            optimizer.backward(functional.cross_entropy(model(inputs), labels, reduction="none"))
            optimizer.step()
            schedule.step()

    with pytest.raises(LoopError, match="within an epoch"), pytest.warns(UserWarning, match="lr_scheduler"):
        loop()
