"""Every trainable parameter that autograd reaches is accounted for, whatever its gradient is today, or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.errors import NoExampleRule, UnsupportedModel
from privet.gradients.capture.recorded import Use
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import add, engine_clipped_sum, loop_clipped_sum, relative_error, started
from tests.gradients.zoo import squared

BATCH, WIDTH = 4, 6
CLIPPING = Threshold(norm=0.5)
ENGINES: dict[str, Engine] = {"book-keeping": BookKeeping(), "functional": Functional()}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


def examples(*shape: int) -> Tensor:
    return torch.randn(BATCH, *(shape or (WIDTH,)), dtype=torch.float64)


def assert_exact(model: nn.Module, inputs: Tensor | None = None, engine: Engine | None = None) -> None:
    inputs = examples() if inputs is None else inputs
    expected = loop_clipped_sum(model, squared, inputs, CLIPPING)
    found = engine_clipped_sum(engine or BookKeeping(), model, squared, inputs, CLIPPING)
    assert relative_error(found, expected) <= 1e-9


# --------------------------------------------------------------------------------------------- ways past the noted uses


class Hidden(torch.autograd.Function):
    """A product with a weight that no observer can look into."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return gradient * weight, (gradient * inputs).sum(0)


class Doubled(torch.autograd.Function):
    """A weight made from another one, unseen."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return 2 * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Asleep(nn.Module):
    """A part whose gradients are zero as long as a gate is closed, beside one that is in plain sight."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.seen = part, nn.Linear(WIDTH, WIDTH)
        self.register_buffer("gate", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.seen(inputs) + self.gate * self.part(inputs)
        return found


class InFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = Hidden.apply(inputs.sin(), self.weight)
        return found


class MadeByFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs.sin(), Doubled.apply(self.weight))


class MadeWithFunction(MadeByFunction):
    """A weight computed from one parameter in plain sight and from another behind a function."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs.sin(), self.scale * Doubled.apply(self.weight))


class BiasInFunction(MadeByFunction):
    """A layer whose bias is seen and whose weight is not."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs.sin(), Doubled.apply(self.weight), self.bias)


class BehindALayer(nn.Module):
    """The unseen weight lies behind a layer that is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = InFunction(), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.outer(self.inner(inputs))
        return found


class IntoAConstant(nn.Module):
    """A parameter that is written into a part of a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        scales = torch.ones(WIDTH, dtype=inputs.dtype)
        scales[:2].add_(self.weight[:2])
        return inputs * scales


