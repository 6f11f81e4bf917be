"""The noise table: its runs are those of real sessions, its arms keep one guarantee, its units are what they say."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.accounting.calibration import spent_epsilon
from privet.mechanism.clipping import Threshold
from privet.mechanism.geometry import Factored
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch
from privet.mechanism.shaped_noise import EllipticalGaussian
from privet.plan import Plan
from privet.training.fitting import fit_privately
from privet.training.performance import Performance
from privet.vocabulary import Adjacency, Unit
from privet_research.studies import noise_arms, noise_grid_table, noise_runs, noise_sources
from privet_research.studies.noise_arms import MAIN_ARMS, OTHER_ARMS, PLAIN, Charge, multiplier
from privet_research.studies.noise_grid import Constants, Problem, chosen_constants, run_noise_grid, run_settings
from privet_research.studies.noise_runs import Batched, Examples, Shape, Training, initial_weights, train_runs
from privet_research.studies.noise_sources import Bench, Paid, Plain
from privet_research.studies.noise_terms import Terms

TERMS = Terms(rate=0.1, steps=300, delta=1e-4)
CPU = torch.device("cpu")


def made_up(count: int, seed: int, width: int = 6) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    features = torch.randn(count, width, generator=generator)
    features[torch.arange(count), labels] += 2.0
    return Examples.of(features, labels)


def problem(widths: tuple[int, ...] = (6, 3), steps: int = 12) -> Problem:
    return Problem(
        name="made up", train=made_up(120, 0), public=made_up(40, 1), validation=made_up(40, 2), test=made_up(60, 3),
        widths=widths, terms=Terms(rate=0.2, steps=steps, delta=1e-4), norms=(0.5, 2.0), reaches=(0.5, 2.0),
        num_tuning_seeds=1,
    )  # fmt: skip


class FromTheFirst:
    """Falls from one at the first step; a session asks for the middle of a step."""

    def factor(self, progress: float) -> float:
        return 1 - 0.9 * (progress - 0.5 / 5)


def no_noise(sizes: Any, generator: torch.Generator) -> Tensor:
    return torch.zeros(sum(sizes))


@pytest.mark.parametrize("preconditioning", [0.0, 1.0])
@pytest.mark.parametrize("widths", [(6, 3), (6, 4, 3)], ids=["softmax", "two layers"])
def test_runs_take_the_steps_of_a_session(widths: tuple[int, ...], preconditioning: float) -> None:
    examples = made_up(30, 0)
    start = initial_weights(widths, seeds=[0], runs_per_seed=1)
    units = [tuple((1 + np.arange(part.shape[1] - 1) / 3).tolist()) for part in start]
    squared = [torch.tensor([*part, 1.0])[None, :, None].square() for part in units]
    shape = Shape.elliptical(squared) if preconditioning else Shape()
    runs = Batched(norms=torch.tensor([0.7]), reaches=torch.tensor([0.9]), multipliers=torch.tensor([1.0]))
    training = Training(rate=1.0, steps=5, preconditioning=preconditioning)
    shapes = noise_sources.Fixed(constant=shape)
    found = train_runs(start, examples, runs, training, shapes, no_noise, seeds=[0])

    layers = [nn.Linear(*pair) for pair in itertools.pairwise(widths)]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1])
    with torch.no_grad():
        for layer, part in zip(layers, start, strict=True):
            layer.weight.copy_(part[0, :-1].T)
            layer.bias.copy_(part[0, -1])
    geometry = Factored(
        rows=tuple(((1.0,),) * (2 * len(units))), columns=tuple(part for one in units for part in (one, (1.0,)))
    )
    noise = (
        EllipticalGaussian(geometry=geometry, preconditioning=1.0, noise_multiplier=1e-9)
        if preconditioning
        else Gaussian(noise_multiplier=1e-9)
    )
    plan = Plan(
        sampling=FullBatch(steps=5, expected_batch_size=30), clipping=Threshold(norm=0.7), noise=noise, delta=1e-4,
        adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD,
    )  # fmt: skip
    data = list(zip(examples.features[:, :-1], examples.labels, strict=True))
    fit_privately(
        model, SGD(model.parameters(), lr=0.9 / 0.7), data, plan,
        lambda out, labels: functional.cross_entropy(out, labels, reduction="none"),
        performance=Performance(physical_batch_size=30), schedule=FromTheFirst(), seed=0,
    )  # fmt: skip
    for layer, part in zip(layers, found, strict=True):
        torch.testing.assert_close(part[0, :-1].T, layer.weight.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(part[0, -1], layer.bias.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arm", [*MAIN_ARMS, *OTHER_ARMS], ids=lambda arm: arm.name)
def test_runs_side_by_side_are_those_of_single_ones(arm: noise_arms.Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privet_research.studies.noise_grid.multiplier", lambda *_: 0.8)
    monkeypatch.setattr("privet_research.studies.noise_grid.release_multiplier", lambda *_: 2.0)
    given = problem(widths=(6, 4, 3), steps=25)
    settings = [Constants(1.0, 0.5, 0.5), Constants(1.0, 2.0, 1.0)]
    together = run_settings(given, arm, settings, [3, 4])
    for row, seed in enumerate([3, 4]):
        for column, one in enumerate(settings):
            alone = run_settings(given, arm, [one], [seed])
            for whole, part in zip(together, alone, strict=True):
                assert float(whole[row, column]) == pytest.approx(float(part[0, 0]), abs=0.06)


@pytest.mark.parametrize(("epsilon", "known"), [(1.0, 5.637), (3.0, 2.291), (8.0, 1.183)])
def test_the_noise_of_a_step_is_known(epsilon: float, known: float) -> None:
    found = multiplier(TERMS, Charge.GAUSSIAN, epsilon, 650)
    assert found == pytest.approx(known, rel=2e-3)
    assert multiplier(TERMS, Charge.NOMINAL, epsilon, 650) == found


@pytest.mark.parametrize(("epsilon", "known"), [(1.0, 6.208), (3.0, 2.483), (8.0, 1.259)])
def test_the_noise_by_divergences_is_known(epsilon: float, known: float) -> None:
    assert multiplier(TERMS, Charge.GAUSSIAN_RDP, epsilon, 650) == pytest.approx(known, rel=1e-2)


def test_steps_pay_for_the_release_of_units() -> None:
    paid, free = (multiplier(TERMS, charge, 3.0, 650) for charge in (Charge.PAID, Charge.GAUSSIAN))
    assert paid / free == pytest.approx(1.046, abs=0.005)
    event = noise_arms._event(TERMS, Charge.PAID, 3.0, 650, paid)
    assert spent_epsilon(event, delta=1e-4, adjacency=Adjacency.ADD_REMOVE) == pytest.approx(3.0, rel=1e-3)


def test_a_paid_release_bounds_what_one_example_moves() -> None:
    weights = initial_weights((6, 4, 3), seeds=[0], runs_per_seed=1)
    whole = made_up(30, 5)
    huge = Examples(features=whole.features * 50, labels=whole.labels)

    def sums(examples: Examples) -> Tensor:
        return torch.cat([part.flatten() for part in noise_sources._squared_row_sums(weights, examples, 0.5)])

    for place in range(30):
        rest = torch.arange(30) != place
        moved = sums(huge) - sums(Examples(features=huge.features[rest], labels=huge.labels[rest]))
        assert float(moved.norm()) <= 0.25 * (1 + 1e-4)
        assert float(moved.sum()) == pytest.approx(0.25, rel=1e-3), "all of a clipped example's square is counted"


def test_noise_of_a_paid_release_is_drawn_and_floors_what_it_hides() -> None:
    given = problem()
    runs = Batched(norms=torch.ones(4), reaches=torch.ones(4), multipliers=torch.ones(4))
    bench = Bench(
        train=given.train, public=given.public, runs=runs, release_multipliers=torch.full((4,), 1e6), release_norm=1.0,
        seeds=[0, 1],
    )  # fmt: skip
    weights = initial_weights((6, 3), seeds=[0, 1], runs_per_seed=2)
    found = Paid(power=1.0)._released(weights, bench)[0]
    assert float(found.min()) == pytest.approx(1e6 / 3), "nothing below one standard deviation"
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2]), "another seed, another draw"
    assert isinstance(Plain().start(bench).shape(0, weights), Shape)


@pytest.mark.parametrize("power", [1 / 3, 0.5, 1.0])
def test_squared_units_have_the_mean_one_and_a_floor(power: float) -> None:
    generator = torch.Generator().manual_seed(0)
    moments = [torch.rand(2, 5, 1, generator=generator) ** 8, torch.rand(2, 4, 1, generator=generator)]
    sizes = [torch.tensor(10.0), torch.tensor(3.0)]
    found = noise_sources.squared_units(moments, sizes, power)
    means = sum((part * size).sum((1, 2)) for part, size in zip(found, sizes, strict=True)) / (5 * 10 + 4 * 3)
    torch.testing.assert_close(means, torch.ones(2))
    mean = sum((part * size).sum((1, 2)) for part, size in zip(moments, sizes, strict=True)) / 62
    floored = noise_sources.floored_parts(moments, sizes)
    least = torch.stack([part.amin((1, 2)) for part in floored]).amin(0)
    assert bool((least >= 0.02 * mean * (1 - 1e-5)).all())


def test_history_above_its_noise_learns_nothing_from_noise_alone() -> None:
    bench: Any = None
    arms = {arm.name: arm for arm in (*MAIN_ARMS, *OTHER_ARMS)}
    generator = torch.Generator().manual_seed(0)
    weights = [torch.zeros(1, 50, 10)]
    spreads = {}
    for name in ("elliptical, raw history", "elliptical, history above its noise"):
        run = arms[name].source.start(bench)
        for step in range(60):
            run.shape(step, weights)
            run.note([torch.randn(1, 50, 10, generator=generator)], [torch.ones(1, 1, 1)])
        units = run.shape(60, weights).squared_units
        assert units is not None
        spreads[name] = float(units[0].log().std())
    assert spreads["elliptical, history above its noise"] < 0.6 * spreads["elliptical, raw history"]


def test_laplace_scales_are_never_below_the_charged_one() -> None:
    means = [torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))]
    sizes = noise_sources.rates_by_weight(means, means, [torch.tensor(1.0)]).noise_sizes
    assert sizes is not None
    assert float(sizes[0].amin()) == pytest.approx(1.0)
    ratio = means[0].abs().amax((1, 2), keepdim=True) / means[0].abs()
    known = ratio < 10
    torch.testing.assert_close(sizes[0][known], ratio[known] ** (1 / 3))


@pytest.mark.parametrize("draw", [noise_runs.normal_draw, noise_runs.laplace_draw, noise_runs.radial_draw])
def test_standard_noise_has_variance_one(draw: noise_runs.Draw) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.stack([draw([30, 20], generator) for _ in range(800)])
    assert float(values.square().mean()) == pytest.approx(1.0, abs=0.05)
    assert float(values.mean()) == pytest.approx(0.0, abs=0.03)
    lengths = values.norm(dim=1)
    if draw is noise_runs.radial_draw:
        # Gamma(50) over the root of 51
        assert float(lengths.std()) == pytest.approx(math.sqrt(50 / 51), rel=0.1)


def test_constants_are_chosen_on_validation_and_rows_say_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem()
    (chosen, accuracy), *_ = chosen_constants(given, PLAIN, [8.0])
    assert chosen.norm in given.norms
    assert chosen.reach in given.reaches
    rows = list(run_noise_grid([given], [PLAIN], seeds=[0, 1], device=CPU, epsilons=(8.0,)))
    assert [row["seed"] for row in rows] == [0, 1]
    assert {(row["norm"], row["reach"], row["tuning_accuracy"]) for row in rows} == {(*chosen[1:], accuracy)}
    assert rows == list(run_noise_grid([given], [PLAIN], seeds=[0, 1], device=CPU, epsilons=(8.0,))), "it repeats"
    worse = Examples(features=given.validation.features, labels=(given.validation.labels + 1) % 3)
    other = Problem(**{**vars(given), "validation": worse})
    assert chosen_constants(other, PLAIN, [8.0])[0][1] < accuracy, "the test split decides nothing"


def row(task: str, arm: str, accuracy: float, seed: int) -> dict[str, Any]:
    return {
        "task": task, "arm": arm, "epsilon": 1.0, "delta": 1e-4, "seed": seed, "accuracy": accuracy, "steps": 300,
        "rate": 0.1, "num_test": 360,
    }  # fmt: skip


def test_the_table_tells_gains_from_ties_and_cells_that_are_off() -> None:
    task = noise_grid_table.SOFTMAX
    rows = [row(task, "Gaussian", 0.893 + 0.001 * seed, seed) for seed in range(3)]
    rows += [row(task, "L2-Laplace", 0.893 + 0.001 * (2 - seed), seed) for seed in range(3)]
    rows += [row(task, "rows, public", 0.95 + 0.001 * seed, seed) for seed in range(3)]
    text = noise_grid_table.noise_grid_table(rows)
    assert "| Gaussian | 89.40 ± 0.11 | 89.32 |" in text
    assert "rows, public gains 5.70" in text
    assert "L2-Laplace gains" not in text
    assert "Of 3 cells 2 lie within 1.5 points" in text
    assert "rows, public is +5.32 points off" in text
    assert noise_grid_table.reference("elsewhere", "Gaussian", 1.0) is None
    assert noise_grid_table.reference(task, "Gaussian", 2.0) is None


def test_every_reference_names_an_arm() -> None:
    arms = {arm.name for arm in (*MAIN_ARMS, *OTHER_ARMS)} | {"the published formula, NOT PRIVATE"}
    assert {name for cells in noise_grid_table.REFERENCE.values() for name in cells} <= arms
