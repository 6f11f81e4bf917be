"""Models and losses without per-example gradients are refused by name, with the fix; nothing wrong is ever summed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.errors import LossError, PrivetError, UnsupportedModel
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.gradients.engines.support import check_model, find_problems
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import LossFunction, engine_clipped_sum, loop_clipped_sum, relative_error
from tests.gradients.zoo import squared

ENGINES: dict[str, Engine] = {"book-keeping": BookKeeping(), "functional": Functional()}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
CLIPPING = Threshold(norm=1.0)
BATCH = 9


def sum_of(
    model: nn.Module, loss: LossFunction = squared, *, inputs: Tensor | None = None, engine: Engine | None = None
) -> Tensor:
    examples = torch.randn(BATCH, 6) if inputs is None else inputs
    return engine_clipped_sum(engine or BookKeeping(), model, loss, examples, CLIPPING)


class Applied(nn.Module):
    """A linear layer behind (or before) some function of the whole batch."""

    def __init__(
        self, *, before: Callable[[Tensor], Tensor] | None = None, after: Callable[..., Any] | None = None
    ) -> None:
        super().__init__()
        self.layer, self.before, self.after = nn.Linear(6, 6), before, after

    def forward(self, inputs: Tensor) -> Tensor:
        out = self.layer(inputs if self.before is None else self.before(inputs))
        return out if self.after is None else self.after(out)


# ------------------------------------------------------------------------------------------- layers that mix examples


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(
            {"image": nn.Sequential(nn.Conv2d(1, 4, 3), nn.ModuleList([nn.BatchNorm2d(4)])[0])}
        )


def frozen_in_training() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    return model


BATCH_NORMS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "in training": (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), "1", "BatchNorm1d"),
    "without parameters": (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False)), "1", "BatchNorm1d"),
    "frozen but in training": (frozen_in_training, "0", "BatchNorm1d"),
    "hidden in a custom module": (Hidden, "branches.image.1", "BatchNorm2d"),
    "in evaluation without statistics": (
        lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)).eval(),
        "0",
        "BatchNorm1d",
    ),
    "synchronised": (lambda: nn.Sequential(nn.SyncBatchNorm(4)), "0", "SyncBatchNorm"),
    "instance norm that keeps statistics": (
        lambda: nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)),
        "0",
        "InstanceNorm2d",
    ),
}


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_a_layer_that_mixes_or_remembers_examples_is_refused_by_name_before_any_data(name: str) -> None:
    build, where, kind = BATCH_NORMS[name]
    with pytest.raises(UnsupportedModel, match=rf"'{where}' \({kind}\)") as refusal:
        check_model(build())
    assert any(word in str(refusal.value) for word in ("GroupNorm", "track_running_stats=False")), "the fix is named"


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).eval(),
        nn.Sequential(nn.InstanceNorm2d(3, affine=True)),
        nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4)),
    ],
    ids=["batch norm in evaluation", "instance norm", "group and layer norm"],
)
def test_a_layer_that_treats_examples_alone_is_accepted(model: nn.Module) -> None:
    assert find_problems(model) == []
    check_model(model)


def test_every_fault_is_named_at_once() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6))
    with pytest.raises(UnsupportedModel, match=r"'0'(.|\n)*'2'"):
        check_model(model)


def test_complex_parameters_are_refused_by_name() -> None:
    model = nn.ParameterDict({"wave": nn.Parameter(torch.zeros(3, dtype=torch.complex64))})
    with pytest.raises(UnsupportedModel, match="wave"):
        check_model(model)


@pytest.mark.parametrize("options", [{"max_norm": 0.1}, {"scale_grad_by_freq": True}], ids=str)
def test_an_embedding_scaled_by_the_batch_is_refused_before_it_can_change_its_table(options: dict[str, Any]) -> None:
    model = nn.Embedding(9, 5, **options)
    before = model.weight.detach().clone()
    with pytest.raises(UnsupportedModel, match="max_norm"):
        check_model(model)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("options", [{"max_norm": 0.1}, {"scale_grad_by_freq": True}], ids=str)
def test_a_functional_embedding_scaled_by_the_batch_is_refused(options: dict[str, Any]) -> None:
    class Functionally(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(9, 5))

        def forward(self, ids: Tensor) -> Tensor:
            return functional.embedding(ids, self.table, **options)

    with pytest.raises(UnsupportedModel, match="max_norm=None"):
        sum_of(Functionally(), inputs=torch.randint(0, 9, (BATCH, 4)))


# --------------------------------------------------------------------------------- functions that mix examples, unnamed

MIXING_BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "centred by the batch": lambda inputs: inputs - inputs.mean(0),
    "scaled by the largest": lambda inputs: inputs / inputs.abs().max(),
    "functional batch norm": lambda inputs: functional.batch_norm(inputs, None, None, training=True),
    "softmax over examples": lambda inputs: inputs.softmax(0),
    "its neighbour's data": lambda inputs: inputs + inputs.roll(1, 0),
}
MIXING_AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "centred by the batch": lambda hidden: hidden - hidden.mean(0),
    "functional batch norm": lambda hidden: functional.batch_norm(hidden, None, None, training=True),
    "softmax over examples": lambda hidden: hidden.softmax(0),
    "its neighbour's features": lambda hidden: hidden + hidden.roll(1, 0),
    "attention over examples": lambda hidden: functional.scaled_dot_product_attention(hidden, hidden, hidden),
    "in another order": lambda hidden: hidden.flip(0),
}


@each_engine
@pytest.mark.parametrize("name", MIXING_AFTER)
def test_mixing_after_a_trained_layer_is_refused(engine: Engine, name: str) -> None:
    with pytest.raises(UnsupportedModel, match="mixes the examples"):
        sum_of(Applied(after=MIXING_AFTER[name]), engine=engine)


@each_engine
@pytest.mark.parametrize("name", MIXING_BEFORE)
def test_mixing_before_the_first_trained_layer_is_refused(engine: Engine, name: str) -> None:
    with pytest.raises(UnsupportedModel, match="mixes the examples"):
        sum_of(Applied(before=MIXING_BEFORE[name]), engine=engine)


def averaged_and_expanded(model: nn.Module, inputs: Tensor) -> Tensor:
    return squared(model, inputs).mean().expand(len(inputs))


def contrastive(model: nn.Module, inputs: Tensor) -> Tensor:
    features = model(inputs)
    return functional.cross_entropy(features @ features.mT, torch.arange(len(inputs)), reduction="none")


def against_the_mean(model: nn.Module, inputs: Tensor) -> Tensor:
    features = model(inputs)
    return (features - features.mean(0)).square().sum(1)


MIXING_LOSSES: list[LossFunction] = [averaged_and_expanded, contrastive, against_the_mean]


@each_engine
@pytest.mark.parametrize("loss", MIXING_LOSSES, ids=lambda loss: loss.__name__)
def test_a_loss_that_mixes_examples_is_refused_with_its_usual_causes(engine: Engine, loss: LossFunction) -> None:
    with pytest.raises(UnsupportedModel, match="mixes the examples") as refusal:
        sum_of(nn.Linear(6, 3), loss, engine=engine)
    assert "averaged over the batch" in str(refusal.value)


def test_targets_centred_by_the_batch_are_refused() -> None:
    def loss(model: nn.Module, inputs: Tensor) -> Tensor:
        targets = inputs[:, 0]
        return (model(inputs)[:, 0] - (targets - targets.mean())).square()

    with pytest.raises(UnsupportedModel, match="mixes the examples"):
        sum_of(nn.Linear(6, 3), loss)


# ---------------------------------------------------------------------------------------- parameters out of sight


def test_a_parameter_without_part_in_the_loss_is_named() -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "idle": nn.Linear(6, 3)})
    with pytest.raises(UnsupportedModel, match=r"\['idle.bias', 'idle.weight'\] took no part"):
        sum_of(model, lambda both, inputs: squared(both["used"], inputs))


class Product(torch.autograd.Function):
    """A matrix product no observer can look into."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight.mT

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return gradient @ weight, gradient.mT @ inputs


