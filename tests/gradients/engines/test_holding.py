"""The bound is held by code: a rule that lets more through than it declares moves the sum by no more than the bound."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privet.errors import LoopError, UnsupportedModel
from privet.federated.party_sums import clip
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping, RunningBookKeeping
from privet.gradients.engines.clipper import Clipper
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.gradients.engines.holding import held_factors
from privet.gradients.norms.planner import Planner
from privet.gradients.norms.strategies import Squares, Store
from privet.mechanism.changing_clipping import AdaptiveQuantile
from privet.mechanism.clipping import Automatic, ClippingRule, KeepOrDrop, PerSampleAdaptive, Threshold
from privet.mechanism.grouping import Grouping, OneGroup, PerParameter
from privet.mechanism.sensitivity import Norm, Sensitivity
from privet.mechanism.sums import ClippedSum
from privet.training.batching import with_gradients
from privet.training.launch.launcher import Replay
from privet.training.launch.recording import Compile, Graph, Outcome, Recorder
from tests.gradients.reference import engine_clipped_sum, layout_of, trainable

BOUND, SIZE = 0.5, 6

FACTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ten times the bound": lambda norms, bounds: 10 * (bounds / norms).clamp_max(1.0),
    "no clipping": lambda norms, bounds: torch.ones_like(norms),
    "the wrong sign": lambda norms, bounds: -10 * bounds / norms,
    "infinite": lambda norms, bounds: torch.full_like(norms, math.inf),
    "not a number": lambda norms, bounds: torch.full_like(norms, math.nan),
    "norms written over": lambda norms, bounds: 1 / norms.fill_(1e-3),
}


@dataclass(frozen=True)
class Loose:
    """A rule that declares a bound and does something else."""

    name: str
    bounds: tuple[float, ...]

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(bounds=self.bounds)

    def factors(self, norms: Tensor) -> Tensor:
        # filled on the device: a CUDA graph records no copy from the processor
        bounds = torch.stack([norms.new_full((), bound) for bound in self.bounds])
        return FACTORS[self.name](norms, bounds)


@dataclass(frozen=True)
class LoosePiece:
    name: str
    norm_kind: Norm = Norm.L2

    def for_groups(self, num_groups: int) -> Loose:
        return Loose(self.name, Threshold(norm=BOUND).for_groups(num_groups).sensitivity.bounds)


ENGINES: dict[str, Engine] = {"book-keeping": BookKeeping(), "functional": Functional()}
GROUPINGS: dict[str, Grouping] = {"one group": OneGroup(), "one per parameter": PerParameter()}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
each_grouping = pytest.mark.parametrize("grouping", GROUPINGS.values(), ids=GROUPINGS)
each_rule = pytest.mark.parametrize("name", FACTORS)


def network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, torch.randn(SIZE, 4, dtype=torch.float64)


def steep(model: nn.Module, inputs: Tensor) -> Tensor:
    return 100 * model(inputs).sin().square().sum(1)


def lengths_by_group(moved: Tensor, model: nn.Module, grouping: Grouping) -> Tensor:
    layout = layout_of(model, grouping)
    squares = moved.new_zeros(layout.num_groups)
    for where, group in zip(layout.slices, layout.groups, strict=True):
        squares[group] += moved[where].square().sum()
    return squares.sqrt()


def assert_within(moved: Tensor, model: nn.Module, grouping: Grouping) -> None:
    bounds = torch.tensor(LoosePiece("").for_groups(layout_of(model, grouping).num_groups).bounds).to(moved)
    assert bool(moved.isfinite().all())
    assert bool((lengths_by_group(moved, model, grouping) <= bounds * (1 + 1e-6)).all())


@each_engine
@each_grouping
@each_rule
@pytest.mark.parametrize("masked", [False, True], ids=["every coordinate", "a mask"])
def test_a_loose_rule_moves_the_sum_by_no_more_than_its_declared_bound(
    engine: Engine, grouping: Grouping, name: str, masked: bool
) -> None:
    model, inputs = network()
    keep = torch.arange(layout_of(model).num_coordinates) % 3 != 0 if masked else None
    full = engine_clipped_sum(engine, model, steep, inputs, LoosePiece(name), grouping, keep=keep)
    for left_out in range(SIZE):
        rest = torch.cat([inputs[:left_out], inputs[left_out + 1 :]])
        moved = full - engine_clipped_sum(engine, model, steep, rest, LoosePiece(name), grouping, keep=keep)
        assert_within(moved, model, grouping)


@each_engine
def test_a_rule_ten_times_too_loose_comes_out_as_the_rule_it_declares(engine: Engine) -> None:
    model, inputs = network()
    loose = engine_clipped_sum(engine, model, steep, inputs, LoosePiece("ten times the bound"))
    strict = engine_clipped_sum(engine, model, steep, inputs, Threshold(norm=BOUND))
    torch.testing.assert_close(loose, strict)


class _Plain:
    makes_graphs = False

    def record(self, program, places, present, leaves, engine):  # type: ignore[no-untyped-def]
        return lambda: Outcome(*program(places, present, *leaves))


@pytest.mark.parametrize("recorder", [_Plain(), Compile(graph=False)], ids=["replayed", "traced"])
@each_grouping
@pytest.mark.parametrize("masked", [False, True], ids=["every coordinate", "a mask"])
def test_a_replayed_or_traced_step_holds_a_loose_rule_too(
    recorder: Recorder, grouping: Grouping, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda traced, **_: traced)  # the trace itself, without the compiler's time
    assert_holds(recorder, grouping, masked)


@pytest.mark.slow
def test_a_compiled_step_holds_a_loose_rule_too() -> None:
    assert_holds(Compile(graph=False), PerParameter(), True)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "recorder", [Graph(), Compile(graph=False), Compile(graph=True)], ids=["graph", "compiled", "compiled graph"]
)
@each_grouping
@pytest.mark.parametrize("masked", [False, True], ids=["every coordinate", "a mask"])
def test_a_step_recorded_on_a_device_holds_a_loose_rule_too(
    recorder: Recorder, grouping: Grouping, masked: bool
) -> None:
    assert_holds(recorder, grouping, masked, device="cuda")


def assert_holds(recorder: Recorder, grouping: Grouping, masked: bool, *, device: str = "cpu") -> None:
    model, inputs = (part.to(device) for part in network())
    layout = layout_of(model, grouping)
    rule = LoosePiece("ten times the bound").for_groups(layout.num_groups)
    keep = torch.arange(layout.num_coordinates, device=device) % 3 != 0 if masked else None
    flat = torch.zeros(layout.num_coordinates, dtype=torch.float64, device=device)
    into = ClippedSum(flat=flat, layout=layout, sensitivity=rule.sensitivity, keep=keep)
    engine = BookKeeping().start(model, [value for _, value in trainable(model)], layout)
    replay = replay_of(engine, recorder)

    def losses(examples: Tensor) -> Tensor:
        return steep(model, examples)

    prove(engine, losses, inputs, rule, into)
    # one example, padded by copies of itself that add nothing: the sum is what that example adds
    alone = [inputs[place : place + 1] for place in range(SIZE)]
    assert replay.add([alone[0]], 1, 3, losses, rule, into) is None
    for example in [*alone, *alone]:
        into.clear()
        assert replay.add([example], 1, 3, losses, rule, into) is not None
        assert_within(into.flat, model, grouping)
        assert bool((into.flat != 0).any())
    assert replay._num_recordings == 1


def replay_of(engine: RunningBookKeeping, recorder: Recorder) -> Replay:
    device = engine.parameters[0].device
    return Replay(
        engine=engine, recorder=recorder, device=device, warm_up=1, max_recordings=4, level=logging.WARNING
    )  # fmt: skip


def prove(
    engine: RunningBookKeeping, losses: Callable[[Tensor], Tensor], inputs: Tensor, rule: ClippingRule, into: ClippedSum
) -> None:
    """Let the engine see the program once, as the first batch of a session does; its sum is thrown away."""
    batch, leaves = with_gradients([inputs], len(inputs))
    mark_batch(batch)
    engine.begin(len(inputs), leaves)
    engine.add_clipped(losses(*batch), rule, into)
    into.clear()


def test_a_recording_is_made_for_one_bound() -> None:
    model, inputs = network()
    layout = layout_of(model)
    wide = LoosePiece("no clipping").for_groups(1)
    flat = torch.zeros(layout.num_coordinates, dtype=torch.float64)
    engine = BookKeeping().start(model, [value for _, value in trainable(model)], layout)
    replay = replay_of(engine, _Plain())

    def losses(examples: Tensor) -> Tensor:
        return steep(model, examples)

    for bound in (BOUND, BOUND / 100):
        into = ClippedSum(flat=flat, layout=layout, sensitivity=Sensitivity(bounds=(bound,)))
        prove(engine, losses, inputs, wide, into)
        for _ in range(5):
            into.clear()
            done = replay.add([inputs[:1]], 1, 3, losses, wide, into)
        assert done is not None
        assert float(flat.norm()) <= bound * (1 + 1e-6)
    assert replay._num_recordings == 2


@each_engine
def test_a_rule_that_learns_is_held_to_the_bound_of_its_step(engine: Engine) -> None:
    model, inputs = network()
    run = AdaptiveQuantile(norm=BOUND, count_noise_std=1.0).start(num_groups=1, num_steps=3, expected_batch_size=2)
    for bound in (BOUND, BOUND / 7, BOUND * 3):
        run.bounds = (bound,)
        declared = run.begin(0, torch.zeros(1)).sensitivity
        layout = layout_of(model)
        flat = torch.zeros(layout.num_coordinates, dtype=torch.float64)
        into = ClippedSum(flat=flat, layout=layout, sensitivity=declared)
        running = engine.start(model, [value for _, value in trainable(model)], layout)
        _add(running, model, inputs[:1], Loose("ten times the bound", declared.bounds), into)
        assert float(flat.norm()) == pytest.approx(bound, rel=1e-9)


def _add(running: Any, model: nn.Module, inputs: Tensor, rule: ClippingRule, into: ClippedSum) -> Tensor:
    part = inputs.clone()
    mark_batch([part])
    running.begin(len(part))
    found: Tensor = running.add_clipped(steep(model, part), rule, into)
    running.close()
    return found


@pytest.mark.parametrize(
    "piece",
    [
        Threshold(norm=BOUND), Automatic(norm=BOUND), PerSampleAdaptive(norm=BOUND),
        KeepOrDrop(norm=BOUND, cutoff=7.0), AdaptiveQuantile(norm=BOUND, count_noise_std=1.0),
    ],
    ids=lambda piece: type(piece).__name__,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_shipped_rule_keeps_its_own_factors(piece: Any, dtype: torch.dtype) -> None:
    rule = piece.for_groups(2)
    spread = torch.logspace(-12, 12, 4001, dtype=torch.float64).to(dtype)
    norms = torch.stack([torch.cat([spread, spread.new_zeros(1)]), torch.cat([spread.flip(0), spread[:1]])], 1)
    found = held_factors(rule, norms, rule.sensitivity, 10**9)
    assert torch.equal(found, rule.factors(norms))
    hostile = torch.tensor([[math.inf, math.nan], [-math.nan, math.inf]], dtype=dtype)
    assert torch.equal(held_factors(rule, hostile, rule.sensitivity, 10), torch.zeros_like(hostile))


def test_a_rule_that_writes_into_the_norms_changes_nobody_elses() -> None:
    norms = torch.tensor([[3.0], [4.0]])
    held_factors(Loose("norms written over", (BOUND,)), norms, Sensitivity(bounds=(BOUND,)), 10)
    assert norms.tolist() == [[3.0], [4.0]]


def test_a_gradient_whose_squares_vanish_is_held_too() -> None:
    rule = Loose("infinite", (BOUND,))
    rule_finite = Automatic(norm=BOUND, stability=1e-30).for_groups(1)
    gradient = torch.full((1000,), 1e-23)  # squares are zero in single precision
    norms = gradient.square().sum().sqrt().view(1, 1)
    assert float(norms) == 0
    for loose in (rule, rule_finite):
        factor = held_factors(loose, norms, Sensitivity(bounds=(BOUND,)), 1000)
        assert float((gradient * factor.view(())).norm()) <= BOUND


def test_a_bound_for_fewer_groups_than_there_are_is_refused() -> None:
    model, inputs = network()
    with pytest.raises(LoopError, match="4 parameter groups needs one bound"):
        engine_clipped_sum(BookKeeping(), model, steep, inputs, _OneBound(), PerParameter())


@dataclass(frozen=True)
class _OneBound:
    norm_kind: Norm = Norm.L2

    def for_groups(self, num_groups: int) -> Loose:
        return Loose("ten times the bound", (BOUND,))


def test_one_vector_of_a_party_is_held_to_the_bound() -> None:
    model, _ = network()
    layout = layout_of(model)
    flat = 100 * torch.ones(layout.num_coordinates)
    for name in FACTORS:
        assert float(clip(flat, layout=layout, rule=Loose(name, (BOUND,))).norm()) <= BOUND * (1 + 1e-6)


# ------------------------------------------------------------------------------------------------ what it rests on


@dataclass(frozen=True)
class Relative:
    """Divides by the longest gradient of the batch: each factor is within its bound, and depends on the others."""

    norm_kind: Norm = Norm.L2

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(bounds=(BOUND,))

    def for_groups(self, num_groups: int) -> Relative:
        return self

    def factors(self, norms: Tensor) -> Tensor:
        return BOUND / norms.max().expand_as(norms)


@each_engine
def test_a_rule_that_divides_by_the_longest_of_the_batch_sees_one_example_at_a_time(engine: Engine) -> None:
    model, inputs = network()
    found = engine_clipped_sum(engine, model, steep, inputs, Relative())
    for left_out in range(SIZE):
        rest = torch.cat([inputs[:left_out], inputs[left_out + 1 :]])
        moved = found - engine_clipped_sum(engine, model, steep, rest, Relative())
        assert_within(moved, model, OneGroup())


def test_norms_that_are_measured_too_short_are_caught_by_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.measure

    def measure(self: Store, part: Any) -> Any:
        squares, kept = real(self, part)
        return Squares(sums=squares.sums / 4), kept

    monkeypatch.setattr(Store, "measure", measure)
    monkeypatch.setattr(Planner, "options", lambda *_: [Store()])
    monkeypatch.setattr(Clipper, "_POOLED_ON_PROCESSOR", 0)
    model, _ = network()
    inputs = torch.randn(SIZE, 50, 4, dtype=torch.float64)
    with pytest.raises(UnsupportedModel, match=r"0\.weight.*longer than the engine measured"):
        engine_clipped_sum(BookKeeping(), model, lambda *pair: steep(*pair).sum(1), inputs, Threshold(norm=BOUND))


@dataclass(kw_only=True)
class LooksAroundLater:
    """A rule that follows the longest gradient of the batch, once its trial is over."""

    inner: ClippingRule
    calls: int = 0

    @property
    def sensitivity(self) -> Sensitivity:
        return self.inner.sensitivity

    def factors(self, norms: Tensor) -> Tensor:
        self.calls += 1
        factors = self.inner.factors(norms)
        is_far = (norms > 100 * BOUND).any()
        return torch.where(is_far, factors * 1e-4, factors) if self.calls > 50 else factors


def test_a_rule_that_looks_at_other_rows_after_its_trial_moves_no_others() -> None:
    layout = layout_of(nn.Linear(2, 1))
    rule = LooksAroundLater(inner=Threshold(norm=BOUND).for_groups(layout.num_groups))
    norms = torch.full((SIZE, layout.num_groups), BOUND)
    for _ in range(60):
        alone = held_factors(rule, norms, rule.sensitivity, layout.num_coordinates)
    norms[0] = 1000 * BOUND
    together = held_factors(rule, norms, rule.sensitivity, layout.num_coordinates)
    assert torch.equal(together[1:], alone[1:])


@dataclass(kw_only=True)
class ReadsLater(LooksAroundLater):
    """The same by Python's own choice."""

    def factors(self, norms: Tensor) -> Tensor:
        self.calls += 1
        factors = self.inner.factors(norms)
        return factors * 1e-4 if self.calls > 50 and bool((norms > 100 * BOUND).any()) else factors


def test_a_rule_that_reads_norms_into_python_is_refused_when_it_does() -> None:
    layout = layout_of(nn.Linear(2, 1))
    rule = ReadsLater(inner=Threshold(norm=BOUND).for_groups(layout.num_groups))
    norms = torch.full((SIZE, layout.num_groups), BOUND)
    for _ in range(50):
        held_factors(rule, norms, rule.sensitivity, layout.num_coordinates)
    with pytest.raises(LoopError, match="ReadsLater cannot be computed for one example at a time"):
        held_factors(rule, norms, rule.sensitivity, layout.num_coordinates)
