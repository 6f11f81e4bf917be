from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from privet.datasets.synthetic import striped_images
from privet.effects.radii import RobustnessReport, WeightGrowth, noise_walk_length, wilson_interval
from privet.effects.robustness import Euclidean, LargestChange, Norm, ProjectedGradient, robustness_curve, weight_length
from privet.errors import ArgumentError, DataError
from privet.models.dense import mlp

NORMS = [LargestChange(), Euclidean()]
IDS = ["largest", "euclidean"]


def trained(inputs: Tensor, labels: Tensor, classes: int) -> nn.Module:
    torch.manual_seed(0)
    model = mlp(tuple(inputs.shape[1:]), classes, hidden_widths=(32,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def pictures() -> tuple[nn.Module, Tensor, Tensor]:
    """Images from 0 to 1 and a network that knows them."""
    split = striped_images(num_train=400, num_test=400, image_shape=(1, 8, 8), noise_std=0.7, seed=1)
    inputs = ((split.test.features + 2) / 4).clamp(0, 1)
    return trained(inputs, split.test.labels, 4), inputs, split.test.labels


@given(seed=st.integers(0, 500), radius=st.floats(1e-3, 3), place=st.sampled_from([0, 1]))
@settings(max_examples=25, deadline=None)
def test_every_changed_example_is_within_the_radius_and_the_bounds(seed: int, radius: float, place: int) -> None:
    torch.manual_seed(seed)
    inputs, labels = torch.rand(6, 5), torch.randint(3, (6,))
    model = nn.Linear(5, 3)
    attack = ProjectedGradient(norm=NORMS[place], num_steps=4, step_share=0.7)
    generator = torch.Generator().manual_seed(seed)
    changed = attack.attack(model, inputs, labels, radius=radius, generator=generator)
    lengths = (changed - inputs).norm(dim=1, p=(math.inf, 2)[place])
    assert float(lengths.max()) <= radius * (1 + 1e-5) + 1e-6
    assert float(changed.min()) >= 0
    assert float(changed.max()) <= 1


@pytest.mark.parametrize("place", [0, 1], ids=IDS)
def test_a_linear_classifier_breaks_exactly_where_its_margin_ends(place: int) -> None:
    """Two classes, logits +-w x: the nearest mistake is at |margin| / dual norm of the weight difference."""
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(6, generator=generator)
    model = nn.Linear(6, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.stack([weights, -weights]))
    inputs = torch.randn(300, 6, generator=generator)
    labels = (inputs @ weights < 0).long()
    distances = (inputs @ weights).abs() / float(weights.norm(p=(1, 2)[place]))
    radii = [0.1, 0.3, 0.6, 1.0]
    attack = ProjectedGradient(norm=NORMS[place], num_steps=20, bounds=None)
    found = robustness_curve(model, inputs, labels, attack, radii=radii)
    assert [point.accuracy.value for point in found.points] == pytest.approx(
        [1.0, *(float((distances > radius).double().mean()) for radius in radii)], abs=1 / 300
    )


@pytest.mark.parametrize(("place", "radii"), [(0, [0.02, 0.05, 0.1]), (1, [0.2, 0.5, 1.0])], ids=IDS)
def test_accuracy_under_attack_equals_that_of_foolbox(
    place: int, radii: list[float], pictures: tuple[nn.Module, Tensor, Tensor]
) -> None:
    foolbox = _foolbox()
    model, inputs, labels = pictures
    attack = ProjectedGradient(norm=NORMS[place], num_steps=10, step_share=0.25, random_start=False)
    ours = robustness_curve(model, inputs, labels, attack, radii=radii)
    kind = (foolbox.attacks.LinfPGD, foolbox.attacks.L2PGD)[place]
    theirs = kind(rel_stepsize=0.25, steps=10, random_start=False)
    wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device="cpu")
    _, _, broken = theirs(wrapped, inputs, labels, epsilons=radii)
    expected = 1 - broken.double().mean(1)
    assert ours.points[0].accuracy.value > 0.9
    assert 0.02 < float(expected[-1]) < float(expected[0])
    for point, other in zip(ours.points[1:], expected, strict=True):
        assert point.accuracy.value == pytest.approx(float(other), abs=0.005)


def _foolbox() -> Any:
    with warnings.catch_warnings():
        # It imports names that SciPy calls old; nothing here depends on them.
        warnings.simplefilter("ignore")
        return pytest.importorskip("foolbox")


def test_restarts_never_find_less_and_the_curve_never_rises(pictures: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = pictures
    curves = [
        [
            point.accuracy.value
            for point in robustness_curve(
                model,
                inputs,
                labels,
                ProjectedGradient(norm=LargestChange(), num_steps=3, num_restarts=restarts),
                radii=[0.03, 0.06, 0.09],
            ).points
        ]
        for restarts in (1, 4)
    ]
    for curve in curves:
        assert curve == sorted(curve, reverse=True)
    assert all(more <= fewer + 0.005 for more, fewer in zip(curves[1], curves[0], strict=True))


def test_a_confident_model_is_still_attacked() -> None:
    """Its loss and the slope of its loss are exactly zero in single precision; its nearest mistake is not far."""
    inputs, labels = torch.rand(50, 4) + 1, torch.zeros(50, dtype=torch.long)
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(100 * torch.tensor([[1.0] * 4, [-1.0] * 4]))
    watched = inputs.clone().requires_grad_()
    functional.cross_entropy(model(watched), labels).backward()
    assert not watched.grad.any()
    attack = ProjectedGradient(norm=Euclidean(), bounds=None, random_start=False)
    found = robustness_curve(model, inputs, labels, attack, radii=[1.9, 4.1])
    assert [point.accuracy.value for point in found.points] == [1.0, 1.0, 0.0]


def test_the_radius_is_measured_before_normalisation(pictures: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = pictures
    attack = ProjectedGradient(norm=LargestChange(), num_steps=5)
    plain = robustness_curve(model, inputs, labels, attack, radii=[0.05])
    wrapped = nn.Sequential(Halved(), model)
    scaled = robustness_curve(wrapped, inputs, labels, attack, radii=[0.05], as_inputs=lambda values: values * 2)
    assert plain == scaled


class Halved(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / 2


def test_an_attack_leaves_the_model_as_it_was(pictures: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = pictures
    model.train()
    before = [value.grad for value in model.parameters()]
    attack = ProjectedGradient(norm=Euclidean(), num_steps=1)
    robustness_curve(model, inputs[:5], labels[:5], attack, radii=[0.1])
    assert model.training
    assert all(value.grad is earlier for value, earlier in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("norm", NORMS, ids=IDS)
def test_starts_fill_the_ball_and_none_has_no_slope(norm: Norm) -> None:
    inputs = torch.zeros(4000, 2)
    starts = norm.start(inputs, 2.0, torch.Generator().manual_seed(0))
    sizes = starts.abs().amax(1) if isinstance(norm, LargestChange) else starts.norm(dim=1)
    assert float(sizes.max()) <= 2.0 + 1e-6
    # In two dimensions a quarter of the area lies within half of the radius.
    assert float((sizes < 1.0).double().mean()) == pytest.approx(0.25, abs=0.03)
    assert not norm.ascent(inputs).any()
    assert not norm.project(inputs, 0.0).any()


def test_models_and_arguments_that_make_no_sense_are_refused() -> None:
    model = nn.Linear(2, 2)
    attack = ProjectedGradient(norm=LargestChange())
    with pytest.raises(DataError, match="needs examples"):
        robustness_curve(model, torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), attack, radii=[0.1])
    with torch.no_grad():
        model.weight.fill_(math.nan)
    with pytest.raises(DataError, match="NaN"):
        robustness_curve(model, torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), attack, radii=[0.1])
    with pytest.raises(ArgumentError, match="same point"):
        ProjectedGradient(norm=LargestChange(), num_restarts=2, random_start=False)
    with pytest.raises(ArgumentError, match="radius"):
        robustness_curve(model, torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), attack, radii=[-1.0])


def test_noise_alone_carries_the_weights_as_far_as_predicted() -> None:
    generator = np.random.default_rng(0)
    walk = 0.3 * 0.2 * generator.normal(size=(50, 4000)).sum(0)
    predicted = noise_walk_length(learning_rate=0.3, noise_std=0.2, num_steps=50, num_parameters=4000)
    assert float(np.linalg.norm(walk)) == pytest.approx(predicted, rel=0.03)
    model = nn.Linear(4000, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(walk)[None])
    growth = WeightGrowth(measured=weight_length(model), from_noise=predicted)
    assert growth.noise_share == pytest.approx(1.0, abs=0.06)
    assert noise_walk_length(learning_rate=1, noise_std=1, num_steps=0, num_parameters=5) == 0
    assert WeightGrowth(measured=0.0, from_noise=1.0).noise_share == 0.0


def test_momentum_lengthens_the_walk_by_what_one_draw_moves_in_the_end() -> None:
    generator = np.random.default_rng(1)
    velocity, weights = np.zeros(2000), np.zeros(2000)
    for _ in range(400):
        velocity = 0.8 * velocity + generator.normal(size=2000)
        weights -= 0.1 * velocity
    predicted = noise_walk_length(learning_rate=0.1, noise_std=1.0, num_steps=400, num_parameters=2000, momentum=0.8)
    assert float(np.linalg.norm(weights)) == pytest.approx(predicted, rel=0.04)


@given(right=st.integers(0, 40), extra=st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_a_score_interval_holds_its_share_and_stays_within_zero_and_one(right: int, extra: int) -> None:
    found = wilson_interval(right, right + extra)
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value <= found.high + 1e-12 <= 1 + 1e-9


def test_a_report_survives_being_written_and_read(pictures: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, inputs, labels = pictures
    attack = ProjectedGradient(norm=Euclidean(), num_steps=1)
    report = robustness_curve(model, inputs[:20], labels[:20], attack, radii=[0.1])
    assert RobustnessReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    for damaged in ({}, [], {**report.to_dict(), "num_steps": 0}):
        with pytest.raises(ArgumentError):
            RobustnessReport.from_dict(damaged)
