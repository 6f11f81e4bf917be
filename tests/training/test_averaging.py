"""Averaged weights: the published recursion, in and out of the model, and across a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from privet.errors import ArgumentError, CheckpointError, LoopError
from privet.training.averaging import ExponentialAverage
from privet.training.session import Session
from privet.training.start import privatize
from tests.training.tools import examples, flat, full_batch, network, plain_sgd, run, walk


def session_of(
    *, folder: Path | None = None, averaging: ExponentialAverage | None, seed: int = 0
) -> tuple[Session, torch.nn.Module]:
    model = network(seed)
    plan = full_batch(12)
    return privatize(model, plain_sgd(model), examples(), plan, folder=folder, averaging=averaging), model


def average_by_hand(iterates: list[Tensor], decay: float) -> Tensor:
    average = iterates[0]
    for step, weights in enumerate(iterates[1:]):
        keep = min(decay, (1 + step) / (10 + step))
        average = keep * average + (1 - keep) * weights
    return average


@pytest.mark.parametrize("decay", [0.15, 0.999])
def test_the_average_is_the_moving_mean_of_the_iterates(decay: float) -> None:
    session, model = session_of(averaging=ExponentialAverage(decay=decay))
    iterates = [flat(model)]
    with session:
        for step in session.steps():
            walk(step, model)
            step.update()
            iterates.append(flat(model))
            with session.averaged():
                assert torch.allclose(flat(model), average_by_hand(iterates, decay), atol=1e-6)
            assert torch.equal(flat(model), iterates[-1])
    with session.averaged():
        assert torch.allclose(flat(model), average_by_hand(iterates, decay), atol=1e-6)


def test_averaging_changes_neither_the_training_nor_its_cost() -> None:
    weights, costs = [], []
    for averaging in (None, ExponentialAverage()):
        model = network()
        with privatize(model, plain_sgd(model), examples(), full_batch(5), averaging=averaging, seed=1) as session:
            run(session, model)
        weights.append(flat(model))
        costs.append(session.guarantee().epsilon)
    assert torch.equal(*weights)
    assert costs[0] == costs[1]


def test_a_resumed_run_goes_on_with_its_average(tmp_path: Path) -> None:
    session, model = session_of(folder=tmp_path, averaging=ExponentialAverage(decay=0.9))
    with session:
        run(session, model, at_most=5)
    with session.averaged():
        kept = flat(model)
    again, model = session_of(folder=tmp_path, averaging=ExponentialAverage(decay=0.9), seed=4)
    with again, again.averaged():
        assert torch.equal(flat(model), kept)
    assert not torch.equal(flat(model), kept)


def test_an_average_cannot_begin_in_the_middle_of_a_run(tmp_path: Path) -> None:
    session, model = session_of(folder=tmp_path, averaging=None)
    with session:
        run(session, model, at_most=5)
    again, _ = session_of(folder=tmp_path, averaging=ExponentialAverage())
    with pytest.raises(CheckpointError, match="holds no average"), again:
        pass


def test_training_on_the_averaged_weights_is_refused() -> None:
    session, model = session_of(averaging=ExponentialAverage())
    with session:
        for step in session.steps():
            walk(step, model)
            before = flat(model)
            with pytest.raises(LoopError, match="Leave the averaged"), session.averaged():
                step.update()
            assert torch.equal(flat(model), before)
            step.update()
            assert not torch.equal(flat(model), before)


def test_nested_blocks_and_sessions_without_an_average_are_refused() -> None:
    session, _ = session_of(averaging=ExponentialAverage())
    with session.averaged(), pytest.raises(LoopError, match="cannot be nested"), session.averaged():
        pass
    session, _ = session_of(averaging=None)
    with pytest.raises(LoopError, match="keeps no average"), session.averaged():
        pass


def test_the_average_can_be_left_in_the_model_after_the_run_only() -> None:
    session, model = session_of(averaging=ExponentialAverage(decay=0.5))
    with session:
        run(session, model)
        with pytest.raises(LoopError, match="after the session"):
            session.adopt_average()
    with session.averaged():
        average = flat(model)
    session.adopt_average()
    assert torch.equal(flat(model), average)
    session, _ = session_of(averaging=None)
    with pytest.raises(LoopError, match="averaging="):
        session.adopt_average()


def test_frozen_parameters_are_left_alone() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    average = ExponentialAverage().start(model)
    assert set(average.tensors()) == {"0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, float("nan"), "0.9"], ids=str)
def test_a_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ArgumentError, match="decay"):
        ExponentialAverage(decay=decay)
