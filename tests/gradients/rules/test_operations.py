"""Ways of using a parameter beyond the common layers: each is exact or refused, and which is written down here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from privet.errors import UnsupportedModel
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import LossFunction, engine_clipped_sum, loop_clipped_sum, relative_error
from tests.gradients.zoo import floats, squared, tokens

Shapes = tuple[tuple[int, ...], ...]
BATCH = 9


class Operation(nn.Module):
    """Some parameters and one function of examples and parameters."""

    def __init__(self, shapes: Shapes, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.values = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs, *self.values)


class First(nn.Module):
    """The first of a layer's outputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layer(inputs)[0]
        return out


@dataclass(frozen=True)
class Way:
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    exact: bool | None = True  # False: refused; None: either will do. In the default engine.
    functional_exact: bool | None = True


def way(
    name: str,
    shapes: Shapes,
    function: Callable[..., Tensor],
    inputs: Callable[[int], Tensor] | None = None,
    *,
    exact: bool | None = True,
    functional_exact: bool | None = True,
) -> Way:
    return Way(name, lambda: Operation(shapes, function), inputs or floats(6), exact, functional_exact)


def _written_into(inputs: Tensor, row: Tensor) -> Tensor:
    out = inputs.clone()
    out[:, 0] = row[0]
    return (out * row).sin()


def _added_in_place(inputs: Tensor, shift: Tensor, weight: Tensor) -> Tensor:
    moved = inputs.clone()
    moved += shift
    return moved.sin() + functional.linear(inputs, weight)


