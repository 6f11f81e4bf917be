from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.effects.tangent_kernel import TangentKernel, kernel_report, matrix_properties, neural_tangent_kernel
from privet.errors import ArgumentError, UnsupportedModel
from privet.mechanism.clipping import Automatic, Clipping, KeepOrDrop, Threshold
from privet.mechanism.grouping import Grouping, OneGroup, PerLayer

FLAT, LAYERWISE = OneGroup(), PerLayer()


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(1)


def task(seed: int = 0, examples: int = 40, outputs: int = 1) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, outputs))
    # Residuals of very different sizes: clipping only matters where some gradients are long and others are not.
    targets = torch.randn(examples, outputs, generator=generator).exp() * 3
    return model, torch.randn(examples, 8, generator=generator) * 2, targets


def kernel_of(grouping: Grouping, seed: int = 0) -> TangentKernel:
    return neural_tangent_kernel(*task(seed), squared, grouping=grouping)


def largest_norm(grouping: Grouping) -> float:
    return float(kernel_of(grouping).gradient_norms.max())


TABLE_2: list[tuple[str, Clipping | None, Grouping, tuple[bool, bool, bool]]] = [
    ("none", None, FLAT, (True, True, True)),
    ("local flat", Threshold(norm=1.0), FLAT, (False, False, True)),
    ("global flat", KeepOrDrop(norm=1.0, cutoff=1e4), FLAT, (True, True, True)),
    ("global layerwise", KeepOrDrop(norm=1.0, cutoff=1e4), LAYERWISE, (True, True, True)),
]


@pytest.mark.parametrize(
    ("clipping", "grouping", "expected"), [row[1:] for row in TABLE_2], ids=[r[0] for r in TABLE_2]
)
def test_a_rule_has_the_properties_of_the_published_table(
    clipping: Clipping | None, grouping: Grouping, expected: tuple[bool, bool, bool]
) -> None:
    found = kernel_report(kernel_of(grouping), clipping).properties
    assert (found.is_symmetric, found.is_positive_in_quadratic_form, found.is_positive_in_eigenvalues) == expected


def test_clipping_layers_by_a_threshold_loses_symmetry_and_the_quadratic_form() -> None:
    found = kernel_report(kernel_of(LAYERWISE), Threshold(norm=1.0)).properties
    assert not found.is_symmetric
    assert not found.is_positive_in_quadratic_form


def test_clipping_layers_by_a_threshold_can_give_a_negative_eigenvalue() -> None:
    generator = np.random.default_rng(0)
    least = 0.0
    for _ in range(3000):
        slopes = generator.normal(size=(2, 3, 3))
        parts = torch.from_numpy(slopes @ slopes.transpose(0, 2, 1))
        kernel = TangentKernel(parts=parts, output_gradients=torch.ones(3, 1, dtype=torch.float64))
        factors = torch.from_numpy(10 ** generator.uniform(-3, 0, size=(3, 2)))
        found = matrix_properties(kernel.clipped(factors))
        least = min(least, found.least_eigenvalue / found.largest)
    assert least < -0.01


def test_dropping_examples_keeps_eigenvalues_positive_when_all_parameters_are_clipped_together() -> None:
    # Footnote 5 of the paper says otherwise; H C has the eigenvalues of C^1/2 H C^1/2, which is never negative.
    kernel = kernel_of(FLAT)
    middle = float(kernel.gradient_norms.median())
    report = kernel_report(kernel, KeepOrDrop(norm=0.1, cutoff=middle))
    assert 0.4 < report.dropped_share < 0.6
    assert not report.properties.is_symmetric
    assert not report.properties.is_positive_in_quadratic_form
    assert report.properties.is_positive_in_eigenvalues


def test_two_examples_are_enough_to_lose_the_quadratic_form_and_keep_the_eigenvalues() -> None:
    found = matrix_properties(torch.tensor([[1, 0.9], [0.9, 1]]) @ torch.diag(torch.tensor([1, 0.01])))
    assert not found.is_symmetric
    assert not found.is_positive_in_quadratic_form
    assert found.is_positive_in_eigenvalues


def test_some_labels_make_the_loss_rise_under_a_threshold_and_none_without_clipping() -> None:
    model, inputs, _ = task()
    generator = torch.Generator().manual_seed(3)
    rising = 0
    for _ in range(60):
        targets = (torch.randn(40, 1, generator=generator) * 4).sinh()
        kernel = neural_tangent_kernel(model, inputs, targets, squared)
        assert kernel_report(kernel, None).loss_derivative < 0
        assert kernel_report(kernel, KeepOrDrop(norm=1.0, cutoff=1e9)).loss_derivative < 0
        rising += kernel_report(kernel, Threshold(norm=1.0)).loss_derivative > 0
    assert rising > 0


@pytest.mark.parametrize("clipping", [None, Threshold(norm=1.0), Automatic(norm=1.0)], ids=["none", "local", "auto"])
@pytest.mark.parametrize("grouping", [FLAT, LAYERWISE], ids=["flat", "layerwise"])
def test_the_predicted_derivative_is_the_slope_of_the_loss_along_the_clipped_gradient(
    clipping: Clipping | None, grouping: Grouping
) -> None:
    model, inputs, _ = task(outputs=3)
    labels = torch.arange(len(inputs)) % 3

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")

    kernel = neural_tangent_kernel(model, inputs, labels, losses, grouping=grouping)
    report = kernel_report(kernel, clipping)
    exact = model.double()
    names = [name for name, _ in exact.named_parameters()]
    groups = grouping.groups_of(names)
    rows = []
    for index in range(len(inputs)):
        loss = losses(exact(inputs[index : index + 1].double()), labels[index : index + 1]).sum()
        rows.append(torch.autograd.grad(loss, list(exact.parameters())))
    norms = torch.stack(
        [
            torch.stack([sum(part.square().sum() for part, g in zip(row, groups, strict=True) if g == group) ** 0.5
                         for group in range(max(groups) + 1)])
            for row in rows
        ]
    )  # fmt: skip
    torch.testing.assert_close(kernel.gradient_norms, norms)
    factors = torch.ones_like(norms) if clipping is None else clipping.for_groups(norms.shape[1]).factors(norms)
    expected = 0.0
    for position, group in enumerate(groups):
        each = torch.stack([row[position].flatten() for row in rows])
        expected -= float(each.mean(0) @ (factors[:, group : group + 1] * each).mean(0))
    assert report.loss_derivative == pytest.approx(expected, rel=1e-9)


def test_the_model_is_left_as_it_was() -> None:
    model, inputs, targets = task()
    before = [value.clone() for value in model.parameters()]
    neural_tangent_kernel(model, inputs, targets, squared)
    assert all(value.dtype is torch.float32 for value in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_frozen_parameters_have_no_part_in_the_kernel() -> None:
    model, inputs, targets = task()
    model[0].requires_grad_(False)
    whole = neural_tangent_kernel(*task(), squared, grouping=PerLayer()).parts[1]
    torch.testing.assert_close(neural_tangent_kernel(model, inputs, targets, squared).whole, whole)


def test_a_model_that_mixes_examples_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    _, inputs, targets = task()
    with pytest.raises(UnsupportedModel, match="one example at a time"):
        neural_tangent_kernel(model, inputs, targets, squared)


def test_matrices_that_are_not_square_or_finite_are_refused() -> None:
    for matrix in (torch.zeros(2, 3), torch.zeros(0, 0), torch.full((2, 2), float("nan"))):
        with pytest.raises(ArgumentError):
            matrix_properties(matrix)
