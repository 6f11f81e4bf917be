"""Ablations are never private, whatever the rest of the plan is, and everything made with them says why."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from privet.errors import ArgumentError, CheckpointError, PlanError
from privet.mechanism.ablations import NoNoise, Unclipped
from privet.mechanism.changing_clipping import Scheduled
from privet.mechanism.clipping import Threshold
from privet.mechanism.epoch_sampling import Shuffle
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.plan import Plan
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from tests.training.tools import examples, flat_gradient, losses_of, network, plain_sgd, run

PLAN = Plan(
    sampling=Poisson(rate=0.5, steps=3, expected_batch_size=4.0),
    clipping=Threshold(norm=1.0),
    noise=Gaussian(noise_multiplier=2.0),
    delta=1e-5,
    adjacency=Adjacency.ZERO_OUT,
    unit=Unit.RECORD,
)
ABLATIONS = {
    "noise without clipping": replace(PLAN, clipping=Unclipped()),
    "clipping without noise": replace(PLAN, noise=NoNoise()),
    "neither": replace(PLAN, clipping=Unclipped(), noise=NoNoise()),
}
each_ablation = pytest.mark.parametrize("name", ABLATIONS)


@each_ablation
@pytest.mark.parametrize(
    "sampling",
    [
        PLAN.sampling,
        FullBatch(steps=3, expected_batch_size=4.0),
        Shuffle(batches=2, epochs=2, expected_batch_size=4.0),
    ],
    ids=repr,
)
def test_no_plan_with_an_ablation_is_private(name: str, sampling: Sampling) -> None:
    plan = replace(ABLATIONS[name], sampling=sampling)
    found = plan.guarantee()
    assert math.isinf(found.epsilon)
    assert str(found).startswith("NOT PRIVATE: ")
    assert found.statement().startswith("No privacy is promised")
    assert found.not_private_because == plan.not_private_because
    assert Plan.from_dict(plan.to_dict()).guarantee() == found


@each_ablation
def test_a_run_with_an_ablation_says_so_and_its_ledger_charges_a_release_that_hides_nothing(name: str) -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), ABLATIONS[name]) as session:
        run(session, model)
    assert math.isinf(session.guarantee().epsilon)
    assert session.guarantee().not_private_because
    assert "non_private" in repr(session.ledger.charged) or "NonPrivate" in repr(session.ledger.charged)


@each_ablation
def test_no_noise_can_be_calibrated_for_an_ablation(name: str) -> None:
    with pytest.raises(PlanError, match="No noise makes this plan private"):
        ABLATIONS[name].calibrated(epsilon=3.0)
    with pytest.raises(PlanError, match="no noise_multiplier"):
        NoNoise().with_multiplier(1.0)


def test_private_plans_are_not_touched() -> None:
    assert PLAN.not_private_because == ()
    assert PLAN.clipping.not_private_because is None
    assert PLAN.noise.not_private_because is None
    assert math.isfinite(PLAN.guarantee().epsilon)


def test_without_noise_the_gradient_is_the_clipped_mean_and_without_clipping_the_plain_one() -> None:
    data = examples()
    sampling = FullBatch(steps=1, expected_batch_size=8.0)
    inputs, labels = data.tensors
    rows = []
    for index in range(8):
        model = network()
        losses_of(model)(inputs[index : index + 1], labels[index : index + 1]).sum().backward()  # type: ignore[no-untyped-call]
        rows.append(flat_gradient(model))
    gradients = torch.stack(rows)
    clipped = gradients * (0.1 / gradients.norm(dim=1, keepdim=True)).clamp_max(1.0)
    expectations = ((Threshold(norm=0.1), clipped), (Unclipped(), gradients))
    for clipping, truth in expectations:
        model = network()
        plan = replace(PLAN, sampling=sampling, clipping=clipping, noise=NoNoise())
        with privatize(model, plain_sgd(model), data, plan) as session:
            run(session, model)
        assert torch.allclose(flat_gradient(model), truth.sum(0) / 8, atol=1e-6)


def test_the_noise_of_unclipped_training_is_a_multiple_of_its_unit() -> None:
    rule = Unclipped(noise_unit=3.0).for_groups(4)
    assert rule.sensitivity.total == pytest.approx(3.0)
    factors = rule.factors(torch.tensor([[0.0, 1e30], [float("inf"), 1.0], [float("nan"), 2.0]]))
    assert factors.tolist() == [[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]


def test_an_ablation_cannot_hide_inside_a_schedule() -> None:
    with pytest.raises(PlanError, match="private rules that do not change during a run"):
        Scheduled(parts=(Threshold(norm=1.0), Unclipped()), switches=(0.5,))


def test_what_makes_no_sense_is_refused() -> None:
    for unit in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="noise_unit"):
            Unclipped(noise_unit=unit)
    with pytest.raises(CheckpointError, match="keeps no state"):
        Unclipped().start(num_groups=1, num_steps=1, expected_batch_size=1.0).restore({"bounds": (1.0,)})
