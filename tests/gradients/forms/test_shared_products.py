"""Products between output gradients that two weights have in common are formed once, and stay right."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.forms import per_example
from privet.gradients.forms.per_example import Outer, SharedProducts
from privet.gradients.norms.planner import Planner
from privet.gradients.norms.strategies import Gram
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import engine_clipped_sum, loop_clipped_sum, median_norm, relative_error
from tests.gradients.zoo import squared


def pair(batch: int = 4, length: int = 6) -> tuple[Outer, Outer]:
    generator = torch.Generator().manual_seed(0)
    back = torch.randn(batch, length, 9, generator=generator)
    shared = SharedProducts(factor=back, num_weights=2)
    first, second = (
        Outer(inputs=torch.randn(batch, length, width, generator=generator), out_grads=back, shared=shared)
        for width in (5, 7)
    )
    return first, second


def count_products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    widths: list[int] = []
    real = per_example.batched_product

    def counted(left: Tensor, right: Tensor) -> Tensor:
        widths.append(left.shape[2])
        return real(left, right)

    monkeypatch.setattr(per_example, "batched_product", counted)
    return widths


def test_two_weights_form_the_products_once_and_find_their_own_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = count_products(monkeypatch)
    for part in pair():
        squares, kept = Gram().measure(part)
        truth = torch.einsum("btp,btd->bpd", part.out_grads.double(), part.inputs.double()).square().sum((1, 2))
        assert torch.allclose(squares.sums.double(), truth, rtol=1e-5)
        assert kept is part
    assert widths == [9]


def test_products_are_let_go_of_when_every_weight_has_asked() -> None:
    first, second = pair()
    assert first.shared is not None
    Gram().measure(first)
    assert first.shared._found is not None
    Gram().measure(second)
    assert first.shared._found is None


def test_some_of_the_examples_do_not_use_products_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = pair()
    some = first[1:3]
    whole, _ = Gram().measure(first)
    widths = count_products(monkeypatch)
    part, _ = Gram().measure(some)
    assert widths == [9]
    assert torch.allclose(part.sums, whole.sums[1:3])


def test_changed_output_gradients_do_not_use_products_of_the_old() -> None:
    first, _ = pair()
    Gram().measure(first)
    squares, _ = Gram().measure(first.without(torch.tensor([True, False, False, False])))
    assert squares.sums[0] == 0
    assert bool((squares.sums[1:] > 0).all())


@dataclass(kw_only=True, eq=False)
class Counted(SharedProducts):
    """Shared products that count how often they are asked for."""

    times: int = 0

    def between_positions(self) -> Tensor:
        self.times += 1
        return super().between_positions()


def test_trying_strategies_charges_each_weight_its_part_and_leaves_the_products_to_the_other() -> None:
    first, second = pair()
    shared = Counted(factor=first.out_grads, num_weights=2)
    planner = Planner(times_all=True, strategies={Outer: (Gram(),)})
    part = replace(first, shared=shared)
    planner.choose(part).strategy.measure(part)
    # in every timing one weight forms the products and one finds them; the measurement that counts forms them anew
    assert shared.times > 1
    assert shared.times % 2 == 1
    assert shared._found is not None
    part = replace(second, shared=shared)
    planner.choose(part).strategy.measure(part)
    assert shared._found is None


class Recurrence(nn.Module):
    """One LSTM and a linear map of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, frames: Tensor) -> Tensor:
        """Classify by the last state."""
        out: Tensor = self.head(self.lstm(frames)[0][:, -1])
        return out


@pytest.mark.parametrize("frozen", [(), ("lstm.weight_ih_l0",), ("lstm.weight_hh_l0",)], ids=["all", "hidden", "input"])
def test_an_lstm_is_exact_whichever_of_its_weights_are_trained(frozen: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model, frames = Recurrence().double(), torch.randn(5, 7, 3, dtype=torch.float64)
    for name, value in model.named_parameters():
        value.requires_grad_(name not in frozen)
    clipping = Threshold(norm=median_norm(model, squared, frames))
    found = engine_clipped_sum(BookKeeping(), model, squared, frames, clipping)
    assert relative_error(found, loop_clipped_sum(model, squared, frames, clipping)) <= 1e-9
