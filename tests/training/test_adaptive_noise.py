"""Noise in learned units: what one example can change, what is charged, and that units are learned at all."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.errors import ArgumentError, CheckpointError, LoopError, PlanError
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.functional import Functional
from privet.mechanism.adaptive_noise import (
    AdaptiveGaussian,
    AdaptiveGaussianRun,
    PastGradients,
    ReleasedSquares,
    squares_bound,
)
from privet.mechanism.clipping import Threshold
from privet.mechanism.events import fuse_gaussians, gaussian_event, same_event
from privet.mechanism.grouping import OneGroup, PerLayer
from privet.mechanism.layout import Layout
from privet.mechanism.masking import FrozenMask
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.sampling import FullBatch, Poisson
from privet.mechanism.second_moments import num_axis_sums
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.sums import ClippedSum
from privet.plan import Plan
from privet.training.launch.replay import CudaGraph
from privet.training.performance import Performance
from privet.training.session import Session
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

SCALES = torch.tensor([0.05, 0.3, 1.0, 3.0])
SQUARES = AdaptiveGaussian(learning=ReleasedSquares(every=2), noise_multiplier=1.5)


class Recorder:
    """A source of noise that adds none and notes the sizes that it was asked for."""

    def __init__(self) -> None:
        self.stds: list[tuple[int, float]] = []

    def add_normal(self, flat: Tensor, std: float) -> None:
        self.stds.append((flat.numel(), std))


def plan_with(noise: Noise, steps: int = 6) -> Plan:
    return Plan(
        sampling=Poisson(rate=0.5, steps=steps, expected_batch_size=32),
        clipping=Threshold(norm=1.0),
        noise=noise,
        delta=1e-4,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )


def task(count: int = 64) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, list(zip(torch.randn(count, 4) * SCALES, torch.arange(count) % 3, strict=True))


def train(session: Session, stop_after: int | None = None) -> None:
    model = session.model
    for step in session.steps():
        step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
        step.update()
        if stop_after is not None and step.index + 1 == stop_after:
            return


def squares_of(engine: object, data: list[tuple[Tensor, Tensor]], model: nn.Module, bounds: float) -> Tensor:
    """Return the secret squares of one full batch, as the engine adds them up."""
    plan = replace(
        plan_with(SQUARES), sampling=FullBatch(steps=1, expected_batch_size=8), clipping=Threshold(norm=bounds)
    )
    found: list[Tensor] = []
    session = privatize(
        model,
        SGD(model.parameters(), lr=0.0),
        data,
        plan,
        performance=Performance(physical_batch_size=7, engine=engine),
        seed=0,
        # type: ignore[arg-type]
    )
    with session:
        for step in session.steps():
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
            assert step._clipped.squares is not None
            found.append(step._clipped.squares.clone())
            step.update()
    return found[0]


class Picture(nn.Module):
    """A convolution, whose gradients are written out, before a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2)
        self.out = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.conv(x.view(-1, 1, 2, 2))).flatten(1))


@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
@pytest.mark.parametrize("kind", ["layers", "picture"])
def test_squares_are_those_of_clipped_gradients_written_out(kind: str, engine: object) -> None:
    model, data = task(20)
    model = model if kind == "layers" else Picture()
    norm = 0.4
    truth = torch.zeros(0, dtype=torch.float64)
    for x, y in data:
        loss = functional.cross_entropy(model(x[None]), y[None])
        gradients = [part.double() for part in torch.autograd.grad(loss, list(model.parameters()))]
        length = math.sqrt(sum(float(part.square().sum()) for part in gradients))
        sums = []
        for part in gradients:
            clipped = (part * min(1.0, norm / length)).square()
            sums.append(clipped.reshape(len(part), -1).sum(1))
            if part.dim() > 1:
                sums.append(clipped.reshape(part.shape[0], part.shape[1], -1).sum((0, 2)))
        truth = torch.cat(sums) if not len(truth) else truth + torch.cat(sums)
    torch.testing.assert_close(squares_of(engine, data, model, norm), truth, rtol=1e-4, atol=1e-7)


