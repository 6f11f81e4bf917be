"""A loss function is proven, or what keeps it from being proven is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privet.errors import ArgumentError, LossError
from privet.isolation.place import Cause, Fault, Place
from privet.isolation.prove import follow, prove
from privet.isolation.tracer import Tracer

_NUM, _WIDTH = 4, 5
MODEL = nn.Linear(_WIDTH, 1)


def rows(num: int = _NUM) -> Tensor:
    return torch.randn(num, _WIDTH)


def losses(x: Tensor) -> Tensor:
    return (MODEL(x) ** 2).squeeze(1)


class Doubled(torch.autograd.Function):
    """A function whose gradient is each row's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


class Averaged(Doubled):
    """A function whose gradient is that of all rows."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].mean(0, keepdim=True).expand_as(grads[0])


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_a_loss_function_that_keeps_examples_apart_is_proven_at_every_size(num: int) -> None:
    found = prove(losses, rows(num))
    assert found.doubts == ()
    assert found.losses == Place(0, 1, 1, 0, max(num, 2))


@pytest.mark.parametrize("num", [2, 3, 4, 5, 6, 7, 8, 9])
def test_all_examples_are_used_in_an_even_and_an_odd_number(num: int) -> None:
    batch, seen = torch.arange(float(num * _WIDTH)).view(num, _WIDTH), []

    def program(x: Tensor) -> Tensor:
        seen.append(x)
        return losses(x)

    assert prove(program, batch).is_proven
    assert {len(x) % 2 for x in seen} == {0, 1}
    assert set(torch.cat(seen)[:, 0].tolist()) == set(batch[:, 0].tolist())


def test_what_mixes_is_named_with_its_line() -> None:
    found = prove(lambda x: losses(x - x.mean(0)), rows())
    assert "mean at test_prove.py" in found.doubts[0]


def test_what_mixes_only_at_the_other_size_is_found() -> None:
    def program(x: Tensor) -> Tensor:
        return losses(x) if len(x) == _NUM else losses(x) - losses(x).mean()

    assert "mean" in prove(program, rows()).doubts[0]


def test_a_loss_that_depends_on_the_number_of_examples_is_not_proven() -> None:
    assert "how many examples" in prove(lambda x: losses(x) / len(x), rows()).doubts[0]


@pytest.mark.parametrize("read", [Tensor.tolist, Tensor.numpy, lambda x: float(x.sum())])
def test_numbers_that_python_reads_are_named(read: Any) -> None:
    def program(x: Tensor) -> Tensor:
        read(x)
        return losses(x)

    assert "reads examples" in prove(program, rows()).doubts[0]


def test_a_program_that_differs_by_chance_is_compared_with_itself() -> None:
    def program(x: Tensor) -> Tensor:
        return losses(x) * 2 if float(torch.rand(())) < 0.5 else losses(x)

    assert prove(program, rows()).is_proven


def test_code_for_the_backward_pass_is_followed() -> None:
    assert prove(lambda x: losses(Doubled.apply(MODEL(x) + x)), rows()).is_proven
    found = prove(lambda x: losses(Averaged.apply(MODEL(x) + x)), rows())
    assert "mixes the examples" in found.doubts[0]


class Divided(Doubled):
    """A function whose gradient depends on how many rows there are."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] / len(grads[0])


def hooked(hook: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        h = MODEL(x)
        h.register_hook(hook)
        return (h**2).squeeze(1)

    return program


def test_code_for_the_backward_pass_is_compared_at_two_sizes() -> None:
    assert "how many examples" in prove(lambda x: losses(Divided.apply(MODEL(x) + x)), rows()).doubts[0]
    assert "how many examples" in prove(hooked(lambda grad: grad / len(grad)), rows()).doubts[0]


def test_a_hook_is_followed() -> None:
    assert prove(hooked(lambda grad: grad * 0.5), rows()).is_proven
    assert "mixes the examples" in prove(hooked(lambda grad: grad - grad.mean(0)), rows()).doubts[0]
    assert "reads numbers" in prove(hooked(lambda grad: grad * float(grad.numpy().max())), rows()).doubts[0]


def test_no_gradients_are_left_behind() -> None:
    prove(lambda x: losses(Doubled.apply(MODEL(x) + x)), rows())
    assert all(parameter.grad is None for parameter in MODEL.parameters())


def test_a_check_of_classes_is_no_read_that_is_refused() -> None:
    def program(batch: dict[str, Tensor]) -> Tensor:
        return losses(batch["x"]) * nn.functional.one_hot(batch["y"], 3).sum(1)

    batch = {"x": rows(), "y": torch.tensor([0, 2, 1, 0])}
    assert prove(program, batch).is_proven

    def counted(batch: dict[str, Tensor]) -> Tensor:
        return losses(batch["x"]) * nn.functional.one_hot(batch["y"]).sum(1)

    assert not prove(counted, batch).is_proven


def test_an_assignment_by_a_mask_is_proven_if_it_moves_nothing() -> None:
    def filled(x: Tensor) -> Tensor:
        h = x.clone()
        h[x > 0] = 0.5
        h[:, torch.tensor([True, False, False, True, True])] = 2.0
        return losses(h)

    assert prove(filled, rows()).is_proven

    def moved(x: Tensor) -> Tensor:
        h = x.clone()
        h[x > 0] = x[x.flip(0) > 0].mean()
        return losses(h)

    assert not prove(moved, rows()).is_proven


def test_memory_read_from_where_examples_do_not_begin_is_not_proven() -> None:
    big = torch.randn(_NUM * _WIDTH + 3)

    def program(x: Tensor) -> Tensor:
        return losses(x.as_strided((len(x), _WIDTH), (_WIDTH, 1), 0))

    assert not prove(program, big[3:].view(_NUM, _WIDTH)).is_proven


def test_a_batch_without_one_row_per_example_and_losses_of_another_shape_are_refused() -> None:
    with pytest.raises(ArgumentError, match="one row per example"):
        prove(lambda batch: losses(batch[0]), [rows(3), rows(4)])
    with pytest.raises(LossError, match="one loss per example"):
        prove(lambda x: losses(x).sum(), rows())


def test_following_a_program_does_not_import_the_compiler() -> None:
    assert not hasattr(Tracer.__torch_dispatch__, "__wrapped__")


RANKED: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": lambda x: torch.topk(losses(x).detach(), 1, 0).values,
    "second": lambda x: torch.kthvalue(losses(x).detach(), 2, 0).values,
    "median": lambda x: torch.median(losses(x).detach(), 0).values,
    "sorted columns": lambda x: torch.sort(x.detach(), 0).values.sum(1),
    "sorted losses": lambda x: torch.sort(losses(x).detach(), 0).values,
}