attention = functional.scaled_dot_product_attention
ids = tokens(4, 11)
WAYS = [
    way("matmul", ((6, 4),), lambda x, w: x @ w),
    way("addmm", ((4,), (6, 4)), lambda x, b, w: torch.addmm(b, x, w)),
    way("matmul from the left", ((1, 3, 5),), lambda x, w: w @ x, floats(5, 6)),
    way("matmul of the transpose", ((4, 6),), lambda x, w: (w @ x.T).T),
    way("einsum per position", ((5, 6, 4),), lambda x, w: torch.einsum("bti,tij->btj", x, w), floats(5, 6)),
    way("tensordot", ((6, 4),), lambda x, w: torch.tensordot(x, w, dims=1)),
    way("bilinear", ((3, 6, 6), (3,)), lambda x, w, b: functional.bilinear(x, x, w, b)),
    way("rows by index", ((11, 5),), lambda x, w: w[x], ids),
    way("functional embedding", ((11, 5),), lambda x, w: functional.embedding(x, w), ids),
    way("one look-up per example", ((11, 5),), lambda x, w: functional.embedding(x[:, 0], w), ids),
    way("take", ((11,),), lambda x, w: torch.take(w, x), ids),
    way("index_select", ((11, 5),), lambda x, w: w.index_select(0, x.flatten()).view(len(x), -1), ids),
    way("one-hot product", ((11, 5),), lambda x, w: functional.one_hot(x, 11).to(w.dtype) @ w, ids,
        functional_exact=False),
    way("scale", ((6,),), lambda x, w: x * w),
    way("scale from the left", ((6,),), lambda x, w: w * x),
    way("difference", ((6,),), lambda x, w: x - w),
    way("difference from the left", ((6,),), lambda x, w: w - x),
    way("sum with a factor", ((6,),), lambda x, w: torch.add(x, w, alpha=3)),
    way("in-place difference", ((6,),), lambda x, w: (x * 2).sub_(w), exact=None),
    way("in-place sum beside a layer", ((6,), (6, 6)), _added_in_place),
    way("written into examples", ((6,),), _written_into, exact=None),
    way("scale from the left, several positions", ((6,),), lambda x, w: w * x.sin(), floats(5, 6)),
    way("scale of rows", ((5, 1),), lambda x, w: torch.mul(x.sin(), w), floats(5, 6)),
    way("scale with an axis of its own", ((1, 6),), lambda x, w: x.sin() * w),
    way("scale that widens examples", ((4, 1, 6),), lambda x, w: x.unsqueeze(1).unsqueeze(1) * w),
    way("two scales", ((6,), (6,)), lambda x, v, w: (v * x).sin() * w, floats(5, 6)),
    way("a parameter times another", ((6,), (6,)), lambda x, v, w: x * (v * w), floats(5, 6)),
    way("scale as long as the batch", ((9,),), lambda x, w: (x * w).sin(), floats(9)),
    way("learned bias of attention", ((1, 2, 5, 5),), lambda x, w: attention(x, x.sin(), x, attn_mask=w),
        floats(2, 5, 6)),
    way("learned bias of attention with groups", ((4, 5, 5),),
        lambda x, w: attention(x, x[:, :2].sin(), x[:, :2], w, scale=0.3, enable_gqa=True), floats(4, 5, 6)),
    way("scalar scale", ((),), lambda x, w: x * w),
    way("scalar shift", ((),), lambda x, w: x + w),
    way("scalar temperature", ((),), lambda x, w: x * w.exp()),
    way("quotient", ((6,),), lambda x, w: x / w.exp()),
    way("power", ((6,),), lambda x, w: x.abs() ** w.sigmoid()),
    way("where", ((6,),), lambda x, w: torch.where(x > 0, x, w)),
    way("maximum", ((6,),), lambda x, w: torch.maximum(x, w)),
    way("interpolation", ((6,),), lambda x, w: torch.lerp(x, x.sin(), w)),
    way("addcmul", ((6,),), lambda x, w: torch.addcmul(x, w, x)),
    way("one parameter in two places", ((6,),), lambda x, w: torch.addcmul(x, w, w)),
    way("distances", ((4, 6),), lambda x, w: torch.cdist(x, w)),
    way("a convolution unfolded", ((3, 18),), lambda x, w: w @ functional.unfold(x, 3), floats(2, 5, 5)),
    way("latent queries", ((2, 6),), lambda x, q: attention(q.expand(len(x), -1, -1), x, x), floats(5, 6)),
    way("latent queries, broadcast", ((1, 2, 6),), lambda x, q: attention(q, x, x), floats(5, 6)),
    way("stacked", ((6,),), lambda x, w: torch.stack([x, w.expand_as(x)], 1)),
    way("added to zeros of the batch", ((6,),), lambda x, w: (torch.zeros_like(x) + w).sin() * x),
    way("added to constants", ((6,),), lambda x, w: (torch.zeros(len(x), 6) + w).sin() * x),
    way("normalised weight", ((4, 6),), lambda x, w: functional.linear(x, functional.normalize(w))),
    way("two parts of one weight", ((6, 6),), lambda x, w: functional.linear(functional.linear(x, w.tril()), w.triu())),
    way("chunks of one weight", ((8, 6),), lambda x, w: sum(functional.linear(x, part) for part in w.chunk(2))),
    way("viewed weight", ((24,),), lambda x, w: functional.linear(x, w.view(4, 6))),
    way("penalty inside the model", ((6,),), lambda x, w: x * w + w.square().sum()),
    way("bias used again", ((4, 6), (4,)), lambda x, w, b: functional.linear(x, w, b) * b),
    way("time-first scale", ((6,),), lambda x, w: (x.transpose(0, 1) * w).transpose(0, 1), floats(5, 6)),
    Way("prelu", nn.PReLU, floats(6)),
    Way("embedding bag", lambda: nn.EmbeddingBag(11, 5), ids),
    Way("transposed convolution", lambda: nn.ConvTranspose2d(2, 3, 3), floats(2, 4, 4)),
    Way("lstm", lambda: First(nn.LSTM(6, 4, batch_first=True)), floats(5, 6), True, False),
    Way("gru", lambda: First(nn.GRU(6, 4, batch_first=True)), floats(5, 6), True, False),
    Way("gru cell", lambda: nn.GRUCell(6, 4), floats(6), None, None),
]  # fmt: skip
ENGINES: dict[str, Engine] = {"book-keeping": BookKeeping(), "functional": Functional()}
# without clipping a missing part cannot hide behind the direction of the rest; with it, norms are tested too
BOUNDS = (1e6, 0.5)


def error_of(engine: Engine, model: nn.Module, inputs: Tensor, loss: LossFunction = squared) -> float:
    model = model.double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    errors = [
        relative_error(
            engine_clipped_sum(engine, model, loss, inputs, Threshold(norm=bound), physical_batch_size=size),
            loop_clipped_sum(model, loss, inputs, Threshold(norm=bound)),
        )
        for bound in BOUNDS
        for size in (1, 4, BATCH)
    ]
    return max(errors)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("example", WAYS, ids=lambda example: example.name)
