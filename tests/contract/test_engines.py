"""Laws of every gradient engine, over every supported way of using a parameter.

The sums are compared in double precision wherever the law is exact, so that a violation cannot hide in rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from privet.errors import LoopError, PrivetError
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import Grouping, OneGroup, PerLayer, PerParameter
from privet.mechanism.sums import ClippedSum
from tests.gradients.reference import engine_clipped_sum, layout_of, relative_error, trainable
from tests.gradients.zoo import CASES, Case, squared

ENGINES: dict[str, Engine] = {
    "book-keeping": BookKeeping(),
    "functional": Functional(),
    "functional in chunks": Functional(chunk_size=2),
}
PAIRS = [
    pytest.param(engine, case, id=f"{name}-{case.name}")
    for case in CASES
    for name, engine in ENGINES.items()
    if case.functional or isinstance(engine, BookKeeping)
]
each_pair = pytest.mark.parametrize(("engine", "case"), PAIRS)
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
# tokens are whole numbers and cannot be hostile
each_pair_of_floats = pytest.mark.parametrize(
    ("engine", "case"), [pair for pair in PAIRS if pair.values[1].inputs(1).is_floating_point()]
)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

HOSTILE = [math.nan, math.inf, -math.inf, 1e30, -1e38, 1e-40]
SIZE = 6
BOUND = 0.5


def build(case: Case, seed: int, dtype: torch.dtype, size: int = SIZE) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    model, inputs = case.build().to(dtype), case.inputs(size)
    return model, inputs.to(dtype) if inputs.is_floating_point() else inputs


def hundredfold(model: nn.Module, inputs: Tensor) -> Tensor:
    """A loss so steep that every example is clipped: the case in which the bound is reached."""
    return 100 * squared(model, inputs)


def clipped(engine: Engine, model: nn.Module, inputs: Tensor, grouping: Grouping | None = None) -> Tensor:
    """The sum of these examples, each clipped; zero without examples."""
    if len(inputs) == 0:
        return torch.zeros(layout_of(model).num_coordinates, dtype=torch.float64)
    return engine_clipped_sum(engine, model, hundredfold, inputs, Threshold(norm=BOUND), grouping).double()


def without(inputs: Tensor, left_out: int) -> Tensor:
    return torch.cat([inputs[:left_out], inputs[left_out + 1 :]])


def allowance(dtype: torch.dtype, size: int) -> float:
    """The bound, plus what rounding the two compared sums may add in single precision."""
    rounding = 4 * size * torch.finfo(torch.float32).eps if dtype == torch.float32 else 0.0
    return BOUND * (1 + 1e-6 + rounding)


@each_pair
def test_removing_one_example_moves_the_sum_at_most_the_sensitivity(engine: Engine, case: Case) -> None:
    for dtype in (torch.float64, torch.float32):
        model, inputs = build(case, 0, dtype)
        full = clipped(engine, model, inputs)
        moved = [float((full - clipped(engine, model, without(inputs, index))).norm()) for index in range(SIZE)]
        assert max(moved) <= allowance(dtype, SIZE)
        if dtype == torch.float64:
            # The bound is reached, so the law has teeth.
            assert max(moved) == pytest.approx(BOUND, rel=1e-6)


@each_pair_of_floats
def test_a_hostile_example_moves_the_sum_at_most_the_sensitivity(engine: Engine, case: Case) -> None:
    model, inputs = build(case, 1, torch.float32)
    rest = clipped(engine, model, without(inputs, 2))
    for value in HOSTILE:
        inputs[2] = value
        moved = clipped(engine, model, inputs) - rest
        assert bool(moved.isfinite().all()), value
        assert float(moved.norm()) <= allowance(torch.float32, SIZE), value


@each_engine
@given(
    case=st.sampled_from([case for case in CASES if case.functional]),
    seed=st.integers(0, 1000),
    size=st.integers(1, 6),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_no_example_of_any_kind_moves_the_sum_further_than_the_sensitivity(
    engine: Engine, case: Case, seed: int, size: int, data: st.DataObject
) -> None:
    grouping = data.draw(st.sampled_from([OneGroup(), PerLayer(), PerParameter()]))
    model, inputs = build(case, seed, torch.float64, size)
    index = data.draw(st.integers(0, size - 1))
    if inputs.is_floating_point():
        places = inputs[index].flatten()
        place = data.draw(st.integers(0, len(places) - 1))
        places[place] = data.draw(st.sampled_from([*HOSTILE, 1e200, 5e-324, 0.0, 1e6]))
        inputs[index] = places.view_as(inputs[index])
    moved = clipped(engine, model, inputs, grouping) - clipped(engine, model, without(inputs, index), grouping)
    assert bool(moved.isfinite().all())
    assert float(moved.norm()) <= BOUND * (1 + 1e-6)


@each_pair
def test_an_example_adds_the_same_to_every_batch(engine: Engine, case: Case) -> None:
    model, inputs = build(case, 2, torch.float64, 9)
    clipping, added = Threshold(norm=BOUND), inputs[8:]
    alone = engine_clipped_sum(engine, model, squared, added, clipping)
    for others in (inputs[:1], inputs[1:4], inputs[1:8]):
        others_alone = engine_clipped_sum(engine, model, squared, others, clipping)
        together = engine_clipped_sum(engine, model, squared, torch.cat([others, added]), clipping)
        assert torch.allclose(together - others_alone, alone, rtol=0, atol=1e-9 * BOUND)


@each_pair
def test_without_clipping_the_sum_is_the_ordinary_gradient(engine: Engine, case: Case) -> None:
    model, inputs = build(case, 3, torch.float64)
    parameters = [value for _, value in trainable(model)]
    gradients = torch.autograd.grad(squared(model, inputs).sum(), parameters, allow_unused=True)
    plain = torch.cat(
        [(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(parameters, gradients, strict=True)]
    )
    found = engine_clipped_sum(engine, model, squared, inputs, Threshold(norm=1e9))
    assert relative_error(found, plain) <= 1e-10


@each_pair
def test_physical_batch_size_never_changes_the_sum(engine: Engine, case: Case) -> None:
    model, inputs = build(case, 4, torch.float64)
    clipping = Threshold(norm=BOUND)
    whole = engine_clipped_sum(engine, model, squared, inputs, clipping)
    for size in (1, 2, 4):
        parts = engine_clipped_sum(engine, model, squared, inputs, clipping, physical_batch_size=size)
        assert relative_error(parts, whole) <= 1e-9


@pytest.mark.parametrize("case", [case for case in CASES if case.functional], ids=lambda case: case.name)
def test_engines_agree_and_so_a_guarantee_cannot_depend_on_the_choice(case: Case) -> None:
    model, inputs = build(case, 5, torch.float64)
    first, *others = (engine_clipped_sum(e, model, squared, inputs, Threshold(norm=BOUND)) for e in ENGINES.values())
    for other in others:
        assert relative_error(other, first) <= 1e-9


@each_pair
def test_masked_coordinates_are_zero_and_the_rest_is_clipped_by_its_own_norm(engine: Engine, case: Case) -> None:
    model, inputs = build(case, 6, torch.float64)
    size = layout_of(model).num_coordinates
    keep = torch.arange(size) % 3 != 0
    clipping = Threshold(norm=1e9)
    full = engine_clipped_sum(engine, model, squared, inputs[:1], clipping)
    kept = engine_clipped_sum(engine, model, squared, inputs[:1], clipping, keep=keep)
    assert torch.allclose(kept, torch.where(keep, full, 0), rtol=1e-9, atol=1e-12)
    bound = 0.1 * float(kept.norm())
    clipped = engine_clipped_sum(engine, model, squared, inputs[:1], Threshold(norm=bound), keep=keep)
    assert torch.allclose(clipped, 0.1 * kept, rtol=1e-9, atol=1e-12)


# -------------------------------------------------------------------------------------- what is left on the model


def belongings(model: nn.Module) -> list[tuple[object, ...]]:
    """Everything an engine could leave behind on a model: hooks, attributes, gradients, forward methods."""
    hooks = ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks"]
    modules = [
        (name, sorted(vars(module)), [len(getattr(module, hook)) for hook in hooks], type(module).forward)
        for name, module in model.named_modules()
    ]
    parameters = [
        (name, sorted(vars(value)), value.grad, bool(value._backward_hooks)) for name, value in model.named_parameters()
    ]
    return [*modules, *parameters, ("keys", list(model.state_dict()))]


@each_pair
def test_the_model_is_left_as_it_was_found(engine: Engine, case: Case) -> None:
    model, inputs = build(case, 7, torch.float32)
    before = belongings(model)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    engine_clipped_sum(engine, model, squared, inputs, Threshold(norm=BOUND), physical_batch_size=4)
    assert belongings(model) == before
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert torch._C._len_torch_function_stack() == 0


@pytest.fixture(name="model")
def small_model() -> Iterator[nn.Module]:
    torch.manual_seed(0)
    yield nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    assert torch._C._len_torch_function_stack() == 0, "a mode was left on"


def started(engine: Engine, model: nn.Module) -> tuple[object, ClippedSum, object]:
    layout = layout_of(model)
    rule = Threshold(norm=BOUND).for_groups(1)
    running = engine.start(model, [value for _, value in trainable(model)], layout)
    return (
        running,
        ClippedSum(flat=torch.zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity),
        rule,
    )


@each_engine
def test_gradients_stay_absent_while_a_batch_is_open_and_after_it(engine: Engine, model: nn.Module) -> None:
    running, into, rule = started(engine, model)
    inputs = torch.randn(5, 4)
    running.begin(5)
    mark_batch([inputs])
    losses = squared(model, inputs)
    assert all(value.grad is None for value in model.parameters())
    norms = running.add_clipped(losses, rule, into)
    running.close()
    assert norms.shape == (5, 1)
    assert all(value.grad is None for value in model.parameters())
    assert all(not vars(value) for value in model.parameters())


@each_engine
def test_an_error_in_the_forward_pass_leaves_nothing_on_after_close(engine: Engine, model: nn.Module) -> None:
    before = belongings(model)
    running, _, _ = started(engine, model)
    running.begin(5)
    with pytest.raises(RuntimeError):
        model(torch.randn(5, 99))
    running.close()
    assert belongings(model) == before


@each_engine
def test_an_abandoned_batch_is_forgotten(engine: Engine, model: nn.Module) -> None:
    running, into, rule = started(engine, model)
    running.abandon()
    inputs = torch.randn(5, 4)
    mark_batch([inputs])
    running.begin(5)
    squared(model, inputs)
    running.abandon()
    mark_batch([inputs])
    running.begin(5)
    running.add_clipped(squared(model, inputs), rule, into)
    running.close()
    expected = engine_clipped_sum(engine, model, squared, inputs, Threshold(norm=BOUND))
    assert torch.allclose(into.flat, expected)


@each_engine
def test_batches_are_opened_one_at_a_time_and_closed_by_their_losses(engine: Engine, model: nn.Module) -> None:
    running, into, rule = started(engine, model)
    try:
        with pytest.raises(LoopError, match="outside"):
            running.add_clipped(torch.zeros(3, requires_grad=True), rule, into)
        running.begin(3)
        with pytest.raises(LoopError, match="still open"):
            running.begin(3)
    finally:
        running.close()


@each_engine
def test_a_refused_batch_adds_nothing(engine: Engine, model: nn.Module) -> None:
    running, into, rule = started(engine, model)
    inputs = torch.randn(5, 4)
    mark_batch([inputs])
    running.begin(5)
    with pytest.raises(PrivetError):
        running.add_clipped(squared(model, inputs).mean(), rule, into)
    running.close()
    assert bool((into.flat == 0).all())
