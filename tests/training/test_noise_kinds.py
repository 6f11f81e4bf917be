"""Every kind of noise through a whole session: what is charged is what was planned, and the ledger says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD

from privet.errors import PlanError
from privet.mechanism.adaptive_noise import AdaptiveGaussian, PastGradients, ReleasedSquares
from privet.mechanism.clipping import Threshold
from privet.mechanism.geometry import Factored
from privet.mechanism.grouping import PerLayer
from privet.mechanism.laplace import L2Laplace, ProductLaplace
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.optimal_laplace import optimal_block_l2
from privet.mechanism.sampling import Poisson
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian
from privet.plan import Plan
from privet.training.optimizers import DPAdam
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

SIZE = 4 * 5 + 5 + 5 * 3 + 3
UNITS = Factored(
    rows=((1.0, 2.0, 1.0, 0.5, 1.0), (1.0,), (1.0, 0.3, 1.0), (2.0,)),
    columns=((0.2, 1.0, 1.0, 3.0), (1.0,), (1.0,), (1.0,)),
)
KINDS: dict[str, Noise] = {
    "elliptical": EllipticalGaussian(geometry=UNITS, noise_multiplier=1.5),
    "preconditioned": EllipticalGaussian(geometry=UNITS, preconditioning=1.0, noise_multiplier=1.5),
    "groupwise": GroupwiseGaussian(noise_multiplier=1.5),
    "learned from squares": AdaptiveGaussian(learning=ReleasedSquares(every=2), noise_multiplier=1.5),
    "learned from history": AdaptiveGaussian(learning=PastGradients(first=1, every=1), noise_multiplier=1.5),
    "l2 laplace": L2Laplace(num_coordinates=SIZE, noise_multiplier=1.5),
    "product laplace": ProductLaplace(sizes=(1.0,) * 20 + (2.0,) * (SIZE - 20), noise_multiplier=1.5),
    "block norm": optimal_block_l2([1.0 + i for i in range(SIZE)], epsilon=0.5),
}
PLAN = Plan(
    sampling=Poisson(rate=0.25, steps=4, expected_batch_size=8),
    clipping=Threshold(norm=1.0),
    noise=Gaussian(noise_multiplier=1.5),
    delta=1e-4,
    adjacency=Adjacency.ADD_REMOVE,
    unit=Unit.RECORD,
    grouping=PerLayer(),
)


def model_and_data() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, list(zip(torch.randn(32, 4), torch.arange(32) % 3, strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_a_session_charges_what_its_plan_announced(name: str) -> None:
    plan = replace(PLAN, noise=KINDS[name])
    model, data = model_and_data()
    before = torch.cat([value.detach().reshape(-1).clone() for value in model.parameters()])
    with privatize(
        model, SGD(model.parameters(), lr=0.1), data, plan, performance=Performance(physical_batch_size=5), seed=0
    ) as session:
        for step in session.steps():
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
    after = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    assert bool((before != after).all()), "every coordinate got noise"
    assert session.guarantee().epsilon == plan.guarantee().epsilon
    assert Plan.from_dict(plan.to_dict()) == plan
    words = " ".join(plan.assumptions)
    assert ("Laplace" in words) == (name in ("l2 laplace", "product laplace", "block norm"))


def test_shaped_noise_costs_what_plain_noise_of_its_multiplier_costs() -> None:
    plain = PLAN.guarantee().epsilon
    for name in ("elliptical", "preconditioned", "groupwise", "learned from squares", "learned from history"):
        assert replace(PLAN, noise=KINDS[name]).guarantee().epsilon == plain
    assert replace(PLAN, noise=KINDS["l2 laplace"]).guarantee().epsilon == pytest.approx(plain, rel=0.1)


def test_optimizers_that_need_one_noise_size_refuse_shaped_noise() -> None:
    model, data = model_and_data()
    plan = replace(PLAN, noise=KINDS["elliptical"])

    def train() -> None:
        with privatize(
            model, DPAdam(model.parameters()), data, plan, performance=Performance(physical_batch_size=32), seed=0
        ) as session:
            for step in session.steps():
                step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
                step.update()

    with pytest.raises(PlanError, match="every coordinate"):
        train()


def test_units_made_for_another_model_are_refused_before_data_is_read() -> None:
    _, data = model_and_data()
    other = nn.Linear(4, 3)
    plan = replace(PLAN, noise=KINDS["elliptical"])
    session = privatize(other, SGD(other.parameters(), lr=0.1), data, plan)
    with pytest.raises(PlanError, match="parameters"):
        session.__enter__()
