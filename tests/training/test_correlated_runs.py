"""Sessions with correlated noise: charges by cycles, breaks and restarts, checkpoints without noise, optimizers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from privet.accounting.ledger import Ledger
from privet.errors import LoopError
from privet.mechanism import correlated_noise
from privet.mechanism.changing_clipping import AdaptiveQuantile
from privet.mechanism.correlated_noise import BandedGaussian, BandedInverseGaussian, CorrelatedNoise
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Sampling
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.checkpoint import load_checkpoint
from privet.training.optimizers import DPAdam
from privet.training.start import privatize
from privet.vocabulary import Adjacency
from tests.training.tools import examples, flat, network, plain_sgd, plan_of, poisson, run, walk

BANDED = BandedGaussian.square_root(bands=4).with_multiplier(1.0)
ROWS = np.sqrt(np.cumsum(BANDED.weights(12) ** 2))


def cyclic_poisson(cycles: int = 3, *, groups: int = 4, noise: CorrelatedNoise = BANDED) -> Plan:
    sampling = CyclicPoisson(groups=groups, rate=0.8, cycles=cycles, expected_batch_size=2.0)
    return replace(plan_of(sampling), noise=noise)


def fixed_order(noise: CorrelatedNoise, sampling: Sampling | None = None) -> Plan:
    cyclic = sampling or Cyclic(batches=4, epochs=3, expected_batch_size=2.0)
    return replace(plan_of(cyclic, adjacency=Adjacency.ZERO_OUT), noise=noise)


class Listening(SGD):
    """Plain SGD that hears how noisy its gradients are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.heard: list[float] = []

    def note_noise(self, noise_std: float) -> None:
        self.heard.append(noise_std)


def test_a_cycle_is_charged_once_before_its_first_step() -> None:
    model, plan = network(), cyclic_poisson(cycles=3)
    with privatize(model, plain_sgd(model), examples(), plan) as session:
        for step in session.steps():
            assert session.ledger.charged_rounds == step.index // 4 + 1
            walk(step, model)
            step.update()


def test_a_whole_run_is_charged_as_planned() -> None:
    model, plan = network(), cyclic_poisson(cycles=3)
    with privatize(model, plain_sgd(model), examples(), plan) as session:
        assert run(session, model) == plan.num_steps == 12
    assert session.ledger.charged == [(plan.round_event, 3)]
    assert session.guarantee().epsilon == plan.guarantee().epsilon


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 9, 12])
def test_a_run_that_stops_early_pays_for_the_cycles_it_began(steps: int, tmp_path: Path) -> None:
    model, plan = network(), cyclic_poisson(cycles=3)
    with privatize(model, plain_sgd(model), examples(), plan, folder=tmp_path) as session:
        run(session, model, at_most=steps)
    begun = math.ceil(steps / 4)
    ledger = Ledger.read(tmp_path / "ledger.jsonl")
    assert ledger.charged == [(plan.round_event, begun)]
    sampling = replace(plan.sampling, cycles=begun)  # type: ignore[type-var]
    assert plan.account(ledger).epsilon == replace(plan, sampling=sampling).guarantee().epsilon


def test_the_optimizer_is_told_the_length_of_each_row() -> None:
    model, plan = network(), cyclic_poisson(cycles=3)
    optimizer = Listening(model)
    with privatize(model, optimizer, examples(), plan) as session:
        run(session, model)
    assert np.allclose(optimizer.heard, BANDED.scale * ROWS / 2.0)


@pytest.mark.parametrize("steps", [1, 3, 4, 6])
def test_a_new_walk_is_a_new_mechanism_and_a_new_cycle(steps: int) -> None:
    model, plan = network(), cyclic_poisson(cycles=4)
    optimizer = Listening(model)
    with privatize(model, optimizer, examples(), plan) as session:
        run(session, model, at_most=steps)
        begun = math.ceil(steps / 4)
        assert run(session, model) == 16 - 4 * begun
    expected = np.append(ROWS[:steps], ROWS[: 16 - 4 * begun])
    assert np.allclose(optimizer.heard, BANDED.scale * expected / 2.0)
    assert session.ledger.charged_rounds == 4


@pytest.mark.parametrize(
    "noise", [BANDED, BandedInverseGaussian.square_root(bands=3, batches=4, epochs=3).with_multiplier(1.0)], ids=str
)
def test_a_resumed_run_begins_a_new_mechanism_and_loses_the_rest_of_a_cycle(
    noise: CorrelatedNoise, tmp_path: Path
) -> None:
    model, plan = network(), fixed_order(noise)
    with privatize(model, plain_sgd(model), examples(), plan, folder=tmp_path, checkpoint_every=1) as session:
        run(session, model, at_most=6)
    checkpoint = load_checkpoint(tmp_path / "checkpoint.safetensors")
    assert checkpoint is not None
    assert checkpoint.noise == {}
    assert not [name for name in checkpoint.tensors if not name.startswith(("model.", "optimizer."))]
    resumed = network(seed=4)
    optimizer = Listening(resumed)
    with privatize(resumed, optimizer, examples(), plan, folder=tmp_path) as session:
        assert run(session, resumed) == 4
    rows = np.sqrt(np.cumsum(noise.weights(4) ** 2))
    assert np.allclose(optimizer.heard, noise.scale * rows / 2.0)
    assert session.ledger.charged == [(plan.round_event, 3)]
    assert session.guarantee().epsilon == plan.guarantee().epsilon


