"""A program is followed on two numbers of examples: what depends on the number shows, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from privet.isolation.place import Place, single
from privet.isolation.sizes import Comparison, compare
from privet.isolation.tracer import Tracer
from privet.isolation.traces import Trace

Program = Callable[[Tensor], Tensor]
WIDTH = 4


def traced(program: Program, num: int) -> Trace:
    x = torch.randn(num, WIDTH, generator=torch.Generator().manual_seed(num))
    place = single(0) if num == 1 else Place(0, 1, 1, 0, num)
    tracer = Tracer(num, lambda tensor: place if tensor is x else None)
    with tracer:
        losses = program(x)
    tracer.trace.losses = tracer.spec(losses).serial
    return tracer.trace


def compared(program: Program, one: int = 5, other: int = 3) -> Comparison:
    return compare(traced(program, one), traced(program, other))


TABLE = torch.arange(1.0, 11.0)


def through_memory(values: Tensor) -> Tensor:
    """Read a public tensor through another one on its memory, as torch does with the weights of a recurrent layer."""
    return torch.empty(0).set_(values.untyped_storage(), 0, (len(values),), (1,))  # type: ignore[call-overload, no-any-return]


DEPENDING: dict[str, Program] = {
    "divided by the length": lambda x: x.sum(1) / len(x),
    "root of the length": lambda x: x.sum(1) * len(x) ** 0.5,
    "length as a tensor": lambda x: x.sum(1) * torch.tensor(len(x)),
    "length as a list": lambda x: x.sum(1) * torch.tensor([1.0 / len(x)]),
    "length as numbers of a full": lambda x: x.sum(1) * torch.full((1,), float(len(x))),
    "length as a scalar": lambda x: x.sum(1) * torch.scalar_tensor(len(x)),
    "length as an exponent": lambda x: x.sum(1) ** len(x),
    "length as a limit": lambda x: x.sum(1).clamp(max=len(x)),
    "length as a slope": lambda x: torch.nn.functional.leaky_relu(x, 1 / len(x)).sum(1),
    "length as a chance": lambda x: torch.nn.functional.dropout(x, 1 / len(x)).sum(1),
    "counted ones": lambda x: x.sum(1) / torch.ones(len(x)).sum(),
    "mean of counted places": lambda x: x.sum(1) / torch.arange(len(x)).float().mean(),
    "norm of ones": lambda x: x.sum(1) / torch.ones(len(x), 2).norm(),
    "product of ones": lambda x: x.sum(1) / (torch.ones(len(x)) @ torch.ones(len(x))),
    "weights by place": lambda x: x.sum(1) * torch.arange(len(x)),
    "weights by place, late": lambda x: (x.detach() * 0 + x).sum(1) * torch.arange(len(x)).flip(0),
    "spaced weights": lambda x: x.sum(1) * torch.linspace(0, 1, len(x)),
    "length through a write": lambda x: x.sum(1) * torch.zeros(1).fill_(len(x)),
    "length by an in-place product": lambda x: x.sum(1).mul_(len(x)),
    "length of memory": lambda x: x.sum(1) * through_memory(torch.ones(len(x))).sum(),
    "length as a width": lambda x: x.sum(1) / torch.zeros(3, len(x)).add(1).sum(1)[0],
    "length as an eye": lambda x: x.sum(1) / torch.eye(len(x)).sum(),
    "cumulated ones": lambda x: x.sum(1) * torch.ones(len(x)).cumsum(0),
    "softmax of zeros": lambda x: x.sum(1) * torch.zeros(len(x)).softmax(0),
    "variance of zeros and one": lambda x: x.sum(1) * torch.eye(len(x))[0].var(),
    "mean of an eye": lambda x: x.sum(1) * torch.eye(len(x)).mean(),
    "largest of cumulated ones": lambda x: x.sum(1) * torch.ones(len(x)).cumsum(0).max(),
    "nonzero places": lambda x: x.sum(1) * torch.ones(len(x)).nonzero().sum(),
    "repeated ones": lambda x: x.sum(1) / torch.ones(1).repeat(len(x)).sum(),
    "padded zeros": lambda x: x.sum(1) / torch.nn.functional.pad(torch.ones(1), (0, len(x)), value=1.0).sum(),
    "rolled ones": lambda x: x.sum(1) * torch.nn.functional.one_hot(torch.tensor(0), len(x)).float().std(),
    "a draw below the length": lambda x: x.sum(1) * torch.randint(0, len(x), (1,)),
    "mean of one among zeros": lambda x: x.sum(1) * torch.nn.functional.pad(torch.ones(1), (0, len(x) - 1)).mean(),
    "largest draw": lambda x: x.sum(1) * torch.rand(len(x)).max(),
    "transformed ones": lambda x: x.sum(1) * torch.fft.fft(torch.ones(len(x))).real[0],
    "filtered ones": lambda x: (
        x.sum(1) * torch.conv1d(torch.ones(1, 1, len(x)), torch.ones(1, 1, 2), padding=1)[0, 0, 1:]
    ),
    "normalised draws": lambda x: x.sum(1) * torch.nn.functional.layer_norm(torch.rand(len(x)), (len(x),)),
    "einsum of ones": lambda x: x.sum(1) / torch.einsum("i,i->", torch.ones(len(x)), torch.ones(len(x))),
    "normalised ones": lambda x: x.sum(1) * torch.nn.functional.normalize(torch.ones(len(x)), dim=0),
    "rows of a table by place": lambda x: x.sum(1) * TABLE[: len(x)],
    "rows of a table by counted place": lambda x: x.sum(1) * TABLE[torch.arange(len(x))],
    "an entry by the length": lambda x: x.sum(1) * TABLE[len(x)],
    "a running sum of ones": lambda x: x.sum(1) * torch.ones(len(x)).cumsum(0),
    "sorted draws": lambda x: x.sum(1) * torch.rand(len(x)).sort().values,
    "a draw that is the first": lambda x: (lambda z: x.sum(1) * (z == z[0]))(torch.rand(len(x))),
    "an expanded draw that is the first": lambda x: (lambda z: x.sum(1) * (z == z[0]))(
        torch.rand(len(x), 1).expand(-1, 2)[:, 0]
    ),
    "largest expanded draw": lambda x: x.sum(1) * torch.rand(len(x), 1).expand(-1, 2).max(),
    "one of several ones changed": lambda x: (lambda z: (z[0].fill_(5.0), x.sum(1) * z)[1])(torch.ones(len(x))),
    "the length written into a part": lambda x: (lambda z: (z[0].fill_(len(x)), x.sum(1) * z.sum())[1])(torch.ones(3)),
    "the first example alone": lambda x: torch.cat([x[:1].sum(1) * 5, x[1:].sum(1)]),
    "copies as many as examples": lambda x: x.sum(1)[:, None].expand(len(x), len(x)).sum(1),
    "repeated as often as examples": lambda x: x.sum(1).repeat(len(x)).view(len(x), -1).sum(0),
    "an array of the length": lambda x: x.sum(1) * torch.from_numpy(np.array([1 / len(x)], dtype=np.float32)),
    "a long list of the length": lambda x: x.sum(1) * torch.tensor([1 / len(x)] * 100)[0],
}
INDEPENDENT: dict[str, Program] = {
    "divided by the width": lambda x: x.sum(1) / x.shape[1],
    "memory of a public tensor": lambda x: (x * through_memory(torch.ones(WIDTH))).sum(1),
    "fresh zeros": lambda x: x.sum(1) + torch.zeros(len(x)),
    "fresh ones, by row": lambda x: x.sum(1) + torch.ones(len(x), 3).sum(1),
    "random numbers": lambda x: x.sum(1) + torch.randn(len(x)),
    "a view by length": lambda x: x.view(len(x), 2, 2).sum((1, 2)),
    "an expanded constant": lambda x: (x + torch.ones(1, WIDTH).expand(len(x), -1)).sum(1),
    "picked by places": lambda x: x[torch.arange(len(x)), torch.zeros(len(x), dtype=torch.long)],
    "one of several equal rows": lambda x: (x + torch.arange(4.0).expand(len(x), -1)[:1]).sum(1),
    "the largest place of a sequence": lambda x: (x / torch.arange(1, 5).expand(len(x), -1).max()).sum(1),
    "a public layer": lambda x: (x + torch.ones(len(x), WIDTH) @ torch.ones(WIDTH, WIDTH)).sum(1),
    "a draw by row": lambda x: (x * torch.rand(len(x), WIDTH).softmax(1)).sum(1),
    "a triangle by row": lambda x: (x.unsqueeze(1) * torch.ones(len(x), WIDTH, WIDTH).tril()).sum((1, 2)),
}


@pytest.mark.parametrize("name", DEPENDING)
def test_what_depends_on_the_number_of_examples_shows_at_two_sizes(name: str) -> None:
    found = compared(DEPENDING[name])
    assert not found.is_possible or found.fault is not None


@pytest.mark.parametrize("name", INDEPENDENT)
def test_what_does_not_depend_on_the_number_of_examples_passes(name: str) -> None:
    found = compared(INDEPENDENT[name])
    assert found.is_possible
    assert found.fault is None


def test_programs_of_different_operations_cannot_be_compared() -> None:
    assert not compare(traced(lambda x: x.sum(1), 5), traced(lambda x: x.mean(1), 3)).is_possible