def test_removing_one_example_moves_the_squares_at_most_their_bound() -> None:
    model, data = task(12)
    data = [(x * 50, y) for x, y in data]
    whole = squares_of(BookKeeping(), data, model, 0.3)
    for place in range(len(data)):
        moved = whole - squares_of(BookKeeping(), data[:place] + data[place + 1 :], model, 0.3)
        assert float(moved.norm()) <= squares_bound((0.3,)) * (1 + 1e-5)


@settings(deadline=None, max_examples=60)
@given(
    bounds=st.lists(st.floats(min_value=0.01, max_value=10), min_size=1, max_size=4),
    seed=st.integers(min_value=0, max_value=1000),
)
def test_no_gradient_within_the_bounds_moves_the_squares_further(bounds: list[float], seed: int) -> None:
    generator = np.random.default_rng(seed)
    moved = []
    for bound in bounds:
        gradient = generator.standard_normal((3, 4)) * (generator.random((3, 4)) < generator.random())
        gradient *= bound / max(float(np.linalg.norm(gradient)), 1e-12)
        moved += [*np.square(gradient).sum(1), *np.square(gradient).sum(0)]
    assert float(np.linalg.norm(moved)) <= squares_bound(bounds) * (1 + 1e-9)
    spikes = [value for bound in bounds for value in (bound**2, bound**2)]
    assert float(np.linalg.norm(spikes)) == pytest.approx(squares_bound(bounds)), "single entries reach it"


