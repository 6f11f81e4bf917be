"""Masks in whole runs: free at rate zero, shared by all physical batches of a step, and blind to what is secret."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from privet.mechanism.granularity import Coordinates, Kept, Rows
from privet.mechanism.mask_rates import Constant, GradualCooling
from privet.mechanism.masking import FrozenMask, Mask, NoMask, RandomMask
from privet.mechanism.release_masks import RankedMask
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.training.launch.replay import Compiled
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Release
from tests.training.tools import (
    examples,
    flat,
    flat_gradient,
    full_batch,
    losses_of,
    network,
    plain_sgd,
    poisson,
    run,
    walk,
)

MASKS: list[Mask] = [
    RandomMask(schedule=Constant(value=0.5)),
    RandomMask(schedule=GradualCooling(final=0.9), granularity=Rows(), refresh_every=2),
    RankedMask(schedule=Constant(value=0.5), refresh_every=2),
    FrozenMask(rate=0.5),
]
each_mask = pytest.mark.parametrize("mask", MASKS, ids=repr)


def trained(plan: Plan, *, physical_batch_size: int = 256) -> Tensor:
    model = network()
    with privatize(
        model,
        plain_sgd(model),
        examples(),
        plan,
        seed=7,
        performance=Performance(physical_batch_size=physical_batch_size),
    ) as session:
        run(session, model)
    return flat(model)


@pytest.mark.parametrize(
    "mask",
    [RandomMask(schedule=Constant(value=0.0)), RankedMask(schedule=Constant(value=0.0)), FrozenMask(rate=0.0)],
    ids=repr,
)
def test_a_rate_of_zero_is_training_without_a_mask_bit_for_bit(mask: Mask) -> None:
    plan = poisson(steps=6)
    assert torch.equal(trained(replace(plan, mask=mask)), trained(plan))


@each_mask
def test_masked_coordinates_get_neither_signal_nor_noise_and_all_others_get_both(mask: Mask) -> None:
    model, plan = network(), replace(full_batch(steps=8), mask=mask)
    masked_steps = 0
    with privatize(
        model, plain_sgd(model), examples(), plan, performance=Performance(physical_batch_size=3)
    ) as session:
        for step in session.steps():
            before = flat(model)
            walk(step, model)
            step.update()
            keep = torch.ones_like(before, dtype=torch.bool) if step.kept is None else step.kept.coordinates
            masked_steps += step.kept is not None
            assert bool((flat_gradient(model)[~keep] == 0).all())
            assert torch.equal(flat(model)[~keep], before[~keep])
            assert bool((flat_gradient(model)[keep] != 0).all())
    assert masked_steps > 0


@each_mask
def test_how_a_logical_batch_is_cut_changes_neither_mask_nor_sum(mask: Mask) -> None:
    plan = replace(full_batch(steps=6), mask=mask)
    whole = trained(plan)
    for size in (1, 3):
        assert torch.allclose(trained(plan, physical_batch_size=size), whole, atol=1e-5)


@each_mask
def test_one_mask_serves_a_whole_step_also_when_memory_runs_out(mask: Mask) -> None:
    model, plan = network(), replace(full_batch(steps=4), mask=mask)
    calls = 0

    def failing(inputs: Tensor, labels: Tensor) -> Tensor:
        nonlocal calls
        calls += session.steps_taken == 2
        if calls == 2:  # half of the third step is summed by then
            raise torch.OutOfMemoryError("pretended")
        return losses_of(model)(inputs, labels)

    with privatize(
        model, plain_sgd(model), examples(), plan, performance=Performance(physical_batch_size=4)
    ) as session:
        for step in session.steps():
            before = step.kept
            step.accumulate(failing)
            assert step.kept is before
            step.update()
            if before is not None:
                assert bool((flat_gradient(model)[~before.coordinates] == 0).all())
    assert session.physical_batch_size == 2


@each_mask
def test_a_mask_costs_nothing(mask: Mask) -> None:
    plan = poisson(steps=6)
    model = network()
    with privatize(model, plain_sgd(model), examples(), replace(plan, mask=mask)) as session:
        run(session, model)
    assert session.guarantee().epsilon == plan.guarantee().epsilon
    assert replace(plan, mask=mask).hash != plan.hash


def test_a_ranking_depends_on_released_sums_alone() -> None:
    """Two data sets that differ, with noise so large that the released sums agree in the order of their lengths."""
    mask = RankedMask(schedule=Constant(value=0.5), refresh_every=1)
    plan = replace(full_batch(steps=4, norm=1e-9, noise_multiplier=1e6), mask=mask)

    def masks(seed: int) -> list[Kept | None]:
        model, found = network(), []
        with privatize(model, plain_sgd(model), examples(seed=seed), plan, seed=3) as session:
            for step in session.steps():
                found.append(step.kept)
                walk(step, model)
                step.update()
        return found

    for left, right in zip(masks(1), masks(2), strict=True):
        assert (left is None) == (right is None)
        assert left is None or right is None or torch.equal(left.coordinates, right.coordinates)


def test_an_epoch_of_poisson_batches_has_one_mask() -> None:
    model, found = network(), []
    sampling = Poisson(rate=0.25, steps=12, expected_batch_size=2.0)
    plan = replace(poisson(), sampling=sampling, mask=RandomMask(schedule=Constant(value=0.5)))
    with privatize(model, plain_sgd(model), examples(), plan) as session:
        for step in session.steps():
            found.append(step.kept)
            walk(step, model)
            step.update()
    assert [found[step] is found[step - 1] for step in range(1, 12)] == [step % 4 != 0 for step in range(1, 12)]


def test_a_resumed_run_freezes_the_same_coordinates(tmp_path: Path) -> None:
    mask = FrozenMask(rate=0.5, granularity=Coordinates())
    plan, model = replace(full_batch(steps=4), mask=mask), network()
    start = flat(model)
    for _ in range(2):
        with privatize(model, plain_sgd(model), examples(), plan, folder=tmp_path, checkpoint_every=1) as session:
            run(session, model, at_most=2)
    still = flat(model) == start
    assert int(still.sum()) == len(start) // 2


def test_a_resumed_ranking_begins_with_everything_and_goes_on(tmp_path: Path) -> None:
    mask = RankedMask(schedule=Constant(value=0.5), refresh_every=2)
    plan, found = replace(full_batch(steps=8), mask=mask), []
    for _ in range(2):
        model = network()
        with privatize(model, plain_sgd(model), examples(), plan, folder=tmp_path, checkpoint_every=1) as session:
            for number, step in enumerate(session.steps()):
                found.append(step.kept is None)
                walk(step, model)
                step.update()
                if number == 3:
                    break
    assert found[:4] == [True, True, False, False]
    assert found[4:6] == [True, True]


def test_recordings_give_way_to_a_mask_of_rows(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    plan = replace(full_batch(steps=5), mask=RandomMask(schedule=Constant(value=0.5), granularity=Rows()))
    losses = losses_of(model)
    with (
        caplog.at_level(logging.WARNING, logger="privet"),
        privatize(model, plain_sgd(model), examples(), plan, performance=Performance(launch=Compiled())) as session,
    ):
        for step in session.steps():
            step.accumulate(losses)
            step.update()
            assert step.kept is not None
            assert bool((flat_gradient(model)[~step.kept.coordinates] == 0).all())
    assert "mask leaves out whole rows" in caplog.text


def test_no_mask_is_the_default() -> None:
    assert poisson().mask == NoMask()
    assert poisson().release is Release.EVERY_ITERATE
