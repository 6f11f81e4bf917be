"""Low-rank adapters: they begin as nothing, train alone, merge exactly, and are named as PEFT names them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import privet as pv
from privet.datasets.arrays import ArrayDataset
from privet.errors import ArgumentError
from privet.models.adapters import AdaptedLinear, adapter_weights, add_adapters, load_adapter_weights, merge_adapters


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(6, 6), nn.Linear(6, 5, bias=False)
        self.norm = nn.LayerNorm(6)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.value(torch.tanh(self.query(self.norm(inputs))))
        return out


def body() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), nn.Linear(5, 4))


def disturbed(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in adapter_weights(module).values():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return module


INPUTS = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(2))


def test_a_fresh_adapter_changes_nothing() -> None:
    module = body()
    before = module(INPUTS)
    add_adapters(module, rank=2, scale=3.0)
    torch.testing.assert_close(module(INPUTS), before, atol=0, rtol=0)


def test_only_the_adapters_are_trained() -> None:
    module = body()
    assert add_adapters(module, rank=2) == ("0.query", "0.value", "1")
    trained = {name for name, value in module.named_parameters() if value.requires_grad}
    assert trained == {f"{layer}.lora_{part}.weight" for layer in ("0.query", "0.value", "1") for part in "AB"}


def test_targets_name_the_layers_by_their_last_parts() -> None:
    module = body()
    assert add_adapters(module, rank=1, targets=("value",)) == ("0.value",)
    assert isinstance(module[0].query, nn.Linear)  # type: ignore[union-attr]


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_a_merged_model_computes_the_same_and_has_its_old_names(scale: float) -> None:
    module = body()
    names = set(module.state_dict())
    add_adapters(module, rank=2, scale=scale)
    expected = disturbed(module)(INPUTS)
    merge_adapters(module)
    torch.testing.assert_close(module(INPUTS), expected)
    assert set(module.state_dict()) == names
    assert not any(isinstance(part, AdaptedLinear) for part in module.modules())


def test_weights_travel_under_the_names_of_peft() -> None:
    first, second = body(), body()
    for module in (first, second):
        add_adapters(module, rank=2)
    weights = {name: value.clone() for name, value in adapter_weights(disturbed(first)).items()}
    assert "base_model.model.0.query.lora_A.weight" in weights
    assert weights["base_model.model.0.value.lora_B.weight"].shape == (5, 2)
    load_adapter_weights(second, weights)
    torch.testing.assert_close(first(INPUTS), second(INPUTS), atol=0, rtol=0)


def test_weights_of_other_adapters_are_refused_and_change_nothing() -> None:
    module, other = body(), body()
    add_adapters(module, rank=2)
    add_adapters(other, rank=3)
    before = copy.deepcopy(module.state_dict())
    for weights in (adapter_weights(disturbed(other)), {}):
        with pytest.raises(ArgumentError, match="not those of this module's adapters"):
            load_adapter_weights(module, weights)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_mistakes_are_told() -> None:
    module = body()
    with pytest.raises(ArgumentError, match="No linear layer"):
        add_adapters(module, rank=2, targets=("key",))
    add_adapters(module, rank=2)
    with pytest.raises(ArgumentError, match="adapters already"):
        add_adapters(module, rank=2)
    with pytest.raises(ArgumentError, match="rank"):
        AdaptedLinear(nn.Linear(2, 2), rank=0)


def test_the_clipped_sum_of_adapters_is_that_of_single_examples() -> None:
    module = body()
    add_adapters(module, rank=2, scale=4.0)
    disturbed(module)
    labels = torch.tensor([0, 3, 1])
    weights = [value for value in module.parameters() if value.requires_grad]
    expected = [torch.zeros_like(value) for value in weights]
    for row, label in zip(INPUTS, labels, strict=True):
        loss = functional.cross_entropy(module(row.unsqueeze(0)).mean(1), label.unsqueeze(0))
        found = torch.autograd.grad(loss, weights)
        norm = torch.sqrt(sum((value.square().sum() for value in found), torch.zeros(())))
        for total, value in zip(expected, found, strict=True):
            total += value * min(1.0, 0.05 / float(norm)) / 3
    plan = pv.Plan(
        sampling=pv.sampling.FullBatch(steps=1, expected_batch_size=3),
        clipping=pv.Threshold(norm=0.05),
        noise=pv.Gaussian(noise_multiplier=1e-9),
        delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    )
    optimizer = torch.optim.SGD(weights, lr=1.0)
    before = [value.detach().clone() for value in weights]
    session = pv.privatize(module, optimizer, ArrayDataset(features=INPUTS, labels=labels), plan, seed=0)
    with session:
        for step in session.steps():
            step.accumulate(
                lambda rows, labels: functional.cross_entropy(module(rows).mean(1), labels, reduction="none")
            )
            step.update()
    for old, new, gradient in zip(before, weights, expected, strict=True):
        torch.testing.assert_close(old - new, gradient, atol=1e-6, rtol=1e-4)