def test_the_steps_of_two_walks_never_alternate() -> None:
    """Else two uses of a record would be closer than the bands, and their shares of the releases would add up."""
    model = network()
    with privatize(model, plain_sgd(model), examples(), cyclic_poisson(), seed=3) as session:
        first, second = session.steps(), session.steps()
        for steps in (first, second):
            step = next(steps)
            walk(step, model)
            step.update()
        with pytest.raises(LoopError, match="another one over"):
            next(first)
        for step in second:
            walk(step, model)
            step.update()
    assert step.index == 11
    assert session.ledger.charged_rounds == 3


def test_a_cycle_planned_for_a_restart_gives_back_the_steps_it_loses(tmp_path: Path) -> None:
    sampling = CyclicPoisson.for_dataset(dataset_size=8, batch_size=2, groups=4, steps=8, restarts=1)
    plan = replace(plan_of(sampling), noise=BANDED)
    assert (plan.num_rounds, plan.num_steps) == (3, 12)
    model = network()
    with privatize(model, plain_sgd(model), examples(), plan, folder=tmp_path, checkpoint_every=1) as session:
        run(session, model, at_most=3)
    with privatize(model, plain_sgd(model), examples(), plan, folder=tmp_path) as session:
        taken = 3 + run(session, model)
    assert taken >= 8
    assert session.ledger.charged_rounds == 3


def test_one_band_and_one_group_train_the_model_of_plain_noise_and_poisson_sampling_bit_for_bit() -> None:
    found = []
    sampling = CyclicPoisson(groups=1, rate=0.5, cycles=6, expected_batch_size=4.0)
    one = BandedGaussian(coefficients=(1.0,), noise_multiplier=1.0)
    for plan in (poisson(steps=6), replace(poisson(), sampling=sampling, noise=one)):
        model = network()
        with privatize(model, plain_sgd(model), examples(), plan, seed=3) as session:
            run(session, model)
        found.append(flat(model))
        assert session.ledger.charged == [(plan.round_event, 6)]
    assert torch.equal(*found)
    assert poisson(steps=6).round_event == replace(poisson(), sampling=sampling, noise=one).round_event


def test_draws_made_again_train_the_model_of_draws_kept_in_memory_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for freely_kept in (correlated_noise.FREELY_KEPT, 0):
        monkeypatch.setattr(correlated_noise, "FREELY_KEPT", freely_kept)
        noise = BandedInverseGaussian.square_root(bands=4, batches=4, epochs=3).with_multiplier(1.0)
        model = network()
        plan = fixed_order(noise)
        with privatize(model, plain_sgd(model), examples(), plan, seed=3) as session:
            run(session, model)
        found.append(flat(model))
    assert torch.equal(*found)


def test_correlated_noise_moves_the_weights_less_than_independent_noise_of_the_same_size() -> None:
    """The end of a run without data is a sum of noise, most of which cancels."""
    plan = cyclic_poisson(cycles=16, noise=BandedGaussian.square_root(bands=4).with_multiplier(1.0))
    sizes = []
    for noise in (BANDED, Gaussian(noise_multiplier=BANDED.scale)):
        model = nn.Linear(200, 50)
        before = flat(model).clone()
        features = torch.zeros(4, 200), torch.zeros(4, dtype=torch.long)
        data = torch.utils.data.TensorDataset(*features)
        made = replace(plan, noise=noise)
        with privatize(model, SGD(model.parameters(), lr=0.1), data, made, seed=1) as session:
            for step in session.steps():
                step.accumulate(lambda inputs, labels, model=model: model(inputs).sum(1) * 0.0)
                step.update()
        sizes.append(float((flat(model) - before).square().mean()))
    steps = plan.num_steps
    response = np.cumsum(BANDED.weights(steps))
    assert sizes[0] / sizes[1] == pytest.approx(float(np.square(response).sum()) / steps, rel=0.1)


def test_momentum_averages_schedules_and_adam_go_with_correlated_noise() -> None:
    for make in (
        lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda model: DPAdam(model.parameters(), lr=0.01),
    ):
        model = network()
        optimizer = make(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        with privatize(model, optimizer, examples(), cyclic_poisson(), averaging=ExponentialAverage()) as session:
            for step in session.steps():
                for inputs, labels in step.microbatches():
                    step.backward(nn.functional.cross_entropy(model(inputs), labels, reduction="none"))
                step.update()
                schedule.step()
        assert session.guarantee().epsilon == cyclic_poisson().guarantee().epsilon


def test_clipping_that_learns_its_bound_is_charged_within_the_cycle() -> None:
    clipping = AdaptiveQuantile(norm=1.0, count_noise_std=5.0, quantile=0.5, learning_rate=0.3)
    plan = replace(cyclic_poisson(), clipping=clipping)
    model = network()
    with privatize(model, plain_sgd(model), examples(), plan) as session:
        assert run(session, model) == 12
    assert session.ledger.charged == [(plan.round_event, 3)]
