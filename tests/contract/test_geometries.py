"""Laws of every geometry and of every way to learn one: positive units for each coordinate, of this model alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from privet.errors import CheckpointError, PlanError
from privet.mechanism.adaptive_noise import Learning, LearningRun, PastGradients, ReleasedSquares
from privet.mechanism.codec import NOISE, decode_piece, encode_piece
from privet.mechanism.geometry import Frame, Geometry, Isotropic
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.second_moments import num_axis_sums
from tests.contract.noises import GEOMETRIES, LAYOUT, SIZE, UNITS

ALL = [piece for pieces in GEOMETRIES.values() for piece in pieces]
each_geometry = pytest.mark.parametrize("geometry", ALL, ids=repr)
LEARNINGS: Mapping[type, Sequence[Learning]] = {
    ReleasedSquares: [ReleasedSquares(every=2), ReleasedSquares(share=0.3, every=1, memory=0.0)],
    PastGradients: [PastGradients(first=2, every=1)],
}
each_learning = pytest.mark.parametrize(
    "learning", [piece for pieces in LEARNINGS.values() for piece in pieces], ids=repr
)
OTHER = Layout.of([("a.weight", (5, 7))], OneGroup())


@each_geometry
def test_is_a_geometry_by_protocol_and_survives_json(geometry: Geometry) -> None:
    assert isinstance(geometry, Geometry)
    written = json.loads(json.dumps(encode_piece(geometry, NOISE, where="geometry")))
    assert decode_piece(written, NOISE, where="geometry") == geometry


@each_geometry
def test_every_coordinate_has_the_unit_that_the_geometry_declares(geometry: Geometry) -> None:
    ones = torch.ones(SIZE, dtype=torch.float64)
    Frame.of(geometry, LAYOUT, ones).rescale_(ones, power=1.0)
    assert ones.tolist() == pytest.approx(list(UNITS[type(geometry)]))
    assert bool((ones > 0).all())


@each_geometry
def test_per_example_gradients_and_flat_vectors_are_measured_in_the_same_units(geometry: Geometry) -> None:
    flat = torch.linspace(-2, 2, SIZE, dtype=torch.float64)
    frame = Frame.of(geometry, LAYOUT, flat)
    whitened = frame.whitened(flat)
    for where, shape, factors in zip(LAYOUT.slices, LAYOUT.shapes, frame.factors, strict=True):
        gradients = flat[where].view(1, *shape)
        assert torch.allclose(factors.over(gradients).reshape(-1), whitened[where], rtol=1e-12)
    frame.rescale_(whitened, power=1.0)
    assert torch.allclose(whitened, flat, rtol=1e-12)


@each_geometry
def test_units_of_another_model_are_refused(geometry: Geometry) -> None:
    if geometry == Isotropic():
        assert len(geometry.units(OTHER)) == 1
        return
    with pytest.raises(PlanError):
        geometry.units(OTHER)


def noted(learning: Learning, run: LearningRun, steps: int, first: int = 0) -> None:
    rng = np.random.default_rng(first)
    for step in range(first, first + steps):
        squares = np.abs(rng.normal(size=num_axis_sums(LAYOUT))) * 9 if learning.share > 0 else None
        run.note(step, 5 * rng.normal(size=SIZE), np.ones(SIZE), squares, 0.1)


@each_learning
def test_is_a_way_to_learn_by_protocol_and_survives_json(learning: Learning) -> None:
    assert isinstance(learning, Learning)
    assert 0 <= learning.share < 1
    written = json.loads(json.dumps(encode_piece(learning, NOISE, where="learning")))
    assert decode_piece(written, NOISE, where="learning") == learning


@each_learning
def test_units_begin_equal_and_are_moved_by_what_was_released(learning: Learning) -> None:
    run = learning.start(LAYOUT, power=0.5, floor=0.02)
    ones = torch.ones(SIZE, dtype=torch.float64)
    assert torch.equal(Frame.of(run.geometry, LAYOUT, ones).whitened(ones), ones)
    noted(learning, run, 6)
    moved = Frame.of(run.geometry, LAYOUT, ones).whitened(ones)
    assert bool((moved > 0).all())
    assert not torch.allclose(moved, ones)


@each_learning
def test_learned_units_go_on_from_their_state_as_if_the_run_had_not_stopped(learning: Learning) -> None:
    first, second = (learning.start(LAYOUT, power=0.5, floor=0.02) for _ in range(2))
    noted(learning, first, 5)
    second.restore(json.loads(json.dumps(first.state())))
    for run in (first, second):
        noted(learning, run, 3, first=5)
    assert first.geometry == second.geometry
    with pytest.raises(CheckpointError):
        second.restore({"something": (1.0,)})
