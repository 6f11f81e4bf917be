"""A program is recognised exactly if its calls are those that were proven, and recognising it is cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import privet.isolation
from privet.isolation.asking import ASKING
from privet.isolation.follow import Follower
from privet.isolation.place import Place
from privet.isolation.programs import Programs

SIZE, WIDTH = 4, 6
WEIGHT, OTHER = nn.Parameter(torch.ones(WIDTH, WIDTH)), nn.Parameter(torch.ones(WIDTH, WIDTH))
Losses = Callable[[Tensor], Tensor]
CONSTANT = torch.ones(WIDTH)
MASK = np.arange(WIDTH) % 2 == 0


class Source:
    """What a parameter is followed as."""

    derived = False

    def __init__(self, number: int, tensor: Tensor) -> None:
        self.parameters, self.tensor = frozenset([number]), tensor


PARAMETERS = {id(value): Source(number, value) for number, value in enumerate((WEIGHT, OTHER))}


class Calls(TorchFunctionMode):
    """Shows a follower every call, and counts them."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self.follower, self.count = follower, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in ASKING:
            return func(*args, **kwargs)
        self.count += 1
        self.follower.before(func, args, kwargs)
        result = func(*args, **kwargs)
        if type(result) is Tensor:
            self.follower.after((result,))
        else:
            self.follower.after([leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)])
        return result


def name_of(tensor: Tensor) -> Any:
    source = PARAMETERS.get(id(tensor))
    return (tensor.shape, tensor.dtype) if source is None else source.parameters


def followed(programs: Programs, losses: Losses) -> tuple[bool, int]:
    """Run a program; return whether it was recognised, and how many calls it made."""
    x = torch.ones(SIZE, WIDTH)
    place = Place(0, 1, 1, 0, SIZE)
    follower = Follower(programs, SIZE, lambda tensor: place if tensor is x else None, name_of, PARAMETERS)
    try:
        with Calls(follower) as calls:
            found = losses(x)
    finally:
        follower.leave()
    proof = follower.prove(found)
    if proof.trace is not None:
        proof.trace.is_hidden = False  # calls are shown to a mode of this file, which is none of the library's
        follower.remember()
    follower.release()
    return proof.trace is None, calls.count


class Doubled(torch.autograd.Function):
    """Computes what ``mul`` does, with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul(2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * grads[0].sum()


class Attached(torch.autograd.Function):
    """Makes no call, and becomes the node of a tensor that a call made."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, made: list[Tensor]) -> Tensor:
        return made[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].sum(), None


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x @ WEIGHT