class ByRows(nn.Module):
    """A matrix of zeros that is filled with parameters, row by row and through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList([nn.Parameter(torch.randn(WIDTH)) for _ in range(3)])

    def forward(self, inputs: Tensor) -> Tensor:
        matrix = torch.zeros(WIDTH, WIDTH, dtype=inputs.dtype)
        matrix[0] = self.rows[0]
        matrix[1] = self.rows[1]
        matrix[2].copy_(self.rows[2])
        return inputs @ matrix


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scripting is deprecated
        return torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))  # type: ignore[no-any-return]


UNSEEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a weight inside a function": (InFunction, r"\['part\.weight'\]"),
    "a weight behind a layer": (BehindALayer, r"\['part\.inner\.weight'\]"),
}


@pytest.mark.parametrize("gate", [0.0, 1.0], ids=["asleep", "awake"])
@pytest.mark.parametrize("name", UNSEEN)
def test_a_parameter_that_autograd_reaches_unseen_is_refused_by_name(name: str, gate: float) -> None:
    torch.manual_seed(0)
    build, names = UNSEEN[name]
    model = Asleep(build()).double()
    model.gate.fill_(gate)
    with pytest.raises(UnsupportedModel, match=rf"Autograd reaches {names} in a way that could not be observed"):
        engine_clipped_sum(BookKeeping(), model, squared, examples(), CLIPPING)


@pytest.mark.parametrize("gate", [0.0, 1.0], ids=["asleep", "awake"])
@pytest.mark.parametrize("build", [MadeByFunction, MadeWithFunction, BiasInFunction, IntoAConstant, ByRows])
def test_a_weight_that_is_made_of_parameters_by_a_function_or_piece_by_piece_is_exact(
    build: Callable[[], nn.Module], gate: float
) -> None:
    torch.manual_seed(0)
    model = Asleep(build()).double()
    model.gate.fill_(gate)
    assert_exact(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's interpreter of scripts
@pytest.mark.parametrize("gate", [0.0, 1.0], ids=["asleep", "awake"])
def test_a_scripted_module_is_exact(gate: float) -> None:
    torch.manual_seed(0)
    model = Asleep(scripted()).double()
    model.gate.fill_(gate)
    assert_exact(model)


def test_a_new_way_to_a_parameter_is_noticed_at_the_step_at_which_it_begins() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), InFunction()).double()
    is_frozen = True

    def loss(model: nn.Module, part: Tensor) -> Tensor:
        weight = model[1].weight.detach() if is_frozen else model[1].weight
        return (Hidden.apply(model[0](part), weight) + part * model[1].weight).sin().sum(1)

    running, into, rule = started(BookKeeping(), model, CLIPPING)
    try:
        for _ in range(3):
            add(running, model, examples(), rule, into, loss)
        is_frozen = False
        with pytest.raises(UnsupportedModel, match=r"Autograd reaches \['1\.weight'\]"):
            add(running, model, examples(), rule, into, loss)
    finally:
        running.close()


# --------------------------------------------------------------------------- parameters that join examples in place


class IntoView(nn.Module):
    def __init__(self, way: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.layer, self.shift, self.way = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(2)), way

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)
        self.way(found[:, 1:3], self.shift)
        return found


WAYS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "added": lambda view, shift: view.add_(shift),
    "added with a weight": lambda view, shift: view.add_(shift, alpha=2.0),
    "subtracted": lambda view, shift: view.__isub__(shift),
    "multiplied": lambda view, shift: view.__imul__(shift),
    "joined": lambda view, shift: view.addcmul_(view.detach().clone(), shift),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_that_is_joined_to_a_view_in_place_is_exact(way: str) -> None:
    torch.manual_seed(0)
    assert_exact(IntoView(WAYS[way]).double())


class Rewritten(nn.Module):
    """A weight that is copied and then changed in place, wholly, in part or by another parameter."""

    def __init__(self, way: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.way = way

    def forward(self, inputs: Tensor) -> Tensor:
        copy = self.weight.clone()
        turned = copy.t()
        self.way(copy, self.scale)
        return inputs @ copy + inputs @ turned + inputs @ self.scale


REWRITTEN: dict[str, Callable[[Tensor, Tensor], object]] = {
    "scaled": lambda copy, other: copy.mul_(3.0),
    "cleared in part": lambda copy, other: copy[:2].zero_(),
    "by another parameter": lambda copy, other: copy.mul_(other),
}


@pytest.mark.parametrize("way", REWRITTEN)
def test_a_copy_of_a_weight_that_is_changed_in_place_is_exact_or_refused(way: str) -> None:
    torch.manual_seed(0)
    try:
        assert_exact(Rewritten(REWRITTEN[way]).double())
    except UnsupportedModel as refusal:
        assert "scale" in str(refusal)  # noqa: PT017


def test_a_copy_of_a_weight_that_is_changed_after_its_use_is_refused() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

        def forward(self, inputs: Tensor) -> Tensor:
            copy = self.weight.clone()
            found = inputs @ copy
            copy.mul_(3.0)
            return found + inputs @ copy

    torch.manual_seed(0)
    # where autograd needs the copy too it complains first, in its own words
    with pytest.raises((UnsupportedModel, RuntimeError), match=r"in.?place"):
        engine_clipped_sum(BookKeeping(), Late().double(), squared, examples(), CLIPPING)


# ------------------------------------------------------------------------------------------------------------- hooks


@each_engine
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_is_refused_by_name(engine: Engine, kind: str) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 3)).double()
    handle = getattr(model[0].weight, kind)(lambda value: None)
    with pytest.raises(UnsupportedModel, match=r"\['0\.weight'\] have hooks on their gradients"):
        engine_clipped_sum(engine, model, squared, examples(), CLIPPING)
    handle.remove()
    assert_exact(model, engine=engine)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@each_engine
def test_a_backward_hook_of_the_old_kind_is_refused_by_name(engine: Engine) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 3)).double()
    model[0].register_backward_hook(lambda module, given, found: None)
    with pytest.raises(UnsupportedModel, match=r"\['0'\] have backward hooks of the old kind"):
        engine_clipped_sum(engine, model, squared, examples(), CLIPPING)


class Hooked(nn.Module):
    """Limits the gradient that flows into a layer, as recurrent networks do."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.first, self.second, self.limit = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3), limit

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.first(inputs)
        if found.requires_grad:
            found.register_hook(lambda gradient: gradient.clamp(-self.limit, self.limit))
        return self.second(found)


