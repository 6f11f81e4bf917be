from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from privet.effects.mitigation import charged_for_group_rates, group_weighted
from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson
from privet.plan import Plan
from privet.vocabulary import Adjacency, Unit


def _plan(sampling: Poisson | FullBatch) -> Plan:
    return Plan(
        sampling=sampling,
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )


POISSON = Poisson(rate=0.01, steps=100, expected_batch_size=10)


def _losses(inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(inputs, targets, reduction="none")


def _by_label(inputs: Tensor, targets: Tensor) -> Tensor:
    return targets


def test_every_loss_is_multiplied_by_the_weight_of_its_own_group() -> None:
    inputs, labels = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1, 0])
    found = group_weighted(_losses, _by_label, (1.0, 3.0))(inputs, labels)
    assert torch.allclose(found, _losses(inputs, labels) * torch.tensor([1.0, 3.0])[labels])
    assert group_weighted(_losses, _by_label, (0.0, 1.0))(inputs, labels)[0] == 0


@pytest.mark.parametrize("count", [1, 8])
def test_a_weighted_training_has_the_guarantee_of_the_plain_one_and_no_gradient_beyond_the_bound(count: int) -> None:
    from privet.training.performance import Performance
    from privet.training.start import privatize

    inputs, labels = 100 * torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    plan = _plan(Poisson(rate=1.0, steps=1, expected_batch_size=1.0))
    quiet = Plan(
        sampling=plan.sampling,
        clipping=plan.clipping,
        noise=Gaussian(noise_multiplier=1e-6),
        delta=plan.delta,
        adjacency=plan.adjacency,
        unit=plan.unit,
    )
    model = torch.nn.Linear(2, 2)
    before = torch.cat([value.detach().flatten().clone() for value in model.parameters()])
    weighted = group_weighted(lambda x, y: _losses(model(x), y), lambda x, y: y, (1.0, 1e6))
    data = torch.utils.data.TensorDataset(inputs[-count:], labels[-count:])
    session = privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        data,
        quiet,
        performance=Performance(physical_batch_size=8),
        seed=0,
    )
    with session:
        for step in session.steps():
            step.accumulate(weighted)
            step.update()
    after = torch.cat([value.detach().flatten() for value in model.parameters()])
    # However large the weight, one record moves the sum by the bound at most.
    assert float((after - before).norm()) <= count * 1.0 + 1e-3
    assert session.guarantee().epsilon == quiet.guarantee().epsilon


def test_rates_of_groups_are_charged_at_the_highest() -> None:
    plan = _plan(POISSON)
    charged = charged_for_group_rates(plan, (0.01, 0.05))
    assert charged.sampling == Poisson(rate=0.05, steps=100, expected_batch_size=10)
    assert charged.guarantee().epsilon > plan.guarantee().epsilon
    assert charged_for_group_rates(plan, (0.01, 0.01)) == plan
    assert charged_for_group_rates(plan, (0.01, 0.0)) == plan


def test_rates_and_weights_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ArgumentError, match="FullBatch"):
        charged_for_group_rates(_plan(FullBatch(steps=3, expected_batch_size=10)), (0.1,))
    for rates in ((), (0.0,), (1.5,), (float("nan"),)):
        with pytest.raises(ArgumentError):
            charged_for_group_rates(_plan(POISSON), rates)
    for weights in ((), (-1.0,), (float("nan"),), (float("inf"),)):
        with pytest.raises(ArgumentError):
            group_weighted(_losses, _by_label, weights)
