"""Global clipping is a clipping rule like any other: other noises and optimizers take it at the same cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer, RMSprop

from privet.datasets.arrays import ArrayDataset
from privet.mechanism.clipping import KeepOrDrop, Threshold
from privet.mechanism.correlated_noise import BandedGaussian
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.plan import Plan
from privet.training.fitting import fit_privately
from privet.training.optimizers import DPAdam
from privet.vocabulary import Adjacency, Unit

LOCAL, GLOBAL = Threshold(norm=1.0), KeepOrDrop(norm=1.0, cutoff=20.0)
# The matrix mechanism with bands is what is left of the tree of DP-FTRL when its noise is optimised.
FOLLOWING_THE_LEADER = Plan(
    sampling=CyclicPoisson(groups=4, rate=0.5, cycles=5, expected_batch_size=16.0),
    clipping=LOCAL,
    noise=BandedGaussian.square_root(bands=4).with_multiplier(0.5),
    delta=1e-5,
    adjacency=Adjacency.ADD_REMOVE,
    unit=Unit.RECORD,
)


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def trained(plan: Plan, build: type[Optimizer] | type[DPAdam], rate: float) -> tuple[float, float]:
    """Return the mean loss before training less that after it, and epsilon."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(128, 5, generator=generator)
    labels = (features[:, 0] > 0).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(5, 2)
    before = float(losses(model(features), labels).mean().detach())
    optimizer = build(model.parameters(), lr=rate)
    data = ArrayDataset(features=features, labels=labels)
    found = fit_privately(model, optimizer, data, plan, losses, seed=0)
    return before - float(losses(model(features), labels).mean().detach()), found.epsilon


@pytest.mark.parametrize(
    ("build", "rate"), [(SGD, 20.0), (RMSprop, 0.05), (DPAdam, 0.05)], ids=["SGD", "RMSprop", "Adam"]
)
def test_global_clipping_learns_under_the_noise_of_ftrl_at_the_cost_of_local_clipping(
    build: type[Optimizer], rate: float
) -> None:
    gained, epsilon = trained(replace(FOLLOWING_THE_LEADER, clipping=GLOBAL), build, rate)
    assert gained > 0.05
    assert epsilon == FOLLOWING_THE_LEADER.guarantee().epsilon
