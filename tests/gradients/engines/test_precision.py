"""The bound holds in finite precision: under rounding, cancellation, underflow and reduced-precision settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.clipping import Threshold
from privet.mechanism.sums import ClippedSum
from tests.gradients.reference import LossFunction, engine_clipped_sum, layout_of, trainable
from tests.gradients.zoo import squared

ENGINES: dict[str, Engine] = {"book-keeping": BookKeeping(), "functional": Functional()}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
BOUND = 1.0
SLACK = 1 + 1e-6


def contribution(
    model: nn.Module, loss: LossFunction, example: Tensor, *, bound: float = BOUND, engine: Engine | None = None
) -> float:
    """Length of what one example adds to an empty sum."""
    found = engine_clipped_sum(engine or BookKeeping(), model, loss, example, Threshold(norm=bound))
    return float(found.double().norm())


def steep(model: nn.Module, inputs: Tensor) -> Tensor:
    return 100 * squared(model, inputs)


# ------------------------------------------------------------------------------------------- reduced precision

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 7)), (30,)),
    "sequence": (lambda: nn.Linear(30, 20), (4, 30)),
    "long sequence": (lambda: nn.Linear(5, 3), (40, 5)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), (2, 9, 9)),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (5, 16)),
}
each_model = pytest.mark.parametrize("name", MODELS)
# half-precision convolutions of some processors are not usable outside a plain forward pass
each_product = pytest.mark.parametrize("name", ["linear", "sequence", "long sequence"])


def built(name: str, seed: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    build, shape = MODELS[name]
    return build(), 3 * torch.randn(1, *shape)


@each_model
def test_single_precision_keeps_the_bound(name: str) -> None:
    for seed in range(8):
        assert contribution(*_ordered(built(name, seed))) <= BOUND * SLACK


def _ordered(pair: tuple[nn.Module, Tensor]) -> tuple[nn.Module, LossFunction, Tensor]:
    return pair[0], steep, pair[1]


def autocast_loss(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return 100 * model(inputs).flatten(1).float().square().sum(1)


@each_model
def test_a_forward_pass_in_half_precision_keeps_the_bound(name: str) -> None:
    for seed in range(8):
        model, example = built(name, seed)
        assert contribution(model, autocast_loss, example) <= BOUND * SLACK


@each_product
def test_calling_backward_inside_autocast_keeps_the_bound(name: str) -> None:
    for seed in range(8):
        model, example = built(name, seed)
        with torch.autocast("cpu", torch.bfloat16):
            assert contribution(model, autocast_loss, example) <= BOUND * SLACK


@pytest.fixture(name="fast_products")
def reduced_matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("fast_products")
@each_product
def test_fast_matrix_products_keep_the_bound(name: str) -> None:
    for seed in range(8):
        assert contribution(*_ordered(built(name, seed))) <= BOUND * SLACK


@pytest.mark.gpu
@pytest.mark.usefixtures("fast_products")
@each_model
def test_fast_matrix_products_keep_the_bound_on_a_device(name: str) -> None:
    for seed in range(8):
        model, example = built(name, seed)
        found = engine_clipped_sum(BookKeeping(), model.cuda(), on_device, example.cuda(), Threshold(norm=BOUND))
        assert float(found.double().norm()) <= BOUND * SLACK


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@each_model
def test_half_precision_on_a_device_keeps_the_bound_and_stays_near_full_precision(
    name: str, dtype: torch.dtype
) -> None:
    def under_autocast(model: nn.Module, inputs: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=dtype):
            return model(inputs).float().flatten(1).square().sum(1)

    for seed in range(4):
        model, example = built(name, seed)
        model, example = model.cuda(), example.cuda()
        found = engine_clipped_sum(BookKeeping(), model, under_autocast, example, Threshold(norm=1e-3))
        assert float(found.double().norm()) <= 1e-3 * SLACK
        batch = torch.cat([example, example.flip(-1), 0.5 * example])
        half = engine_clipped_sum(BookKeeping(), model, under_autocast, batch, Threshold(norm=1e-3))
        full = engine_clipped_sum(
            BookKeeping(), model, lambda model, inputs: model(inputs).flatten(1).square().sum(1), batch,
            Threshold(norm=1e-3),
        )  # fmt: skip
        # the forward pass alone differs by some percent
        assert float((half - full).norm() / full.norm()) <= 0.1


def on_device(model: nn.Module, inputs: Tensor) -> Tensor:
    return 100 * model(inputs).flatten(1).square().sum(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_stored_in_half_precision_keeps_the_bound_in_a_single_precision_sum(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 7)).to(dtype)
    layout, rule = layout_of(model), Threshold(norm=BOUND).for_groups(1)
    into = ClippedSum(flat=torch.zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity)
    running = BookKeeping().start(model, [value for _, value in trainable(model)], layout)
    inputs = torch.randn(1, 30, dtype=dtype)
    running.begin(1)
    mark_batch([inputs])
    running.add_clipped(model(inputs).float().square().sum(1), rule, into)
    running.close()
    assert 0 < float(into.flat.double().norm()) <= BOUND * SLACK


# ------------------------------------------------------------------------------------------------- cancellation


def alternating(model: nn.Module, inputs: Tensor) -> Tensor:
    """Positions pull in turn one way and the other, so that equal positions cancel exactly."""
    out = model(inputs)
    signs = torch.ones(out.shape[1], dtype=out.dtype)
    signs[1::2] = -1
    return (out.flatten(2).sum(2) * signs).sum(1)


SEQUENCES = {"few positions": (4, 16, 12), "many positions": (20, 3, 2)}


@each_engine
@pytest.mark.parametrize("spread", [1e3, 1e2, 10.0, 3.0, 1.0, 0.1])
@pytest.mark.parametrize("shape", SEQUENCES.values(), ids=SEQUENCES)
def test_positions_that_nearly_cancel_keep_the_bound(
    engine: Engine, shape: tuple[int, int, int], spread: float
) -> None:
    length, width, out = shape
    for seed in range(20):
        torch.manual_seed(seed)
        example = 1e3 * torch.randn(1, 1, width).expand(1, length, width) + spread * torch.randn(1, length, width)
        found = contribution(nn.Linear(width, out, bias=False), alternating, example, engine=engine)
        # rounding of the summed gradient itself is in proportion to its terms, not to what is left of them
        assert found <= BOUND * (1 + 1e-4)


@each_engine
@pytest.mark.parametrize("size", [1e4, 1e7, 1e10, 1e15])
@pytest.mark.parametrize("shape", SEQUENCES.values(), ids=SEQUENCES)
def test_an_example_that_cancels_itself_does_not_wipe_out_the_others(
    engine: Engine, shape: tuple[int, int, int], size: float
) -> None:
    length, width, out = shape
    torch.manual_seed(0)
    model = nn.Linear(width, out, bias=False)
    inputs = torch.randn(9, length, width)
    inputs[4] = 0
    inputs[4, :2] = size
    assert_moves_little(engine, model, alternating, inputs)


@each_engine
@pytest.mark.parametrize("size", [1e4, 1e10, 1e15])
def test_uses_that_cancel_each_other_do_not_wipe_out_the_other_examples(engine: Engine, size: float) -> None:
    class Twice(nn.Module):
        """One layer used twice; large examples pull it both ways."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2, bias=False)

        def forward(self, inputs: Tensor) -> Tensor:
            large = inputs[:, :1].gt(1e3)
            out: Tensor = self.layer(inputs) - self.layer(inputs * large)
            return out

    torch.manual_seed(0)
    inputs = torch.randn(9, 6)
    inputs[4] = size
    assert_moves_little(engine, Twice(), lambda model, part: model(part).sum(1), inputs)