@pytest.mark.parametrize("ranked", RANKED.values(), ids=RANKED.keys())
def test_examples_in_order_mix_and_do_not_only_lack_a_rule(ranked: Callable[[Tensor], Tensor]) -> None:
    found = prove(lambda x: losses(x) * ranked(x), rows())
    assert isinstance(found.losses, Cause)
    assert found.losses.fault is Fault.MIXES


@torch.library.custom_op("privet_tests::keeps_its_examples", mutates_args=())
def keeps_its_examples(x: Tensor) -> Tensor:
    return x.clone()


def test_an_operator_of_the_user_leaves_a_program_unproven_though_its_result_is_not_used() -> None:
    def kept(x: Tensor) -> Tensor:
        keeps_its_examples(x.detach())
        return losses(x)

    assert any("keeps_its_examples" in doubt for doubt in prove(kept, rows()).doubts)


ARRAYS = [np.ones(3, dtype=np.float32), np.ones(5000, dtype=np.float32), np.ones(3, dtype=np.float32)]
SHARED = [torch.from_numpy(ARRAYS[0]), torch.from_numpy(ARRAYS[1]), torch.from_numpy(ARRAYS[2]).requires_grad_()]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("is_between_two_uses", [False, True])
def test_numbers_that_numpy_writes_by_the_number_of_examples_show(number: int, is_between_two_uses: bool) -> None:
    array, constant = ARRAYS[number], SHARED[number]

    def scaled(x: Tensor) -> Tensor:
        array[:] = 1.0 if is_between_two_uses else len(x)
        found = losses(x) * constant.detach().mean()
        array[:] = len(x)
        return found * constant.detach().mean()

    assert "depend on how many examples" in str(prove(scaled, rows()).doubts)
    array[:] = 1.0
    assert prove(lambda x: losses(x) * constant.detach().mean(), rows()).is_proven


def test_losses_that_are_all_of_one_example_are_not_one_per_example() -> None:
    batch = torch.randn(5, 4)
    for losses in (
        lambda x: x.unbind(0)[0].sum().expand(len(x)),
        lambda x: x.chunk(len(x))[2].sum().repeat(len(x)),
        lambda x: x.square().sum(1)[-1:].expand(len(x)),
    ):
        found = follow(losses, batch).losses
        assert isinstance(found, Cause)
        assert found.fault is Fault.MIXES
    assert isinstance(follow(lambda x: x.unbind(0)[0].sum().expand(1), batch[:1]).losses, Place)


def test_a_tensor_that_is_given_the_memory_of_examples_holds_examples() -> None:
    def losses(x: Tensor) -> Tensor:
        largest = torch.zeros(())
        largest.data = x.amax()
        return x.sum(1) * largest

    def apart(x: Tensor) -> Tensor:
        shifted = torch.zeros(1)
        shifted.data = x + 1
        return shifted.sum(1)

    assert "amax" in prove(losses, torch.randn(6, 3)).doubts[0]
    assert prove(apart, torch.randn(6, 3)).is_proven


def _next_by_out(x: Tensor) -> Tensor:
    rows = x.clone()
    rest = rows[:, 1:]
    torch.add(rest, 1, out=rows)  # fewer columns: rows lie closer together from now on, and the view does not know
    return rest.sum(1)


def _over_the_next_by_out(x: Tensor) -> Tensor:
    rows = x.clone()
    first = rows[0]
    torch.mul(x[0].repeat(2), 1, out=first)  # twice as long: it reaches into the row of the next example
    return rows.sum(1)


def _as_they_were_by_out(x: Tensor) -> Tensor:
    rows, new = x.clone(), torch.empty(0)
    rest = rows[:, 1:]
    torch.add(rows, 1, out=rows)
    rows.unsqueeze_(1).squeeze_(1)
    torch.mul(rest, 2, out=new)
    return new.sum(1) + rest.sum(1)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_write_that_lays_a_tensor_out_anew_is_seen_through_other_views_of_its_memory() -> None:
    for losses in (_next_by_out, _over_the_next_by_out):
        assert isinstance(follow(losses, torch.randn(6, 4)).losses, Cause)
    assert isinstance(follow(_as_they_were_by_out, torch.randn(6, 4)).losses, Place)
