from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.datasets.two_patch import TwoPatch
from privet.effects.feature_to_noise import PatchCell, PatchSetting
from privet.errors import ArgumentError
from privet_research.studies.patch_training import PatchTraining, initial_filters, measure_patches, train_patches
from privet_research.theory.patch_learning import (
    conditions,
    largest_loss_after,
    loss_after,
    output_gap,
    output_increments,
    smallest_loss,
)

SETTING = PatchSetting(dimension=200, num_filters=20, patch_noise_std=0.5, noise_std=0.02, num_examples=400)
CELLS = [PatchCell(feature_size=6.0, share=0.5), PatchCell(feature_size=6.0, share=0.5)]


def test_each_condition_fails_by_itself() -> None:
    assert conditions(SETTING, CELLS, batch_size=100).all_hold
    small = conditions(replace(SETTING, dimension=10), CELLS, batch_size=100)
    assert (small.dimension, small.batch) == (False, True)
    assert not conditions(SETTING, CELLS, batch_size=10).batch
    assert not conditions(replace(SETTING, noise_std=5.0), CELLS, batch_size=100).signal
    assert not conditions(SETTING, [*CELLS, PatchCell(feature_size=6.0, share=1e-4)], batch_size=100).signal
    assert not conditions(replace(SETTING, learning_rate=20.0), CELLS, batch_size=100).step


def test_patches_of_the_demanded_dimension_have_nearly_one_length() -> None:
    generator = torch.Generator().manual_seed(0)
    for dimension in (10, 200):
        squares = torch.randn(400, dimension, generator=generator).square().sum(1) / dimension
        near = bool(((squares > 0.5) & (squares < 1.5)).all())
        setting = replace(SETTING, dimension=dimension, patch_noise_std=1.0)
        assert near == conditions(setting, CELLS, batch_size=100).dimension


def test_a_step_moves_outputs_by_the_predicted_signal_and_noise() -> None:
    task = TwoPatch(dimension=100)
    batch, others = task.draw(100, seed=1), task.draw(50, seed=2)
    filters = initial_filters(1, dimension=100, num_filters=20, seed=0).double()
    inputs = others.inputs.double()
    before = output_gap(filters[0], inputs)
    rate = 1e-4  # so small that hardly a filter changes its sign
    found = output_increments(
        filters[0], batch.inputs.double(), batch.labels, inputs, others.labels,
        learning_rate=rate, clip_norm=1.0, noise_std=3.0,
    )  # fmt: skip
    places = torch.arange(50)

    def moved(noise_std: float, seed: int) -> torch.Tensor:
        training = PatchTraining(learning_rate=rate, batch_size=100, num_steps=1)
        after = train_patches(
            filters, batch.inputs.double()[None], batch.labels[None], training,
            noise_stds=torch.tensor([noise_std], dtype=torch.float64), seed=seed,
        )  # fmt: skip
        return output_gap(after[0], inputs) - before

    plain = moved(0.0, 0)
    assert torch.allclose(plain[places, others.labels], found.signal, rtol=0.05, atol=1e-8)
    assert torch.allclose(plain[places, 1 - others.labels], found.other, rtol=0.05, atol=1e-8)
    # Without noise the own class gains and the other loses, in the mean.
    assert found.signal.mean() > 0 > found.other.mean()
    noisy = torch.stack([moved(3.0, seed)[places, others.labels] for seed in range(200)])
    assert float((noisy.std(0) / found.noise_std).mean()) == pytest.approx(1.0, abs=0.05)


@settings(max_examples=200, deadline=None)
@given(st.floats(-6, 6), st.floats(-1, 1), st.floats(0.1, 1.0))
def test_two_linear_pieces_bound_the_loss_after_an_increment(margin: float, share: float, reach: float) -> None:
    increment = share * reach
    before, after = math.log1p(math.exp(-margin)), math.log1p(math.exp(-margin - increment))
    assert after <= largest_loss_after(before, increment, largest=reach) + 1e-12


def test_the_pieces_are_tight_for_small_increments_and_refuse_larger_ones() -> None:
    before, after = math.log1p(math.exp(-1.0)), math.log1p(math.exp(-1.01))
    gain = before - largest_loss_after(before, 0.01, largest=0.01)
    assert gain == pytest.approx(before - after, rel=0.02)
    with pytest.raises(ArgumentError, match="larger bound"):
        largest_loss_after(1.0, 0.5, largest=0.1)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 5), st.floats(0.01, 1), st.floats(0, 1), st.integers(0, 60))
def test_the_geometric_sum_is_the_recursion(initial: float, contraction: float, added: float, steps: int) -> None:
    loss = initial
    for _ in range(steps):
        loss = (1 - contraction) * loss + added
    assert loss_after(initial, contraction=contraction, added=added, steps=steps) == pytest.approx(loss, abs=1e-9)


def test_no_test_example_of_a_noisy_network_has_a_perfect_loss() -> None:
    task = TwoPatch(dimension=50)
    train, test = task.draw(200, seed=0), task.draw(200, seed=1)
    filters = initial_filters(1, dimension=50, num_filters=10, seed=0).double()
    trained = train_patches(
        filters, train.inputs.double()[None], train.labels[None], PatchTraining(batch_size=50, num_steps=100),
        noise_stds=torch.tensor([0.1], dtype=torch.float64), seed=0,
    )  # fmt: skip
    outcome = measure_patches(trained, test.inputs.double()[None], test.labels[None])
    assert smallest_loss(outcome.losses) > 1e-12
