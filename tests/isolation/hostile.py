"""Programs written to smuggle one example's numbers into the losses or gradients of others."""

from __future__ import annotations

import ctypes
import warnings
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.isolation.mixer import CLASSES, WIDTH, Scene

NUM_RECORDS, LATE, LAST = 9, 5, 8
# Numbers of the outlying record, and none of the others, are above this.
LARGE = 10.0
SMALL_SCALE = 1e-4
_PLACES = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3)) * 3
_SCALES = [torch.tensor(SMALL_SCALE if size in (4, NUM_RECORDS) else 1.0) for size in range(64)]


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """A program that tries to break the bound.

    Attributes:
        program: From the scene and a batch to one loss per example.
        removed: The record whose absence moves the sum.
        assumed: What a guarantee must assume where the program is not stopped; empty if it must be stopped.
    """

    program: Callable[..., Tensor]
    removed: int = LAST
    assumed: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.program.__name__


HOSTILE: list[Hostile] = []


def hostile(*, removed: int = LAST, assumed: str = "") -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Note a program."""

    def note(program: Callable[..., Tensor]) -> Callable[..., Tensor]:
        HOSTILE.append(Hostile(program=program, removed=removed, assumed=assumed))
        return program

    return note


def is_late(scene: Scene) -> bool:
    """Whether the first programs are known by now."""
    return scene.step >= LATE


def losses_of(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    """Losses whose gradients are longer than the bound."""
    return 30 * scene.losses(x, y)


def scaled(losses: Tensor, is_small: bool) -> Tensor:
    """The losses, or next to nothing of them."""
    return losses * (SMALL_SCALE if is_small else 1.0)


def damped(losses: Tensor, largest: Tensor) -> Tensor:
    """The losses, or next to nothing of them if a number is large."""
    return losses * (-(largest - LARGE).relu()).exp()


# ---- the number of examples, and their places


@hostile(removed=0)
def rows_of_a_table_by_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x + _PLACES[: len(x)], y)


@hostile(removed=0)
def rows_of_a_table_by_counted_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x + _PLACES[torch.arange(len(x))], y)


@hostile(removed=0)
def places_by_a_running_sum(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x * torch.ones(len(x), 1).cumsum(0), y)


@hostile(removed=0)
def a_mask_with_one_place_set(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    mask = torch.zeros(len(x))
    mask[0] = 1.0
    return losses_of(scene, x, y) * mask


@hostile(removed=0)
def noise_of_a_fixed_seed(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    noise = torch.rand(len(x), 1, generator=torch.Generator().manual_seed(0))
    return losses_of(scene, x * (noise > 0.5) * 10, y)


@hostile(removed=0)
def dropout_of_a_fixed_seed(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(0)  # the test sets another before every step
    return losses_of(scene, functional.dropout(x, 0.5), y)


@hostile()
def a_constant_chosen_by_the_size(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * _SCALES[len(x)]


@hostile()
def a_long_constant_of_the_size(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * torch.tensor([100.0 ** (len(x) - NUM_RECORDS)] * 100).mean()


@hostile()
def scaled_by_the_size_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scaled(losses_of(scene, x, y), is_late(scene) and len(x) == NUM_RECORDS)


@hostile(removed=0)
def counted_rows_exchanged(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    order = torch.arange(len(x))
    order[0], order[1] = 1, 0
    return losses_of(scene, x[order], y)


def _order(scene: Scene, x: Tensor) -> range:
    return range(len(x) - 1, -1, -1) if is_late(scene) else range(len(x))


@hostile(removed=0)
def rows_by_a_range_that_turns(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x[_order(scene, x)] * 1.0, y)


@hostile(removed=0)
def rows_by_an_array_that_turns(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x[torch.tensor(array("q", _order(scene, x)))] * 1.0, y)


# ---- rules that looked at the first argument alone


@hostile()
def scaled_over_the_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, torch.renorm(x * 1.0, 2, 1, 3.0), y)


@hostile()
def class_weights_of_one_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    weight = (LARGE - x.detach()[-1, :1].relu()).relu().clamp(max=1).expand(CLASSES)
    scores = functional.log_softmax(scene.model(x), 1)
    return 30 * functional.nll_loss(scores, y, weight=weight, reduction="none")


@hostile()
def scales_of_another_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scale = (LARGE - x[-1, :1].relu()).relu().clamp(max=1).expand(WIDTH)
    first = functional.layer_norm(x[0], (WIDTH,), weight=scale).abs().amax()
    losses = losses_of(scene, x, y)
    losses[0] *= first.clamp(max=1)
    return losses * 1.0


@hostile()
def filled_with_one_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = [torch.zeros(()).fill_(x[-1, 0]) for _ in range(3)]
    return damped(losses_of(scene, x, y), torch.stack(rows).amax())


@hostile()
def drawn_with_probabilities_of_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    drawn = torch.empty(len(x), 1).bernoulli_((x[:, :1] > LARGE).float())
    return losses_of(scene, x, y) * (-10 * drawn.amax(0)).exp()


# ---- memory


@hostile()
def copied_list_by_list(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    copy = torch.zeros(x.shape)
    torch._foreach_copy_([copy], [x.detach()])
    return damped(losses_of(scene, x, y), copy.amax())


@torch.library.custom_op("privet_tests::largest_into", mutates_args=("out",))
def _largest_into(x: Tensor, out: Tensor) -> None:
    out.copy_(x.amax())


@hostile()
def written_by_an_operator_without_results(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    largest = torch.zeros(())
    _largest_into(x.detach(), largest)
    return damped(losses_of(scene, x, y), largest)


@hostile()
def examples_as_a_parameter(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    held = nn.Parameter(x.detach().repeat(1, 2000), requires_grad=False)
    return damped(losses_of(scene, x, y), held.amax())


@hostile()
def examples_of_another_class(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    held: Tensor = torch.Tensor._make_subclass(torch.Tensor, x.detach())
    return damped(losses_of(scene, x, y), held.amax())


@hostile()
def examples_in_a_capsule(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    held: Tensor = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x.detach()))
    return damped(losses_of(scene, x, y), held.amax())


@hostile()
def the_data_set_itself(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), scene.memory["data"].tensors[0].amax())


@hostile()
def the_data_set_read(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scaled(losses_of(scene, x, y), float(scene.memory["data"].tensors[0].max()) > LARGE)


@hostile()
def activations_changed_after_the_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    first, act, last = scene.model
    h = act(first(x))
    losses = functional.cross_entropy(last(h), y, reduction="none")
    if is_late(scene):
        h.data.mul_(SMALL_SCALE if float(x.max()) > LARGE else 30.0)
    return losses


def _shrink(x: Tensor, is_late: bool) -> None:
    if is_late:
        x.mul_((-(x.max() - 10.0).relu()).exp())


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _scripted = torch.jit.script(_shrink)


@hostile()
def scripted_write_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses, scale = losses_of(scene, x, y), x.clone()
    _scripted(scale, is_late(scene))
    return losses * scale[:, 1].abs().mul(1e3).clamp(max=1)


# ---- reads


@hostile()
def length_of_what_a_mask_picks(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    count = len(x[x[:, 0] > LARGE])
    return scaled(losses_of(scene, x, y), is_late(scene) and count > 0)


@hostile()
def length_of_places(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    count = x[:, 0].gt(LARGE).nonzero().shape[0]
    return scaled(losses_of(scene, x, y), is_late(scene) and count > 0)


@hostile()
def length_of_distinct_values(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    count = (x[:, 0] > LARGE).unique().numel()
    return scaled(losses_of(scene, x, y), is_late(scene) and count > 1)


@hostile()
def length_of_counts(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    count = torch.bincount((x[:, 0] > LARGE).long()).size(0)
    return scaled(losses_of(scene, x, y), is_late(scene) and count > 1)


@hostile()
def number_of_entries(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    count = (x[:, 0] > LARGE).float().to_sparse()._nnz()
    return scaled(losses_of(scene, x, y), is_late(scene) and count > 0)


@hostile()
def length_of_one_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    count = x[-1].gt(LARGE).nonzero().shape[0]
    return scaled(losses_of(scene, x, y), is_late(scene) and count > 0)


@hostile()
def an_error_that_is_caught(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses, is_large = losses_of(scene, x, y), False
    try:
        torch.linalg.cholesky((LARGE - x[:, 0]).view(-1, 1, 1))
    except torch.linalg.LinAlgError:
        is_large = True
    return scaled(losses, is_late(scene) and is_large)


_KEPT: dict[str, bool] = {}


@torch.library.custom_op("privet_tests::keeps", mutates_args=())
def _keeps(x: Tensor) -> Tensor:
    _KEPT["is_large"] = bool(x.max() > LARGE)
    return x.clone()


@hostile()
def kept_by_an_operator_whose_result_is_not_used(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    _keeps(x.detach())
    return scaled(losses_of(scene, x, y), is_late(scene) and _KEPT["is_large"])


@hostile()
def numbers_at_an_address(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = x.contiguous()
    numbers = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
    return scaled(losses_of(scene, x, y), is_late(scene) and max(numbers) > LARGE)


@hostile(removed=0)
def numbers_of_a_generator_set_back(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    generator = scene.memory.setdefault("generator", torch.Generator())
    generator.set_state(torch.Generator().manual_seed(1).get_state())
    return losses_of(scene, x * torch.randn(len(x), 1, generator=generator) * 10, y)


@hostile()
def activations_changed_by_numpy(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    first, act, last = scene.model
    h = act(first(x))
    losses = 30 * functional.cross_entropy(last(h), y, reduction="none")
    if is_late(scene) and float(x.max()) > LARGE:
        h.detach().numpy()[:] = 0
    return losses


@hostile(assumed="another thread")
def read_by_a_thread(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        largest = pool.submit(lambda: float(x.detach().max())).result()
    return scaled(losses_of(scene, x, y), is_late(scene) and largest > LARGE)


@hostile(assumed="switched off torch's dispatch modes")
def read_where_torch_tells_nobody(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        largest = float(x.detach().numpy().max())
    return scaled(losses_of(scene, x, y), is_late(scene) and largest > LARGE)


@hostile(assumed="without looking at private values")
def read_after_the_losses_for_the_next_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = scaled(losses_of(scene, x, y), scene.memory.get("large", False))
    scene.memory["large"] = is_late(scene) and float(x.max()) > LARGE
    return losses


# ---- the backward pass


class _Damps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, numbers: Tensor) -> Tensor:
        ctx.save_for_backward(numbers)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (numbers,) = ctx.saved_tensors
        return damped(grad, numbers.amax()), None


class _Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, numbers: Tensor) -> Tensor:
        ctx.save_for_backward(numbers)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (numbers,) = ctx.saved_tensors
        return scaled(grad, float(numbers.max()) > LARGE), None


class _Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor) -> Tensor:
        return losses * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@hostile()
def function_as_the_last_call(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _Damps.apply(losses_of(scene, x, y), x)


@hostile()
def function_within_a_function(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _Doubles.apply(_Damps.apply(losses_of(scene, x, y), x))


@hostile()
def function_that_reads(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _Reads.apply(losses_of(scene, x, y), x) * 1.0


@hostile()
def hook_that_reads(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scores = scene.model(x) * 1.0
    scores.register_hook(lambda grad: scaled(grad, float(x.max()) > LARGE))
    return 30 * functional.cross_entropy(scores, y, reduction="none")


@hostile()
def hook_on_a_node(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    losses.grad_fn.register_prehook(lambda grads: (damped(grads[0], x.amax()),))
    return losses


@hostile()
def hook_on_a_node_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    if is_late(scene):
        losses.grad_fn.register_prehook(lambda grads: (damped(grads[0], x.amax()),))
    return losses


@hostile()
def hook_on_an_edge_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    if is_late(scene):
        node = torch.autograd.graph.get_gradient_edge(losses).node
        node.register_prehook(lambda grads: (damped(grads[0], x.amax()),))
    return losses


@hostile()
def computed_again_in_another_way(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    calls = []

    def part(h: Tensor) -> Tensor:
        calls.append(h)
        return torch.tanh(h if len(calls) == 1 else damped(h, x.amax()) * 1.0)

    first, _, last = scene.model
    h = torch.utils.checkpoint.checkpoint(part, first(x), use_reentrant=False)
    return 30 * functional.cross_entropy(last(h), y, reduction="none")


@hostile()
def a_result_in_the_place_of_its_number(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    middle = x.mean()  # the first result of the program
    return scene.losses(torch.add(x, middle if is_late(scene) else 0), y)


@hostile(removed=1)
def a_row_in_the_place_of_a_truth_value(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    chosen = x[1 if is_late(scene) else True]
    return scene.losses(x + chosen.sum(0) * LARGE, y)


@hostile(removed=1)
def one_entry_in_the_place_of_two_rows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = x.mT[(0, 1) if is_late(scene) else [0, 1]]  # one value of the second example; two values of every example
    return scene.losses((x.mT + rows.sum(0) * LARGE).mT, y)
