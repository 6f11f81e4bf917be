"""The course of the loss under clipping: what theorems promise is kept, and what they do not promise is broken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from privet_research.studies.clipped_flow import (
    KINDS,
    NOISY_STEPS,
    Problems,
    flow_table,
    growing,
    integrated,
    run_flow_study,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(run_flow_study(seeds=[0], device=CPU, num_problems=150, num_steps=3_000))


def test_only_thresholds_and_dropped_gradients_make_a_loss_rise(rows: list[dict[str, Any]]) -> None:
    found = {row["arm"]: row for row in rows if row["part"] == "flow"}
    assert list(found) == list(KINDS)
    falls = {arm: bool(row["loss_decays_monotonically"]) for arm, row in found.items()}
    assert falls["no clipping"]
    assert falls["global, flat"]
    assert falls["global, layerwise"]
    assert not falls["local, layerwise"]
    assert not falls["global, flat, with dropped gradients"]
    assert found["local, flat"]["to_zero_loss"]
    assert not found["local, layerwise"]["to_zero_loss"]
    assert "| local, layerwise | no | no |" in flow_table(rows)


def test_noise_vanishes_with_the_step_as_its_root(rows: list[dict[str, Any]]) -> None:
    gaps = {row["step"]: row["gap"] for row in rows if row["part"] == "noise"}
    assert list(gaps) == list(NOISY_STEPS)
    assert gaps[0.001] / gaps[0.1] == pytest.approx(0.1, rel=0.25)


def test_a_positive_kernel_may_let_the_loss_grow_without_end_under_layerwise_thresholds() -> None:
    kernel = (growing() @ growing().mT).sum(1)[0]
    values = torch.linalg.eigvalsh(kernel) * 16
    assert values.tolist() == pytest.approx([1.0, 16.0, 16.0])
    problem = Problems(slopes=growing(), residuals=torch.full((1, 3), 100.0, dtype=torch.float64))
    rests = [float(integrated(problem, KINDS["local, layerwise"], num_steps=steps)[1]) for steps in (2_000, 4_000)]
    assert 1 < rests[0] < rests[1]
    assert float(integrated(problem, KINDS["local, flat"], num_steps=20_000)[1]) < 1e-6


def test_the_velocity_is_that_of_gradient_descent_on_clipped_gradients() -> None:
    problems = Problems.draw(3, seed=1, device=CPU)
    factors = KINDS["local, layerwise"](problems.gradient_norms(problems.residuals))
    place, step = 2, 1e-6
    slopes, residuals = problems.slopes[place], problems.residuals[place]
    moved = residuals.clone()
    for group in range(3):
        gradients = residuals.unsqueeze(1) * slopes[group]
        clipped = gradients * (1 / gradients.norm(dim=1, keepdim=True)).clamp(max=1)
        moved = moved - step * slopes[group] @ clipped.sum(0)
    expected = (moved - residuals) / step
    assert torch.allclose(problems.velocity(problems.residuals, factors)[place], expected, rtol=1e-5, atol=1e-8)
