"""Norms of per-example gradients, against a loop over examples."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from privet.effects.gradient_norms import gradient_norms
from privet.errors import DataError


def test_norms_are_those_of_a_loop_over_examples_and_frozen_parameters_do_not_count() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].bias.requires_grad_(False)
    inputs, labels = torch.randn(7, 6), torch.arange(7) % 3
    trained = [value for value in model.parameters() if value.requires_grad]
    expected = []
    for example, label in zip(inputs, labels, strict=True):
        loss = functional.cross_entropy(model(example.unsqueeze(0)), label.unsqueeze(0))
        squares = [gradient.square().sum() for gradient in torch.autograd.grad(loss, trained)]
        expected.append(float(torch.stack(squares).sum().sqrt()))
    assert gradient_norms(model, inputs, labels, batch_size=3) == pytest.approx(expected, rel=1e-5)


def test_gradients_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="not finite"):
        gradient_norms(nn.Linear(2, 2), torch.full((1, 2), torch.inf), torch.zeros(1, dtype=torch.int64))