@pytest.mark.parametrize("grouping", [OneGroup(), PerLayer()], ids=["one group", "per layer"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_step_is_charged_for_the_noise_of_sum_and_squares_together(share: float, grouping: object) -> None:
    layout = Layout.of([("a", (3, 4)), ("b", (3,))], grouping)  # type: ignore[arg-type]
    piece = AdaptiveGaussian(learning=ReleasedSquares(share=share), noise_multiplier=2.0)
    run = piece.start(layout, has_mask=False)
    frame, squares = run.begin(0, torch.zeros(1))
    bounds = (0.7,) if layout.num_groups == 1 else (0.7, 0.2)
    sensitivity = Sensitivity(bounds=bounds)
    source = Recorder()
    total = ClippedSum(flat=torch.zeros(15), layout=layout, sensitivity=sensitivity, frame=frame, squares=squares)
    event = run.add(total, source).event
    (size, std), (num_squares, squares_std) = source.stds
    assert (size, num_squares) == (15, num_axis_sums(layout))
    fused = fuse_gaussians((std / math.hypot(*bounds), squares_std / squares_bound(bounds)))
    assert same_event(event, gaussian_event(bounds=(1.0,), stds=(fused,)))
    assert fused == pytest.approx(2.0, rel=1e-12), "which is what the plan charges"


def test_history_costs_nothing_beside_the_sum() -> None:
    run = AdaptiveGaussian(learning=PastGradients(), noise_multiplier=2.0).start(
        Layout.of([("a", (3, 4))], OneGroup()), has_mask=False
    )
    frame, squares = run.begin(0, torch.zeros(1))
    assert squares is None
    source = Recorder()
    sensitivity = Sensitivity(bounds=(0.5,))
    run.add(ClippedSum(flat=torch.zeros(12), layout=run.layout, sensitivity=sensitivity, frame=frame), source)
    assert source.stds == [(12, 1.0)]


def test_a_sum_made_for_other_units_is_refused() -> None:
    run = SQUARES.start(Layout.of([("a", (3, 4))], OneGroup()), has_mask=False)
    frame, squares = run.begin(0, torch.zeros(1))
    made = ClippedSum(
        flat=torch.zeros(12), layout=run.layout, sensitivity=Sensitivity(bounds=(1.0,)), frame=frame, squares=squares
    )
    for wrong in (replace(made, frame=None), replace(made, squares=None), replace(made, squares=torch.zeros(7))):
        with pytest.raises(LoopError, match="does not belong to this step"):
            run.add(wrong, Recorder())
    with pytest.raises(LoopError, match="session"):
        SQUARES.add(made, Recorder())


@pytest.mark.parametrize(
    "learning",
    [ReleasedSquares(share=0.5, every=2), PastGradients(first=4, every=2)],
    ids=["released squares", "past gradients"],
)
def test_units_follow_badly_scaled_features(learning: ReleasedSquares | PastGradients) -> None:
    torch.manual_seed(1)
    features = torch.randn(4000, 4) * SCALES
    labels = (features[:, 3] + features[:, 2] > 0).long()
    model = nn.Linear(4, 2)
    plan = replace(
        plan_with(AdaptiveGaussian(learning=learning, floor=1e-3, noise_multiplier=1.0), steps=30),
        sampling=Poisson(rate=0.25, steps=30, expected_batch_size=1000),
    )
    data = list(zip(features, labels, strict=True))
    with privatize(
        model, SGD(model.parameters(), lr=0.02), data, plan, performance=Performance(physical_batch_size=2000), seed=0
    ) as session:
        train(session)
        run = session._run.state.noise
    assert isinstance(run, AdaptiveGaussianRun)
    columns = np.array(run.learning.geometry.columns[0])
    assert columns.argmax() == 3
    assert columns[3] > 2 * columns[:2].max()
    if isinstance(learning, ReleasedSquares):
        assert columns[3] / columns[2] == pytest.approx(3.0, rel=0.4), "the root of the ratio of second moments"


@pytest.mark.parametrize(
    "learning",
    [ReleasedSquares(every=2), PastGradients(first=1, every=2)],
    ids=["released squares", "past gradients"],
)
def test_a_resumed_run_goes_on_from_the_units_it_had_learned(
    learning: ReleasedSquares | PastGradients, tmp_path: Path
) -> None:
    plan = plan_with(AdaptiveGaussian(learning=learning, noise_multiplier=1.5))

    def session() -> Session:
        model, data = task()
        return privatize(model, SGD(model.parameters(), lr=0.1), data, plan, folder=tmp_path, checkpoint_every=1)

    with session() as first:
        train(first, stop_after=3)
        kept, units = first._run.state.noise.state(), first._run.state.noise.begin(3, torch.zeros(1)).frame
    with session() as again:
        assert again._run.state.noise.state() == kept
        found = again._run.state.noise.begin(3, torch.zeros(1)).frame
        assert found is not None
        assert units is not None
        assert found.geometry == units.geometry
        train(again)
    assert again.guarantee().epsilon == plan.guarantee().epsilon


def test_a_state_of_another_model_is_refused() -> None:
    layout = Layout.of([("a", (3, 4))], OneGroup())
    for learning in (ReleasedSquares(), PastGradients()):
        run = AdaptiveGaussian(learning=learning, noise_multiplier=1.0).start(layout, has_mask=False)
        with pytest.raises(CheckpointError, match="another plan"):
            run.restore({"moments": (1.0,), "count": (1.0,)})
    plain = Gaussian(noise_multiplier=1.0).start(layout, has_mask=True)
    plain.restore({})
    with pytest.raises(CheckpointError, match="keeps no state"):
        plain.restore({"moments": (1.0,)})


def test_what_cannot_learn_units_is_refused() -> None:
    model, data = task()
    masked = replace(plan_with(SQUARES), mask=FrozenMask(rate=0.5, seed=0))
    with pytest.raises(PlanError, match="NoMask"):
        privatize(model, SGD(model.parameters(), lr=0.1), data, masked)
    with pytest.raises(PlanError, match="Eager"):
        privatize(
            model,
            SGD(model.parameters(), lr=0.1),
            data,
            plan_with(SQUARES),
            performance=Performance(launch=CudaGraph()),
        )


@pytest.mark.parametrize(
    "values",
    [{"learning": ReleasedSquares}, {"preconditioning": 1.5}, {"power": 0.0}, {"floor": math.nan}],
    ids=["a class", "preconditioning", "power", "floor"],
)
def test_settings_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        AdaptiveGaussian(**values)  # type: ignore[arg-type]
    for share in (0.0, 1.0, math.nan):
        with pytest.raises(ArgumentError):
            ReleasedSquares(share=share)
