from __future__ import annotations

import pytest
import torch

from benchmarks.models import WORKLOADS, Images, Scale, Tokens, losses_of
from privet.models import count_parameters

SIZES = {
    "mnist": 26_010,
    "dpcnn": 550_570,
    "mlp": 795_010,
    "lstm": 1_118_018,
    "wrn16_4": 2_748_890,
    "resnet18": 11_173_962,
    "vit_s": 22_049_896,
    "gpt2": 162_643_968,
}


@pytest.mark.parametrize("name", SIZES)
def test_every_model_has_its_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = WORKLOADS[name].sizes[Scale.ACCELERATOR].build()
    assert count_parameters(model) == SIZES[name]


def test_there_are_eight_models_each_at_every_scale() -> None:
    assert set(WORKLOADS) == set(SIZES)
    assert all(set(workload.sizes) == set(Scale) for workload in WORKLOADS.values())


def test_resnet_keeps_its_in_place_activations() -> None:
    with torch.device("meta"):
        model = WORKLOADS["resnet18"].sizes[Scale.PROCESSOR].build()
    assert any(isinstance(module, torch.nn.ReLU) and module.inplace for module in model.modules())


def test_token_frequencies_fall_as_one_over_the_rank() -> None:
    ids, _ = Tokens(length=4000, vocabulary=100, num_classes=2).draw(20, torch.Generator().manual_seed(0))
    counts = torch.bincount(ids.flatten(), minlength=100).double()
    shares = counts / counts.sum()
    ranks = torch.arange(1, 101, dtype=torch.float64)
    expected = torch.log1p(1 / ranks) / torch.log(torch.tensor(101.0, dtype=torch.float64))
    assert ids.min() >= 0
    assert ids.max() < 100
    torch.testing.assert_close(shares, expected, rtol=0.1, atol=5e-4)


def test_the_label_of_a_token_is_the_token_that_follows() -> None:
    ids, labels = Tokens(length=7, vocabulary=11).draw(3, torch.Generator().manual_seed(0))
    assert ids.shape == labels.shape == (3, 7)
    assert torch.equal(ids[:, 1:], labels[:, :-1])


def test_the_same_generator_state_draws_the_same_examples() -> None:
    data = Images(channels=1, side=4)
    first, again = (data.draw(3, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_the_loss_of_a_sequence_is_the_mean_over_its_positions() -> None:
    outputs, labels = torch.randn(2, 3, 5), torch.randint(0, 5, (2, 3))
    expected = torch.stack([losses_of(outputs[:, place], labels[:, place]) for place in range(3)]).mean(0)
    torch.testing.assert_close(losses_of(outputs, labels), expected)
