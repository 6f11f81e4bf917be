"""Under autocast a layer's rule holds the rounded input that autograd keeps, and nothing else of the pass."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.gradients.capture.recorded import Use
from privet.gradients.capture.rounding import as_seen
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import add, started

SIZE, WIDTH = 6, 5
NORM = Threshold(norm=0.5)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 3))


def batch(seed: int) -> Tensor:
    return torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seeds", [1, 3], ids=["a new program", "a known one"])
def test_the_wider_input_of_a_layer_is_let_go_during_the_forward_pass(seeds: int) -> None:
    model, seen = network(), list[bool]()

    def losses(model: nn.Module, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wide = (inputs * 2).float()
            watched = weakref.ref(wide)
            outputs = model[0](wide)
            del wide
            seen.append(watched() is None)
            return model[2](outputs.tanh()).float().square().sum(1)

    running, into, rule = started(BookKeeping(), model, NORM)
    for seed in range(seeds):
        add(running, model, batch(seed), rule, into, losses)
    running.close()
    assert seen[-1]


@pytest.mark.parametrize("shape", [(3, 5), (3, 2, 5)])
def test_results_and_gradients_are_those_of_autocast_bit_for_bit(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    found = []
    given, weight = torch.randn(shape), torch.randn(4, 5)
    for rounds in (False, True):
        inputs, matrix = given.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            args = as_seen(functional.linear, (inputs, matrix)) if rounds else (inputs, matrix)
            outputs = functional.linear(*args)
        assert rounds == (args[0].dtype == torch.bfloat16)
        found.append((outputs.detach(), *torch.autograd.grad(outputs.float().square().sum(), (inputs, matrix))))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


def test_nothing_is_rounded_without_autocast_or_in_other_operations() -> None:
    args = (torch.randn(3, 5), torch.randn(4, 5))
    assert as_seen(functional.linear, args) is args
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert as_seen(torch.add, args) is args
        double = (args[0].double(), args[1].double())
        assert as_seen(functional.linear, double) is double


def test_a_comparison_after_the_pass_leaves_no_gradient_with_a_released_use() -> None:
    use = Use(
        function=functional.linear, args=(), kwargs={}, sources=(), output_shape=torch.Size([1]),
        output_dtype=torch.float32, edge=None,
    )  # fmt: skip
    use.hear(torch.ones(1))
    use.release()
    use.hear(torch.ones(1))
    assert use.out_grad is None
    heard: list[Use] = []
    use.receive = heard.append  # a trial asks for gradients of a released use, and says so
    use.hear(torch.ones(1))
    assert heard == [use]
    assert use.out_grad is not None
