"""A table that is also a linear map's weight: norms with all cross terms, without a table per example."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.gradients.forms.joining import joined
from privet.gradients.forms.per_example import (
    LONGEST_SUM,
    Explicit,
    Lookup,
    Outer,
    TiedTable,
    batched_product,
    products_between,
)
from privet.gradients.norms.planner import Planner
from privet.gradients.norms.strategies import NormOnly, Store, TableGram


def tied(batch: int, length: int, lookups: int, rows: int, width: int) -> TiedTable:
    outer = Outer(
        inputs=torch.randn(batch, length, width, dtype=torch.float64),
        out_grads=torch.randn(batch, length, rows, dtype=torch.float64),
    )
    ids = torch.randint(0, rows, (batch, lookups))
    out_grads = torch.randn(batch, lookups, width, dtype=torch.float64)
    return TiedTable(lookup=Lookup(ids=ids, out_grads=out_grads, num_rows=rows), outer=outer)


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 7), st.integers(1, 4))


@settings(deadline=None, max_examples=30)
@given(sizes=SIZES, seed=st.integers(0, 2**16))
def test_every_way_of_measuring_gives_the_norm_of_the_sum_of_both_uses(
    sizes: tuple[int, int, int, int, int], seed: int
) -> None:
    torch.manual_seed(seed)
    part = tied(*sizes)
    squares = (part.lookup.in_full() + part.outer.in_full()).flatten(1).square().sum(1)
    for strategy in (TableGram(), Store(), NormOnly()):
        measured, kept = strategy.measure(part)
        torch.testing.assert_close(measured.safe(), squares, rtol=1e-9, atol=1e-9)
        weights, into = torch.rand(len(part), dtype=torch.float64), torch.zeros(sizes[3], sizes[4], dtype=torch.float64)
        kept.add_weighted_sum(weights, into)
        torch.testing.assert_close(into, torch.einsum("b,bvd->vd", weights, part.in_full()))


def test_uses_that_cancel_are_measured_as_almost_nothing_but_never_as_less_than_rounding() -> None:
    torch.manual_seed(0)
    part = tied(3, 2, 2, 5, 4)
    ids = part.lookup.ids
    one_hot = torch.nn.functional.one_hot(ids, 5).double()
    outer = Outer(inputs=part.lookup.out_grads, out_grads=-one_hot)
    squares = TableGram().measure(TiedTable(lookup=part.lookup, outer=outer))[0].safe()
    assert bool((squares > 0).all())
    assert bool((squares < 1e-9).all())


def test_broken_examples_are_taken_out_of_both_uses() -> None:
    part = tied(3, 2, 2, 5, 4)
    part.outer.inputs[1] = torch.inf
    part.lookup.out_grads[1] = torch.nan
    kept = part.without(torch.tensor([False, True, False])).in_full()
    assert bool((kept[1] == 0).all())
    assert torch.equal(kept[0], part[:1].in_full()[0])


def test_uses_of_both_kinds_are_joined_without_being_written_out() -> None:
    first, second = tied(2, 3, 2, 5, 4), tied(2, 1, 4, 5, 4)
    whole = joined([first.outer, second.lookup, first.lookup, second.outer])
    assert isinstance(whole, TiedTable)
    torch.testing.assert_close(whole.in_full(), first.in_full() + second.in_full())


def test_a_large_vocabulary_is_never_written_out_per_example() -> None:
    part = tied(32, 4, 4, 60_000, 64)
    planner = Planner()
    planner.choose(part)
    (chosen,) = planner.chosen.values()
    assert isinstance(chosen, TableGram)


def test_a_linear_map_of_another_shape_is_joined_by_writing_out() -> None:
    one = Outer(inputs=torch.randn(2, 3, 6), out_grads=torch.randn(2, 3, 4))
    other = Outer(inputs=torch.randn(2, 3, 8), out_grads=torch.randn(2, 3, 3), shape=(4, 6))
    whole = joined([one, other])
    assert isinstance(whole, Explicit)
    torch.testing.assert_close(whole.in_full(), one.in_full() + other.in_full())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_table_of_odd_size_is_measured_on_a_device_as_its_rounded_factors_say(dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(0)
    double = tied(3, 33, 20, 5001, 48)
    factors = [each.cuda().to(dtype) for each in (double.outer.inputs, double.outer.out_grads)]
    lookup = Lookup(ids=double.lookup.ids.cuda(), out_grads=double.lookup.out_grads.cuda().float(), num_rows=5001)
    part = TiedTable(lookup=lookup, outer=Outer(inputs=factors[0], out_grads=factors[1]))
    truth = TiedTable(
        lookup=Lookup(ids=lookup.ids, out_grads=lookup.out_grads.double(), num_rows=5001),
        outer=Outer(inputs=factors[0].double(), out_grads=factors[1].double()),
    ).in_full()
    for strategy in (TableGram(), Store(), NormOnly()):
        measured, kept = strategy.measure(part)
        # float16 products may be split into parts that are added up with fewer digits
        allowed = 1e-5 if dtype == torch.float32 else 1e-4
        torch.testing.assert_close(measured.sums.double(), truth.flatten(1).square().sum(1), rtol=allowed, atol=0)
        weights, into = torch.rand(3, device="cuda"), torch.zeros(5001, 48, device="cuda")
        kept.add_weighted_sum(weights, into)
        error = (into.double() - torch.tensordot(weights.double(), truth, dims=1)).norm() / truth.norm()
        assert float(error) <= (1e-6 if dtype == torch.float32 else 1e-2)


def _spiked(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of a softmax over a vocabulary: one number near one, and very many that are tiny."""
    torch.manual_seed(1)
    factor = torch.full((2, 16, 50_257), 2e-5, device=device) * (1 + torch.rand(2, 16, 50_257, device=device))
    factor[:, :, 0] = -1.0
    return factor, factor.double() @ factor.double().mT


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_tiny_numbers_count_beside_a_large_one_in_long_products(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    factor, truth = _spiked(device)
    for found in (products_between(factor), batched_product(factor, factor.mT)):
        assert float(((found.double() - truth) / truth).abs().max()) <= 1.5e-6


def test_products_in_stretches_are_those_in_one_piece() -> None:
    left, right = torch.randn(2, 3, 2 * LONGEST_SUM + 7, dtype=torch.float64), torch.randn(2, 4, 2 * LONGEST_SUM + 7)
    right = right.double()
    torch.testing.assert_close(batched_product(left, right.mT), left @ right.mT)
    torch.testing.assert_close(products_between(left), left @ left.mT)
