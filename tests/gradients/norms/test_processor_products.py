"""Products by oneDNN: those of torch up to rounding, for every order in memory, and hidden from nobody who follows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from privet.gradients.norms import processor_products

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a trial would say on this machine, and however small the product is."""
    monkeypatch.setattr(processor_products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(processor_products, "_SMALL", 0)
    monkeypatch.setattr(processor_products, "_SMALL_IN_ORDER", 0)


class Names(TorchDispatchMode):
    """Notes the operations that a mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _straight(*shape: int) -> Tensor:
    return torch.randn(*shape)


def _turned(*shape: int) -> Tensor:
    return torch.randn(*shape[:-2], shape[-1], shape[-2]).mT


def _cut_out(*shape: int) -> Tensor:
    return torch.randn(*shape[:-1], 2 * shape[-1])[..., : shape[-1]]


def _interleaved(*shape: int) -> Tensor:
    return torch.randn(*shape[-2:], *shape[:-2]).movedim((0, 1), (-2, -1))


ORDERS: dict[str, Callable[..., Tensor]] = {
    "straight": _straight,
    "turned": _turned,
    "cut out": _cut_out,
    "interleaved": _interleaved,
}


def _close(found: Tensor, truth: Tensor) -> bool:
    return bool((found - truth).abs().max() <= 1e-5 * truth.abs().max())


@needs_onednn
@pytest.mark.usefixtures("by_onednn")
@pytest.mark.parametrize("right", ORDERS)
@pytest.mark.parametrize("left", ORDERS)
def test_products_are_those_of_double_precision_in_every_order_of_memory(left: str, right: str) -> None:
    torch.manual_seed(0)
    one, other = ORDERS[left](3, 17, 40), ORDERS[right](3, 40, 9)
    truth = one.double() @ other.double()
    assert _close(processor_products.batched_product(one, other), truth)
    out = torch.empty(3, 17, 9)
    assert processor_products.batched_product(one, other, out) is out
    assert _close(out, truth)
    assert _close(processor_products.product(one[1], other[1]), truth[1])
    into = torch.ones(17, 9)
    processor_products.add_product(into, one[2], other[2])
    assert _close(into, 1 + truth[2])
    assert _close(processor_products.linear(one[0], other[0].mT, torch.arange(9.0)), truth[0] + torch.arange(9.0))


@needs_onednn
@pytest.mark.usefixtures("by_onednn")
@pytest.mark.parametrize("shape", [(8, 300, 5), (300, 8, 5), (5, 8, 300)], ids=str)
def test_a_sum_is_right_whichever_factor_is_copied(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    torch.manual_seed(0)
    one, other, into = torch.randn(inner, rows).mT, torch.randn(inner, columns), torch.ones(rows, columns)
    processor_products.add_product(into, one, other)
    assert _close(into, 1 + one.double() @ other.double())


@needs_onednn
@pytest.mark.usefixtures("by_onednn")
def test_a_repeated_product_serves_any_number_of_rows() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(24, 10), torch.randn(24)
    with_bias, plain = (processor_products.repeated_product(weight, 7, each) for each in (bias, None))
    turned = processor_products.repeated_product(weight.mT, 7)
    for count in (7, 3, 1):
        rows, added = torch.randn(count, 10), torch.randn(count, 24)
        truth = rows.double() @ weight.double().mT
        assert _close(plain(rows), truth)
        assert _close(plain(rows, added), truth + added)
        assert _close(with_bias(rows), truth + bias)
        assert _close(with_bias(rows, added), truth + added)
        assert _close(turned(added), added.double() @ weight.double())


@needs_onednn
@pytest.mark.usefixtures("by_onednn")
def test_a_mode_that_follows_operations_is_shown_those_of_torch() -> None:
    one, other = torch.randn(20, 20), torch.randn(20, 20)
    with Names() as names:
        processor_products.product(one, other)
        processor_products.batched_product(one.unsqueeze(0), other.unsqueeze(0))
        processor_products.add_product(one, one, other)
        processor_products.linear(one, other, None)
        processor_products.repeated_product(one, 20)(other, one)
    assert names.seen
    assert all(name.startswith("aten.") for name in names.seen)


@needs_onednn
@pytest.mark.usefixtures("by_onednn")
def test_double_precision_stays_double() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(30, 30, dtype=torch.float64), torch.randn(30, 30, dtype=torch.float64)
    assert torch.equal(processor_products.product(one, other), one @ other)


def test_small_products_keep_their_bits() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(16, 16), torch.randn(16, 16)
    assert torch.equal(processor_products.product(one, other), one @ other)
    assert torch.equal(processor_products.repeated_product(one, 16)(other, one), torch.addmm(one, other, one.mT))


@needs_onednn
@pytest.mark.parametrize("is_faster", [True, False])
def test_products_that_waited_for_another_program_do_not_decide(
    monkeypatch: pytest.MonkeyPatch, is_faster: bool
) -> None:
    """The first products of the faster library are slowed down; undisturbed it takes half of the other's time."""
    ours, usual = (1.0, 2.0) if is_faster else (2.0, 1.0)
    disturbed = [10.0 * ours, usual] * 10 if is_faster else [ours, 10.0 * usual] * 10
    times = itertools.chain(disturbed, itertools.cycle([ours, usual]))
    monkeypatch.setattr(processor_products, "_seconds", lambda work: next(times))
    assert processor_products.onednn_is_faster.__wrapped__() is is_faster