@pytest.mark.parametrize("limits", [(1e6, 1e6, 1e-3), (1e-3, 1e-3, 1e6)], ids=["awakes", "falls asleep"])
def test_a_hook_that_replaces_the_gradient_of_a_layers_output_is_honoured_at_every_batch(
    limits: tuple[float, ...],
) -> None:
    torch.manual_seed(0)
    model, inputs = Hooked(limits[0]).double(), examples()
    running, into, rule = started(BookKeeping(), model, CLIPPING)
    try:
        for limit in limits:
            model.limit = limit
            into.clear()
            add(running, model, inputs, rule, into, squared)
            assert relative_error(into.flat, loop_clipped_sum(model, squared, inputs, CLIPPING)) <= 1e-9
    finally:
        running.close()


def test_the_functional_engine_refuses_a_hook_that_it_would_ignore() -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match="do not add up to autograd's"):
        engine_clipped_sum(Functional(), Hooked(1e-3).double(), squared, examples(), CLIPPING)


def test_full_backward_hooks_are_honoured() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)).double()
    seen: list[int] = []
    model[2].register_full_backward_hook(lambda module, given, found: seen.append(1))
    model[2].register_full_backward_pre_hook(lambda module, found: (found[0] * 2,))
    assert_exact(model)
    assert seen


# ------------------------------------------------------------------------------------------------- where to stop


class Gated(nn.Module):
    """What a layer says is written into a buffer of zeros by row, so that marks on tensors tell too little."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        told = self.first(inputs).detach()
        filled = torch.zeros_like(inputs)
        filled[:, :2] = told[:, :2]
        with torch.no_grad():
            unused = self.first(inputs * 2)
        return self.second(filled + unused) + self.first(inputs)[:, :3]


def test_a_layer_behind_detached_ones_is_a_place_to_stop() -> None:
    torch.manual_seed(0)
    assert_exact(Gated().double())


class Scaled(nn.Module):
    """Scales its inputs by a weight where no gradient flows, so that they only seem to come from that weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, width)

    def forward(self, inputs: Tensor) -> Tensor:
        probe = torch.zeros(WIDTH, dtype=inputs.dtype, requires_grad=True)
        scaled = inputs.detach() + probe
        with torch.no_grad():
            scaled.mul_(self.scale)
        return torch.cat([self.layer(scaled), inputs * self.scale], 1)


@pytest.mark.parametrize("width", [3, 1 << 14])  # gradients of many numbers are awaited at the node that forms them
def test_a_layer_whose_inputs_only_seem_to_come_from_another_gets_its_gradient(width: int) -> None:
    torch.manual_seed(0)
    model, inputs = Scaled(width).double(), examples()
    running, into, rule = started(BookKeeping(), model, CLIPPING)
    try:
        add(running, model, inputs, rule, into, squared)
        assert relative_error(into.flat, loop_clipped_sum(model, squared, inputs, CLIPPING)) <= 1e-9
        assert not running._without_rules  # type: ignore[attr-defined]  # nor by one backward pass for each example
    finally:
        running.close()


class Cutting(torch.autograd.Function):
    """Passes values on, and gradients only while it is told to; the forward pass shows nothing of it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, is_cut: list[bool]) -> Tensor:
        ctx.is_cut = is_cut
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        return None if any(ctx.is_cut) else gradient, None


def test_a_use_that_falls_silent_in_a_known_program_is_refused_by_name() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"cut": nn.Linear(WIDTH, 3), "kept": nn.Linear(WIDTH, 3)}).double()
    is_cut: list[bool] = []

    def loss(model: nn.Module, part: Tensor) -> Tensor:
        return (Cutting.apply(model["cut"](part), is_cut) + model["kept"](part)).sin().sum(1)

    running, into, rule = started(BookKeeping(), model, CLIPPING)
    try:
        for _ in range(3):
            add(running, model, examples(), rule, into, loss)
        is_cut.append(True)
        with pytest.raises(UnsupportedModel, match=r"\['cut\.bias', 'cut\.weight'\] took no part in the loss"):
            add(running, model, examples(), rule, into, loss)
    finally:
        running.close()


def test_a_gradient_that_is_lost_on_its_way_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"shared": nn.Linear(WIDTH, 3)}).double()

    def loss(model: nn.Module, part: Tensor) -> Tensor:
        return (model["shared"](part) + model["shared"](part.sin())).sin().sum(1)

    running, into, rule = started(BookKeeping(), model, CLIPPING)
    hear = Use.hear
    try:
        for _ in range(3):
            add(running, model, examples(), rule, into, loss)
        # one of two uses of the weight is not heard of, so that the weight still has a gradient
        monkeypatch.setattr(Use, "hear", lambda use, gradient: hear(use, gradient) if use.number else None)
        with pytest.raises(NoExampleRule, match=r"No gradient came back .* \['shared\.bias', 'shared\.weight'\]"):
            add(running, model, examples(), rule, into, loss)
    finally:
        running.close()
