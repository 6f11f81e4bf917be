"""Fabric and Accelerate around the own loop: devices and precision are theirs, batches and steps are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate")
pytest.importorskip("lightning")
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from lightning.fabric import Fabric, seed_everything

import privet as pv
from privet.errors import DataError, LoopError, PlanError, UnsupportedModel
from tests.training.tools import flat

pytestmark = pytest.mark.filterwarnings("ignore")  # advice of both libraries about devices


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def plan(batch_size: float = 4.0) -> pv.Plan:
    return pv.Plan.dpsgd(dataset_size=40, batch_size=batch_size, steps=8, noise_multiplier=1.0, delta=1e-3)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def data(dtype: torch.dtype = torch.float64) -> TensorDataset:
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def train(model: Any, optimizer: Any, dataset: Any, *, autocast: Any = None, **options: Any) -> pv.Session:
    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if autocast is None:
            return functional.cross_entropy(model(x), y, reduction="none")
        with autocast():
            return functional.cross_entropy(model(x), y, reduction="none")

    with pv.privatize(model, optimizer, dataset, options.pop("plan", plan()), **({"seed": 5} | options)) as private:
        for step in private.steps():
            step.accumulate(losses)
            step.update()
    return private


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


def placed_by(library: str, model: nn.Module) -> nn.Module:
    if library == "fabric":
        fabric = Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        return fabric.to_device(model)
    return Accelerator(cpu=True).prepare_model(model, evaluation_mode=True)


@pytest.mark.parametrize("batch_size", [4.0, 0.5], ids=["usual batches", "empty ones among them"])
@pytest.mark.parametrize("library", ["fabric", "accelerate"])
def test_a_job_ends_with_the_weights_of_the_own_loop_and_its_ledger_equals_the_plan(
    library: str, batch_size: float
) -> None:
    theirs, own = placed_by(library, network()), network()
    private = train(theirs, sgd(theirs), data(), plan=plan(batch_size))
    train(own, sgd(own), data(), plan=plan(batch_size))
    assert torch.equal(flat(theirs), flat(own))
    assert private.is_complete
    assert private.guarantee().epsilon == plan(batch_size).guarantee().epsilon


@pytest.mark.parametrize("library", ["fabric", "accelerate"])
def test_a_job_in_bf16_ends_with_the_weights_of_the_own_loop_under_the_same_autocast(library: str) -> None:
    theirs, own = network(torch.float32), network(torch.float32)
    if library == "fabric":
        fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
        theirs, autocast = fabric.to_device(theirs), fabric.autocast
    else:
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        autocast = accelerator.autocast
    train(theirs, sgd(theirs), data(torch.float32), autocast=autocast)
    train(own, sgd(own), data(torch.float32), autocast=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert torch.equal(flat(theirs), flat(own))


@pytest.mark.parametrize("seed", [set_seed, lambda number: seed_everything(number, verbose=False)], ids=["set", "all"])
def test_their_seeds_change_neither_batches_nor_noise(seed: Any) -> None:
    weights, sizes = [], []
    for _ in range(2):
        seed(0)
        model, told = network(), []
        train(model, sgd(model), data(), seed=None, telemetry=lambda values, told=told: told.append(values.batch_size))
        weights.append(flat(model))
        sizes.append(told)
    assert not torch.equal(*weights)
    assert sizes[0] != sizes[1]


@pytest.mark.parametrize("even", [True, False], ids=["even batches", "uneven ones"])
def test_a_prepared_loader_is_refused(even: bool) -> None:
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=even))
    model = network()
    with pytest.raises(DataError, match="own sampler"):
        train(model, sgd(model), accelerator.prepare(DataLoader(data(), batch_size=4)))
    fabric = Fabric(accelerator="cpu", devices=1)
    with pytest.raises(DataError, match="cannot be sampled by index"):
        train(model, sgd(model), fabric.setup_dataloaders(DataLoader(data(), batch_size=4)))


def test_a_prepared_optimizer_is_refused() -> None:
    model = network()
    with pytest.raises(PlanError, match="AcceleratedOptimizer"):
        train(model, Accelerator(cpu=True).prepare(sgd(model)), data())


def test_a_model_that_was_wrapped_for_several_processes_is_refused() -> None:
    model = network()
    wrapped = nn.DataParallel(model)
    with pytest.raises(UnsupportedModel, match="plain module"):
        train(wrapped, sgd(model), data())


def test_their_backward_and_step_inside_a_session_are_refused() -> None:
    accelerator, model = Accelerator(cpu=True), network()
    optimizer = sgd(model)
    prepared = accelerator.prepare(optimizer)
    with pv.privatize(model, optimizer, data(), plan(), seed=5) as private:
        for _step in private.steps():
            accelerator.backward(model(data().tensors[0]).mean())
            with pytest.raises(LoopError, match="outside a private step"):
                prepared.step()
            break
