"""Changes in place after a layer, and by a parameter, are exact in both engines or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import add, loop_clipped_sum, relative_error, started
from tests.gradients.zoo import squared

BATCH, TIME, WIDTH = 4, 5, 6
CLIPPING = Threshold(norm=0.5)


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.einsum("bti,ji->btj", inputs, self.weight)


class Permuted(Einsum):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.einsum("bti,ji->bjt", inputs, self.weight).movedim(1, 2)


class Product(Einsum):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight


class AlongTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs.mT).mT
        return found


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs, inputs.flip(2))
        return found


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)[0]
        return found


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "einsum": Einsum,
    "permuted einsum": Permuted,
    "matmul": Product,
    "convolution": AlongTime,
    "bilinear": Pairs,
    "lstm": Recurrent,
}


def into_slice(found: Tensor) -> Tensor:
    found[:, 1:3].sin_()
    return found


def through_view(found: Tensor) -> Tensor:
    found.unsqueeze(1).mul_(2).sin_()
    return found


def assigned(found: Tensor) -> Tensor:
    found[:, 0] = found[:, 1] * 2
    return found


def after_a_view(found: Tensor) -> Tensor:
    other = found.unsqueeze(1)
    found.sin_()
    return other.squeeze(1)


def both(found: Tensor) -> Tensor:
    before = found * 1.5
    found.transpose(1, 2).masked_fill_(found.detach().transpose(1, 2) > 0.2, 0.0)
    return before + found


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "rectified": lambda found: functional.relu(found, inplace=True),
    "a slice": into_slice,
    "through a view": through_view,
    "an assignment": assigned,
    "the base of a view": after_a_view,
    "before and after": both,
}


class Changed(nn.Module):
    def __init__(self, layer: str, change: str) -> None:
        super().__init__()
        self.layer, self.last, self.change = LAYERS[layer](), nn.Linear(WIDTH, 3), CHANGES[change]

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.change(self.layer(inputs.sin()))
        return self.last(found.reshape(len(found), TIME, WIDTH))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_change_in_place_after_a_layer_is_exact(layer: str, change: str) -> None:
    torch.manual_seed(0)
    model, inputs = Changed(layer, change).double(), torch.randn(BATCH, TIME, WIDTH, dtype=torch.float64)
    expected = loop_clipped_sum(model, squared, inputs, CLIPPING)
    running, into, rule = started(BookKeeping(), model, CLIPPING)
    try:
        add(running, model, inputs, rule, into, squared)
        assert relative_error(into.flat, expected) <= 1e-9
        assert not running._without_rules  # type: ignore[attr-defined]  # nor by one backward pass for each example
    finally:
        running.close()


# ------------------------------------------------------------------------------------- layers that are asleep at first


class Adapter(nn.Module):
    """A frozen layer with an adapter whose last matrix starts at zero, so that the first gradients are zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)
        self.rectify = nn.ReLU(inplace=True)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.frozen(inputs) + self.up(self.rectify(self.down(inputs)))
        return found


@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
def test_an_adapter_that_starts_at_zero_is_exact_after_its_first_step(engine: Engine) -> None:
    torch.manual_seed(1)
    model, inputs = Adapter().double(), torch.randn(BATCH, TIME, WIDTH, dtype=torch.float64)
    running, into, rule = started(engine, model, CLIPPING)
    try:
        for _ in range(3):
            into.clear()
            expected = loop_clipped_sum(model, squared, inputs, CLIPPING)
            add(running, model, inputs, rule, into, squared)
            assert relative_error(into.flat, expected) <= 1e-9
            nn.init.normal_(model.up.weight)
    finally:
        running.close()