class Opaque(nn.Module):
    """Uses its weight through a custom function, and perhaps also in plain sight."""

    def __init__(self, *, also_seen: bool) -> None:
        super().__init__()
        self.weight, self.also_seen = nn.Parameter(torch.randn(3, 6)), also_seen

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = Product.apply(inputs, self.weight)
        return out + functional.linear(inputs.sin(), self.weight) if self.also_seen else out


@each_engine
@pytest.mark.parametrize("also_seen", [False, True])
def test_a_parameter_behind_a_custom_function_is_refused_even_if_it_is_also_used_in_sight(
    engine: Engine, also_seen: bool
) -> None:
    with pytest.raises(UnsupportedModel, match=r"custom autograd function|autograd\.Function"):
        sum_of(Opaque(also_seen=also_seen), engine=engine)


@pytest.mark.parametrize("whole", [True, False], ids=["the whole model", "one layer"])
def test_a_compiled_region_is_refused_or_exact(whole: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs = torch.randn(BATCH, 6, dtype=torch.float64)
    region = torch.compile(model if whole else model[0], backend="eager")

    def loss(_: nn.Module, examples: Tensor) -> Tensor:
        hidden = region(examples) if whole else model[2](region(examples).tanh())
        return hidden.sin().square().sum(1)

    expected = loop_clipped_sum(model, lambda plain, part: plain(part).sin().square().sum(1), inputs, CLIPPING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks of the compiler about itself
            found = sum_of(model, loss, inputs=inputs)
    except UnsupportedModel as refusal:
        assert "uncompiled" in str(refusal)  # noqa: PT017
    else:
        assert relative_error(found, expected) <= 1e-9


# ------------------------------------------------------------------------------------------- changes after the fact


class ChangedInput(nn.Module):
    """Uses a tensor, then overwrites it."""

    def __init__(self, *, hidden: bool) -> None:
        super().__init__()
        self.first, self.second, self.hidden = nn.Linear(6, 6), nn.Linear(6, 3), hidden

    def forward(self, inputs: Tensor) -> Tensor:
        used = self.first(inputs) if self.hidden else inputs
        out = self.second(used)
        used.mul_(2)
        return out if self.hidden else out + self.first(inputs)[:, :3]


@pytest.mark.parametrize("hidden", [True, False], ids=["a hidden tensor", "the examples"])
def test_overwriting_what_a_layer_used_is_refused(hidden: bool) -> None:
    # where autograd needs the tensor too it complains first, in its own words
    with pytest.raises((UnsupportedModel, RuntimeError), match=r"in.?place"):
        sum_of(ChangedInput(hidden=hidden))


# ---------------------------------------------------------------------------------------------- losses of other shapes


@each_engine
@pytest.mark.parametrize(
    ("reduce", "message"),
    [
        (lambda out: out.square().mean(), "loss is a scalar"),
        (lambda out: out.square(), r"shape \[9\]"),
        (lambda out: out.square().sum(1)[:-1], r"shape \[9\]"),
        (lambda out: out.square().sum(1).repeat(2), r"shape \[9\]"),
        (lambda out: out.square().sum(1).detach(), "no_grad"),
        (lambda out: out.square().sum(1).tolist(), "must be a tensor"),
    ],
    ids=["scalar", "per token", "too few", "too many", "detached", "a list"],
)
def test_losses_that_are_not_one_number_per_example_are_refused(
    engine: Engine, reduce: Callable[[Tensor], Any], message: str
) -> None:
    with pytest.raises(LossError, match=message):
        sum_of(nn.Linear(6, 3), lambda model, inputs: reduce(model(inputs)), engine=engine)


@each_engine
def test_losses_computed_without_gradients_are_refused(engine: Engine) -> None:
    def loss(model: nn.Module, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return squared(model, inputs)

    with pytest.raises(LossError, match="no_grad"):
        sum_of(nn.Linear(6, 3), loss, engine=engine)


@each_engine
@pytest.mark.parametrize("size", [1, BATCH])
def test_losses_of_data_from_elsewhere_are_refused(engine: Engine, size: int) -> None:
    elsewhere = torch.randn(size, 6)
    with pytest.raises(PrivetError, match=r"another loader|vmap"):
        sum_of(nn.Linear(6, 3), lambda model, _: squared(model, elsewhere), inputs=torch.randn(size, 6), engine=engine)


def test_the_functional_engine_says_when_the_model_was_not_called_once() -> None:
    with pytest.raises(UnsupportedModel, match="exactly one call"):
        sum_of(nn.Linear(6, 3), lambda m, x: squared(m, x) + squared(m, x), engine=Functional())


def test_the_functional_engine_refuses_a_loss_that_reaches_parameters_beside_the_output() -> None:
    with pytest.raises(UnsupportedModel, match="without going through the model's output"):
        sum_of(nn.Linear(6, 3), lambda m, x: squared(m, x) + m.weight.square().sum(), engine=Functional())


def test_the_functional_engine_refuses_randomness_it_cannot_repeat() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    with pytest.raises(UnsupportedModel, match="dropout"):
        sum_of(model, engine=Functional())
