from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from privet.datasets.two_patch import TwoPatch
from privet.effects.radii import noise_walk_length
from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.training.fitting import fit_privately
from privet.training.performance import Performance
from privet.vocabulary import Adjacency, Unit
from privet_research.studies.patch_training import (
    PatchTraining,
    clipped_mean_gradients,
    initial_filters,
    measure_patches,
    patch_logits,
    train_patches,
)
from privet_research.studies.two_layer_cnn import TwoLayerCnn

TASK = TwoPatch(dimension=12)


def network(filters: torch.Tensor) -> TwoLayerCnn:
    model = TwoLayerCnn(filters.shape[1], num_filters=len(filters) // 2)
    with torch.no_grad():
        model.filters.weight.copy_(filters)
    return model


@pytest.mark.parametrize("clip_norm", [0.05, 0.4, 100.0], ids=["all clipped", "some clipped", "none clipped"])
def test_the_gradient_in_closed_form_equals_the_mean_of_clipped_gradients(clip_norm: float) -> None:
    sample = TASK.draw(40, seed=0)
    filters = initial_filters(2, dimension=12, num_filters=3, seed=1)
    inputs, labels = sample.inputs.expand(2, -1, -1, -1), sample.labels.expand(2, -1)
    found = clipped_mean_gradients(filters, inputs, labels, clip_norm=clip_norm)
    for run in range(2):
        model = network(filters[run])
        total = torch.zeros_like(filters[run])
        for example, label in zip(sample.inputs, sample.labels, strict=True):
            loss = functional.cross_entropy(model(example[None]), label[None])
            (gradient,) = torch.autograd.grad(loss, model.filters.weight)
            total += gradient * min(1.0, clip_norm / float(gradient.norm()))
        assert torch.allclose(found[run], total / 40, atol=1e-6)


def test_outputs_are_those_of_the_module() -> None:
    sample = TASK.draw(20, seed=2)
    filters = initial_filters(1, dimension=12, num_filters=4, seed=3)
    expected = network(filters[0])(sample.inputs)
    assert torch.allclose(patch_logits(filters, sample.inputs[None])[0], expected, atol=1e-6)
    outcome = measure_patches(filters, sample.inputs[None], sample.labels[None])
    assert torch.allclose(
        outcome.losses[0], functional.cross_entropy(expected, sample.labels, reduction="none"), atol=1e-6
    )


def test_the_network_can_be_trained_by_a_private_session_and_learns_as_the_simulation_does() -> None:
    """Same task, clip norm, rate and noise on the averaged gradient; the batches differ."""
    task = TwoPatch(dimension=40)
    train, test = task.draw(400, seed=4), task.draw(400, seed=5)
    filters = initial_filters(1, dimension=40, num_filters=5, seed=6)
    noise_std, size = 0.02, 50
    training = PatchTraining(batch_size=size, num_steps=60)
    simulated = train_patches(
        filters, train.inputs[None], train.labels[None], training, noise_stds=torch.tensor([noise_std]), seed=7
    )
    model = network(filters[0])
    plan = Plan(
        sampling=Poisson.for_dataset(dataset_size=400, batch_size=size, steps=60),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=noise_std * size),
        delta=1e-3,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )
    fit_privately(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        torch.utils.data.TensorDataset(train.inputs, train.labels),
        plan,
        lambda outputs, labels: functional.cross_entropy(outputs, labels, reduction="none"),
        performance=Performance(physical_batch_size=200),
        seed=8,
    )
    losses = [
        float(measure_patches(found, test.inputs[None], test.labels[None]).losses.mean())
        for found in (filters, simulated, model.filters.weight.detach()[None])
    ]
    assert losses[1] < 0.8 * losses[0]
    assert losses[2] == pytest.approx(losses[1], rel=0.25)


def test_noise_lengthens_the_weights_as_predicted() -> None:
    sample = TwoPatch().draw(200, seed=9)
    filters = initial_filters(1, dimension=200, num_filters=10, seed=10)
    training = PatchTraining(batch_size=50, num_steps=80)
    found = train_patches(
        filters, sample.inputs[None], sample.labels[None], training, noise_stds=torch.tensor([0.5]), seed=11
    )
    predicted = noise_walk_length(learning_rate=0.5, noise_std=0.5, num_steps=80, num_parameters=found.numel())
    assert float(found.norm()) == pytest.approx(predicted, rel=0.03)


def test_training_begins_where_it_is_told_and_leaves_that_alone() -> None:
    sample = TASK.draw(30, seed=12)
    filters = initial_filters(1, dimension=12, num_filters=2, seed=13)
    before = filters.clone()
    none = PatchTraining(batch_size=10, num_steps=0)
    arguments = (filters, sample.inputs[None], sample.labels[None])
    assert torch.equal(train_patches(*arguments, none, noise_stds=torch.zeros(1), seed=0), before)
    some = PatchTraining(batch_size=10, num_steps=3)
    first, second = (train_patches(*arguments, some, noise_stds=torch.ones(1), seed=1) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(filters, before)
    assert float(filters.abs().max()) <= 1 / math.sqrt(12)
    with pytest.raises(ArgumentError, match="only 30 examples"):
        train_patches(*arguments, PatchTraining(batch_size=31), noise_stds=torch.zeros(1), seed=0)
