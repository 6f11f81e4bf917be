"""What is done to a traced program before it is compiled changes none of its results."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from privet.training.launch.recording import _LARGE, Graph, _add, _let_products_be_sums

PLACES = [torch.zeros(3, 4), torch.zeros(3, 2, 2), torch.zeros(3, 4), torch.zeros(3, 4)]


def program(left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
    flat, shaped, looked_up, twice = (torch.zeros_like(place) for place in PLACES)
    flat.addmm_(left, right)
    shaped.view(3, 4).addmm_(left, right)
    looked_up.index_add_(0, torch.zeros(1, dtype=torch.long), right[:1])
    looked_up.view(3, 4).addmm_(left, right)
    twice.view(3, 4).addmm_(left, right)
    twice.view(3, 4).addmm_(left, right, alpha=2)
    return left.sum(), flat, shaped, looked_up, twice


def test_products_in_the_place_of_zeros_leave_every_result_as_it_was() -> None:
    left, right = torch.randn(3, 6), torch.randn(6, 4)
    traced = make_fx(program)(left, right)
    _let_products_be_sums(traced.graph)
    traced.recompile()
    products = [node for node in traced.graph.nodes if node.target is torch.ops.aten.mm.default]
    assert len(products) == 2, "sums of several terms must stay sums"
    for found, wanted in zip(traced(left, right), program(left, right), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("sizes", [(3,), (_LARGE,), (5, _LARGE, 2, _LARGE + 1)], ids=str)
def test_every_sum_reaches_its_place(sizes: tuple[int, ...]) -> None:
    places, sums = [torch.ones(size) for size in sizes], [torch.randn(size) for size in sizes]
    _add(places, sums)
    assert all(torch.equal(place, 1 + total) for place, total in zip(places, sums, strict=True))


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_the_generator_of_the_device_usable() -> None:
    present, leaf = torch.ones(2, dtype=torch.bool, device="cuda"), torch.randn(2, 3, device="cuda")
    calls = []

    def program(places: Sequence[Tensor], present: Tensor, *leaves: Tensor) -> tuple[Tensor, Tensor]:
        dropped = torch.nn.functional.dropout(leaves[0])
        calls.append(None)
        if len(calls) > 1:  # nothing may be read while operations are captured
            dropped.sum().item()
        return dropped.sum(1), dropped.norm(dim=1)

    with pytest.raises(RuntimeError):
        Graph().record(program, [torch.zeros(3, device="cuda")], present, [leaf], None)  # type: ignore[arg-type]
    assert torch.rand(3, device="cuda").isfinite().all()