def test_a_way_of_using_a_parameter_is_exact_or_refused(name: str, example: Way) -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        model, inputs = example.build(), example.inputs(BATCH)
        exact = example.exact if name == "book-keeping" else example.functional_exact
        refused = pytest.raises(UnsupportedModel) if exact is False else suppress(UnsupportedModel)
        with nullcontext() if exact else refused:
            assert error_of(ENGINES[name], model, inputs) <= 1e-9
    finally:
        torch.set_default_dtype(torch.float32)


# ------------------------------------------------------------------------------------------------ whole programs


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = checkpoint(lambda part: self.middle(part).tanh(), self.first(inputs).tanh(), use_reentrant=False)
        out: Tensor = self.last(hidden)
        return out


class FixedDropout(nn.Module):
    """Drops features by a mask that comes with each example, so that a loop over examples can repeat it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        mask = (inputs * 1e4).sin() > 0
        out: Tensor = self.last(self.first(inputs) * mask * 2)
        return out


class WithInputs(nn.Module):
    """Returns its inputs beside its output, as models with auxiliary outputs do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, self.layer(inputs)


def of_second(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs)[1].sin().square().sum(1)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_dropout_with_a_known_mask_equals_the_loop(engine: Engine) -> None:
    torch.manual_seed(0)
    assert error_of(engine, FixedDropout(), torch.randn(BATCH, 6)) <= 1e-9


def test_random_dropout_uses_one_mask_for_forward_norms_and_sum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3)).double()
    inputs = torch.randn(BATCH, 6, dtype=torch.float64)
    parameters = list(model.parameters())
    torch.manual_seed(1)
    plain = torch.autograd.grad(squared(model, inputs).sum(), parameters)
    torch.manual_seed(1)
    found = engine_clipped_sum(BookKeeping(), model, squared, inputs, Threshold(norm=1e6))
    assert relative_error(found, torch.cat([part.reshape(-1) for part in plain])) <= 1e-9


def test_a_checkpointed_block_equals_the_loop() -> None:
    torch.manual_seed(0)
    assert error_of(BookKeeping(), Checkpointed(), torch.randn(BATCH, 6)) <= 1e-9


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_outputs_that_carry_no_gradient_do_not_shift_the_others(engine: Engine) -> None:
    torch.manual_seed(0)
    assert error_of(engine, WithInputs(), torch.randn(BATCH, 6), of_second) <= 1e-9


def test_the_default_engine_follows_examples_through_preparation_and_two_calls() -> None:
    def loss(model: nn.Module, inputs: Tensor) -> Tensor:
        prepared = (inputs - 0.5).clamp(-1, 1)
        return squared(model, prepared) + squared(model, prepared.neg())

    torch.manual_seed(0)
    assert error_of(BookKeeping(), nn.Linear(6, 3), torch.randn(BATCH, 6), loss) <= 1e-9


def test_one_engine_serves_programs_that_change_from_batch_to_batch() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.first(inputs) * self.second(inputs)
            return out if len(inputs) > 2 else self.second(inputs.sin()).tanh() + self.first(inputs)

    torch.manual_seed(0)
    model, inputs = Branching().double(), torch.randn(7, 6, dtype=torch.float64)
    clipping = Threshold(norm=0.5)
    found = engine_clipped_sum(BookKeeping(), model, squared, inputs, clipping, physical_batch_size=5)
    expected = sum(loop_of(model, part, clipping) for part in inputs.split(5))
    assert relative_error(found, expected) <= 1e-9  # type: ignore[arg-type]


def loop_of(model: nn.Module, part: Tensor, clipping: Threshold) -> Tensor:
    """Clip and sum example by example, running the model on the whole part so that it takes the same branch."""
    total = torch.zeros(sum(value.numel() for value in model.parameters()), dtype=torch.float64)
    for index in range(len(part)):
        gradients = torch.autograd.grad(squared(model, part)[index], list(model.parameters()))
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        total += flat * float(clipping.for_groups(1).factors(flat.norm().view(1, 1)))
    return total