def uncounted(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.mul(2).mul(3)


def counted(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.mul(2).mul(3)


def first_of(x: Tensor) -> Tensor:
    middle = x.mul(2)  # the first result
    middle.mul(3)  # the second
    return middle


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda x: x.mul(2).sum(1), lambda x: x.mul(3).sum(1), id="number"),
        pytest.param(lambda x: x.mul(2).sum(1), lambda x: x.mul(2.0).sum(1), id="whole and real number"),
        pytest.param(lambda x: x.add(x.mul(2).mul(0)).sum(1), lambda x: x.add(x.mul(2).mul(False)).sum(1), id="truth"),
        pytest.param(lambda x: x[True].sum(0).sum(1), lambda x: x[1].sum(0).sum(-1).expand(SIZE), id="truth as index"),
        pytest.param(lambda x: x.sum((1,)), lambda x: x.sum([1]), id="tuple and list"),
        pytest.param(lambda x: x.sum(1), lambda x: x.sum(dim=1), id="named"),
        pytest.param(lambda x: x.sum(dim=1), lambda x: x.sum(axis=1), id="other name"),
        pytest.param(lambda x: x[:, 0:2].sum(1), lambda x: x[:, 0:3].sum(1), id="slice"),
        pytest.param(lambda x: x.add(x.mul(2)).sum(1), lambda x: x.mul(2).add(x).sum(1), id="order"),
        pytest.param(lambda x: first_of(x).sum(1), lambda x: first_of(x).mul(1).sum(1), id="one call more"),
        pytest.param(
            lambda x: torch.add(first_of(x), 1).sum(1),
            lambda x: torch.add(y := x.mul(2), y.mul(3)).sum(1),
            id="number and the result of that number",
        ),
        pytest.param(
            lambda x: x.mul(2).sub((y := x.mul(3)).mul(y)).sum(1),
            lambda x: (z := x.mul(2)).sub(x.mul(3).mul(z)).sum(1),
            id="which result",
        ),
        pytest.param(lambda x: (x @ WEIGHT).sum(1), lambda x: (x @ OTHER).sum(1), id="parameter"),
        pytest.param(
            lambda x: (x @ WEIGHT).sum(1), lambda x: (x @ torch.ones(WIDTH, WIDTH)).sum(1), id="no parameter"
        ),
        pytest.param(
            lambda x: (x + torch.ones(1, WIDTH)).sum(1), lambda x: (x + torch.ones(WIDTH)).sum(1), id="constant"
        ),
        pytest.param(lambda x: x.repeat(1, 300).sum(1), lambda x: x.repeat(1, 301).sum(1), id="large number"),
        pytest.param(lambda x: x.view(SIZE, 2, 3).sum((1, 2)), lambda x: x.view(SIZE, 2, 3).sum((2, 1)), id="items"),
        pytest.param(lambda x: x[(True,)].flatten(), lambda x: x[(1,)].flatten(), id="truth in a tuple"),
        pytest.param(
            lambda x: torch.add(x, CONSTANT).sum(1), lambda x: torch.add(x, 1).sum(1), id="constant or number"
        ),
        pytest.param(
            lambda x: nn.functional.linear(x, WEIGHT, WEIGHT.mul(2)[0]).sum(1),
            lambda x: (nn.functional.linear(x, WEIGHT, None), WEIGHT.mul(2)[0])[0].sum(1),
            id="result or nothing",
        ),
        pytest.param(lambda x: counted(x).sum(1), lambda x: uncounted(x).sum(1), id="writes are not counted"),
        pytest.param(
            lambda x: x[:, np.array([0, 1])].sum(1), lambda x: x[:, np.array([0, 2])].sum(1), id="array"
        ),
        pytest.param(
            lambda x: x[:, MASK.view(np.uint8).astype(np.int64)].sum(1), lambda x: x[:, MASK].sum(1), id="mask"
        ),
        pytest.param(
            lambda x: (x @ WEIGHT).mul(2).sum(1), lambda x: Doubled.apply(x @ WEIGHT).sum(1), id="user-written node"
        ),
        pytest.param(
            lambda x: (without_gradients(x) + x @ WEIGHT).sum(1),
            lambda x: (Attached.apply(WEIGHT, [without_gradients(x)]) + x @ WEIGHT).sum(1),
            id="user-written node without calls",
        ),
    ],
)  # fmt: skip
def test_a_program_that_differs_in_anything_is_not_recognised(one: Losses, other: Losses) -> None:
    programs = Programs()
    assert not followed(programs, one)[0]
    assert followed(programs, one)[0]
    assert not followed(programs, other)[0]
    assert followed(programs, one)[0]


def test_a_list_that_was_changed_is_not_the_list_that_was_proven() -> None:
    programs, axes = Programs(), [1]
    assert not followed(programs, lambda x: x.sum(axes))[0]
    assert followed(programs, lambda x: x.sum(axes))[0]
    axes[0] = -1
    assert not followed(programs, lambda x: x.sum(axes))[0]


def test_a_program_in_inference_mode_is_recognised() -> None:
    programs = Programs()
    assert not followed(programs, lambda x: uncounted(x).sum(1))[0]
    assert followed(programs, lambda x: uncounted(x).sum(1))[0]


def test_a_parameter_that_was_given_another_class_is_not_recognised() -> None:
    class Own(nn.Parameter):
        pass

    programs = Programs()
    assert not followed(programs, lambda x: (x @ WEIGHT).sum(1))[0]
    WEIGHT.__class__ = Own
    try:
        assert not followed(programs, lambda x: (x @ WEIGHT).sum(1))[0]
    finally:
        WEIGHT.__class__ = nn.Parameter
    assert followed(programs, lambda x: (x @ WEIGHT).sum(1))[0]


def layers(x: Tensor) -> Tensor:
    for _ in range(10):
        x = nn.functional.linear(x, WEIGHT, None).view(SIZE, 2, -1).transpose(1, 2).flatten(1)
        x = nn.functional.layer_norm(x, SHAPE, eps=1e-5) + x
    return x.sum(1)


SHAPE = (WIDTH,)


def test_a_known_call_costs_two_calls_of_python() -> None:
    """Counted, not timed: whatever is called from ``before`` and ``after`` would be paid at every operation."""
    programs, folder = Programs(), str(Path(privet.isolation.__file__).parent)
    for _ in range(3):
        followed(programs, layers)
    made: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            made.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        is_known, num_calls = followed(programs, layers)
    finally:
        sys.setprofile(None)
    assert is_known
    assert num_calls > 50
    assert made.count("before") == made.count("after") == num_calls
    assert len(made) <= 2 * num_calls + 20
