"""Units: bound to a model, shared by clipping and noise, refused where they do not fit."""

from __future__ import annotations

import math

import pytest
import torch

from privet.errors import ArgumentError, LoopError, PlanError
from privet.mechanism.geometry import Diagonal, Factored, Frame, Geometry, Isotropic, PerGroup
from privet.mechanism.grouping import PerLayer
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian, optimal_split
from privet.mechanism.sums import ClippedSum
from privet.training.randomness import KeystreamNoise

LAYOUT = Layout.of([("a.weight", (3, 2)), ("a.bias", (3,)), ("b.weight", (2, 3, 2, 2))], PerLayer())
FACTORED = Factored(rows=((1.0, 2.0, 3.0), (4.0,), (0.5, 2.0)), columns=((5.0, 7.0), (1.0,), (1.0, 2.0, 4.0)))
GEOMETRIES: dict[str, Geometry] = {
    "isotropic": Isotropic(),
    "per group": PerGroup(group_units=(2.0, 0.5)),
    "factored": FACTORED,
    "diagonal": Diagonal(coordinate_units=tuple(1 + i / 10 for i in range(33))),
}


def source(seed: int) -> KeystreamNoise:
    return KeystreamNoise(bytes([seed]) * 48)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_going_to_the_units_and_back_changes_nothing(name: str) -> None:
    frame = Frame.of(GEOMETRIES[name], LAYOUT, torch.zeros(33, dtype=torch.float64))
    flat = torch.arange(1.0, 34.0, dtype=torch.float64)
    there = frame.whitened(flat)
    frame.rescale_(there, power=1.0)
    assert torch.allclose(there, flat, rtol=1e-14)
    assert (name == "isotropic") == torch.equal(frame.whitened(flat), flat)


def test_factored_units_are_products_of_rows_and_columns() -> None:
    frame = Frame.of(FACTORED, LAYOUT, torch.zeros(33, dtype=torch.float64))
    ones = torch.ones(33, dtype=torch.float64)
    frame.rescale_(ones, power=1.0)
    assert ones[:6].tolist() == [5.0, 7.0, 10.0, 14.0, 15.0, 21.0]
    assert ones[6:9].tolist() == [4.0] * 3
    assert ones[9:].view(2, 3, 4)[1].tolist() == [[2.0] * 4, [4.0] * 4, [8.0] * 4]


WRONG = {
    "another model": (Factored(rows=((1.0,),), columns=((1.0,),)), PlanError),
    "another shape": (Factored(rows=((1.0, 1.0), (1.0,), (1.0,)), columns=((1.0,),) * 3), PlanError),
    "too few coordinates": (Diagonal(coordinate_units=(1.0,) * 32), PlanError),
    "too few groups": (PerGroup(group_units=(1.0,)), PlanError),
    "too far apart": (PerGroup(group_units=(1.0, 2e4)), PlanError),
}


@pytest.mark.parametrize("name", WRONG)
def test_units_that_do_not_fit_the_model_are_refused(name: str) -> None:
    geometry, error = WRONG[name]
    with pytest.raises(error):
        Frame.of(geometry, LAYOUT, torch.zeros(33))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_units_that_are_no_positive_numbers_are_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="group_units"):
        PerGroup(group_units=(1.0, value))  # type: ignore[arg-type]


def clipped(geometry: Geometry | None, bounds: tuple[float, ...] = (1.0, 1.0)) -> ClippedSum:
    flat = torch.zeros(33, dtype=torch.float64)
    frame = None if geometry is None else Frame.of(geometry, LAYOUT, flat)
    return ClippedSum(flat=flat, layout=LAYOUT, sensitivity=Sensitivity(bounds=bounds), frame=frame)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_elliptical_noise_is_gaussian_noise_in_the_units(name: str, power: float) -> None:
    geometry = GEOMETRIES[name]
    piece = EllipticalGaussian(geometry=geometry, preconditioning=power, noise_multiplier=1.5)
    found = piece.add(clipped(geometry), source(1))
    plain = Gaussian(noise_multiplier=1.5).add(clipped(None), source(1))
    Frame.of(geometry, LAYOUT, plain.flat).rescale_(plain.flat, power=1 - 2 * power)
    assert torch.allclose(found.flat, plain.flat, rtol=1e-12)
    assert found.event == plain.event == piece.event()


def test_noise_in_other_units_than_clipping_is_refused() -> None:
    twin = PerGroup(group_units=(2.0, 0.5))
    piece = EllipticalGaussian(geometry=GEOMETRIES["per group"], noise_multiplier=1.0)
    for wrong in (clipped(None), clipped(twin), clipped(Isotropic())):
        with pytest.raises(LoopError, match="units"):
            piece.add(wrong, source(0))
        assert bool((wrong.flat == 0).all())
    with pytest.raises(LoopError, match="units"):
        Gaussian(noise_multiplier=1.0).add(clipped(twin), source(0))


def test_the_split_between_groups_keeps_the_cost_and_has_the_least_variance() -> None:
    bounds, sizes = (0.5, 2.0, 1.0), (1000, 10, 3)
    best = optimal_split(bounds, sizes)
    assert math.fsum((bound / std) ** 2 for bound, std in zip(bounds, best, strict=True)) == pytest.approx(1.0)
    cost = sum(size * std**2 for size, std in zip(sizes, best, strict=True))
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        other = torch.exp(0.3 * torch.randn(3, generator=generator, dtype=torch.float64)) * torch.tensor(best).double()
        other *= (torch.tensor(bounds).double() / other).norm()
        assert float((torch.tensor(sizes) * other**2).sum()) >= cost * (1 - 1e-12)
    assert cost < sum(sizes) * sum(bound**2 for bound in bounds), "equal noise adds more"


def test_groupwise_noise_has_the_sizes_it_is_charged_for() -> None:
    layout = Layout.of([("a.weight", (40_000,)), ("b.weight", (10_000,))], PerLayer())
    total = ClippedSum(
        flat=torch.zeros(50_000, dtype=torch.float64), layout=layout, sensitivity=Sensitivity(bounds=(1.0, 3.0))
    )
    released = GroupwiseGaussian(noise_multiplier=2.0).add(total, source(3))
    expected = optimal_split((1.0, 3.0), (40_000, 10_000))
    for where, std in zip(layout.slices, expected, strict=True):
        assert float(released.flat[where].std()) == pytest.approx(2 * std, rel=0.03)
    assert released.event.noise_multiplier == pytest.approx(2.0, rel=1e-12)
    one = clipped(None, (1.0, 1.0))
    assert GroupwiseGaussian(noise_multiplier=2.0).add(one, source(0)).noise_std is None