@each_engine
@pytest.mark.parametrize("size", [1e4, 1e10, 1e15])
def test_pixels_that_cancel_do_not_wipe_out_the_other_examples(engine: Engine, size: float) -> None:
    torch.manual_seed(0)
    model, inputs = nn.Conv1d(1, 2, 3, bias=False), torch.randn(9, 1, 10)
    inputs[4] = size
    assert_moves_little(engine, model, lambda conv, part: alternating(lambda x: conv(x).transpose(1, 2), part), inputs)


def assert_moves_little(engine: Engine, model: nn.Module, loss: LossFunction, inputs: Tensor) -> None:
    """Example 4 has a gradient of zero: with it or without it, the sum is the same up to rounding."""
    clipping = Threshold(norm=BOUND)
    others = torch.cat([inputs[:4], inputs[5:]])
    moved = engine_clipped_sum(engine, model, loss, inputs, clipping).double()
    moved -= engine_clipped_sum(engine, model, loss, others, clipping).double()
    assert float(moved.norm()) <= BOUND * 1e-3


# ---------------------------------------------------------------------------------------- underflow and overflow


@each_engine
@pytest.mark.parametrize("bound", [1e-6, 1e-5, 1.0])
@pytest.mark.parametrize("size", [1e-30, 1e-23, 1e-18, 1e-10])
def test_squares_too_small_to_represent_do_not_hide_a_gradient(engine: Engine, size: float, bound: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4, bias=False)
    found = contribution(model, lambda m, x: m(x).sum(1) * 1e18, torch.full((1, 6), size), bound=bound, engine=engine)
    assert found <= bound * SLACK


@each_engine
@pytest.mark.parametrize("slope", [1e10, 1e18, 1e19, 1e30, 1e38])
def test_gradients_too_long_to_measure_stay_within_the_bound(engine: Engine, slope: float) -> None:
    torch.manual_seed(0)
    found = contribution(nn.Linear(6, 4), lambda m, x: (m(x) * slope).sum(1), torch.randn(1, 6), engine=engine)
    assert found <= BOUND * SLACK


class NormOfSinglePrecision(nn.Module):
    """A network of double precision whose norm is taken in single precision, as decoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(30, 40), nn.Linear(40, 7)
        self.scale = nn.Parameter(torch.ones(40))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).float()
        found = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)
        output: Tensor = self.last(self.scale * found.softmax(-1).to(inputs.dtype))
        return output


def test_parts_in_single_precision_are_no_reason_to_refuse_a_model_of_double_precision() -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        model = NormOfSinglePrecision().double()
        engine_clipped_sum(
            BookKeeping(), model, steep, 3 * torch.randn(4, 30, dtype=torch.float64), Threshold(norm=BOUND)
        )
