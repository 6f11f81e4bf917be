"""Programs that let examples meet beside the operations: reads into Python, orders, hooks, functions of one's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.isolation.mixer import CLASSES, LATE, VOCABULARY, WIDTH, Between, Scene, mixer, network, tokens

_READS = "reads numbers of the examples into Python"


@mixer(_READS)
def scaled_by_an_item(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x / x.max().item(), y)  # mixes


@mixer(_READS)
def scaled_by_a_float(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) * float(x.detach()[0, 0])  # mixes


@mixer(_READS)
def scaled_by_a_list(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    total = sum(y.tolist())  # mixes
    return scene.losses(x, y) / (1 + total)


@mixer(_READS)
def scaled_by_an_array(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    spread = float(np.std(x.detach().numpy()))  # mixes
    return scene.losses(x / (1 + spread), y)


@mixer(_READS)
def scaled_by_what_numpy_takes(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    spread = float(np.asarray(x.detach()).max())  # mixes
    return scene.losses(x / (1 + spread), y)


@mixer(_READS)
def scaled_by_a_count(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    positive = int((y > 0).sum())  # mixes
    return scene.losses(x, y) / max(1, positive)


@mixer(_READS)
def branch_on_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    if x.mean() > 0.3:  # mixes
        return scene.losses(x, y)
    return 2 * scene.losses(x, y)


@mixer(_READS)
def branch_on_one_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    if bool((x[0] > 0).any()):  # mixes
        return scene.losses(x, y)
    return 2 * scene.losses(x, y)


@mixer(_READS)
def branch_on_equality(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    is_same = torch.equal(y[:1], y[1:2])  # mixes
    return scene.losses(x, y) * (2 if is_same else 1)


@mixer(_READS)
def branch_on_closeness(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    is_close = torch.allclose(x[0], x[1])  # mixes
    return scene.losses(x, y) * (2 if is_close else 1)


@mixer(_READS, starts=LATE)
def branch_on_the_batch_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    if scene.is_late and x.abs().max() > 1:  # mixes
        return 2 * scene.losses(x, y)
    return scene.losses(x, y)


@mixer(_READS)
def as_many_passes_as_the_longest(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    for _ in range(y.max()):  # mixes
        found = found * 2
    return found


@mixer(_READS)
def in_a_tried_clause(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    try:
        torch.linalg.cholesky(x[:2, :2])  # mixes
    except RuntimeError:
        return 2 * scene.losses(x, y)
    return scene.losses(x, y)


@mixer(_READS)
def membership(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) * (2 if 2 in y else 1)  # mixes


@mixer(_READS)
def text_of_a_tensor(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) * len(str(x[:1, 0]))  # mixes


@mixer(_READS)
def changed_by_python(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    seen: list[float] = [1.0]
    x = x.detach().apply_(lambda number: seen.append(number) or number / seen[-2])  # mixes
    return scene.losses(x, y)


@mixer(_READS)
def handed_over_as_a_capsule(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scale = float(np.from_dlpack(x.detach()).max())  # mixes
    return scene.losses(x, y) * scale


@mixer(_READS)
def read_as_bytes(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scale = float(sum(bytes(x.detach().untyped_storage())[-16:]))  # mixes
    return scene.losses(x, y) * scale


@mixer(_READS)
def formatted_number(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) * float(f"{x.detach()[0, 0]:.2f}")  # mixes


@mixer(_READS)
def largest_by_python(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / max(row.abs().max() for row in x)  # mixes


@mixer(_READS)
def ordered_by_numpy(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    order = torch.from_numpy(np.argsort(y.numpy(), kind="stable"))  # mixes
    return scene.losses(x[order], y[order])[order.argsort()]


@mixer(_READS)
def ordered_by_a_list(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    order = torch.tensor(sorted(range(len(x)), key=y.tolist().__getitem__))  # mixes
    return scene.losses(x[order], y[order])


@mixer(_READS)
def ordered_one_by_one(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    order = sorted(range(len(x)), key=lambda k: float(h[k].detach().sum()))  # mixes
    return functional.cross_entropy(torch.stack([h[k] for k in order]), y, reduction="none")


@mixer("another order")
def stacked_in_reverse(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    h = torch.stack([h[k] for k in reversed(range(len(x)))])  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("another order", starts=LATE)
def stacked_in_a_random_order_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h, order = scene.model(x), list(range(len(x)))
    if scene.is_late:
        order[0], order[-1] = order[-1], order[0]
    h = torch.stack([h[k] for k in order])  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("picked by a fixed number", starts=LATE)
def picked_by_a_list_that_changes(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    if scene.is_late:
        x = x[[*range(1, len(x)), 0]]  # mixes
    return scene.losses(x, y)


@mixer("picked by a fixed number")
def rows_by_numbers(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    order = torch.arange(len(x) - 1, -1, -1)
    return scene.losses(x.index_select(0, order), y)  # mixes


@mixer("picked by a fixed number")
def rows_gathered(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    order = torch.zeros(len(x), WIDTH, dtype=torch.long)
    return scene.losses(x + x.gather(0, order), y)  # mixes


@mixer("meets other examples")
def first_example_for_all(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x - x[0], y)  # mixes


@mixer("meets other examples")
def halves_that_meet(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    return torch.cat([found[:1] + found[1:2], found[1:]])  # mixes


class Centring(torch.autograd.Function):
    """Centres in its forward pass, and hides it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x - x.mean(0)  # mixes

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class MixingGradients(torch.autograd.Function):
    """Keeps examples apart in its forward pass, and mixes their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.mean(0, keepdim=True).expand_as(grad).clone()  # mixes


class LateGradients(torch.autograd.Function):
    """Begins to mix gradients late."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_late: bool) -> Tensor:
        ctx.is_late = is_late
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad + grad.flip(0) if ctx.is_late else grad), None  # mixes


@mixer("reduces over the examples", build=Between, within=(Centring,))
def function_that_centres(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scene.model.change = Centring.apply
    return scene.losses(x, y)


@mixer("reduces over the examples", build=Between, within=(MixingGradients,), in_backward=True)
def function_that_mixes_gradients(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scene.model.change = MixingGradients.apply
    return scene.losses(x, y)


@mixer("runs along the examples", build=Between, within=(LateGradients,), starts=LATE, in_backward=True)
def function_that_mixes_gradients_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scene.model.change = lambda h: LateGradients.apply(h, scene.is_late)  # type: ignore[no-untyped-call]
    return scene.losses(x, y)


def _hooked(scene: Scene, x: Tensor, y: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
    def change(h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(hook)  # type: ignore[no-untyped-call]
        return h * 2

    scene.model.change = change
    return scene.losses(x, y)


@mixer("reduces over the examples", build=Between, in_backward=True)
def hook_that_averages(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _hooked(scene, x, y, lambda grad: grad - grad.mean(0))  # mixes


@mixer("reduces over the examples", build=Between, starts=LATE, in_backward=True)
def hook_that_averages_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _hooked(scene, x, y, lambda grad: grad / grad.norm() if scene.is_late else grad)  # mixes


@mixer("an earlier batch", build=Between, in_backward=True)
def hook_that_keeps_gradients(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    def hook(grad: Tensor) -> Tensor:
        before = scene.memory.get("grad", torch.zeros(5))
        scene.memory["grad"] = grad.detach()[0]
        return grad + before  # mixes

    return _hooked(scene, x, y, hook)


class Hooked(nn.Module):
    """A layer with a hook on its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.inner[2].register_full_backward_hook(self._mix)

    @staticmethod
    def _mix(module: nn.Module, given: Any, grads: Any) -> Any:
        return tuple(None if grad is None else grad.flip(0) for grad in given)  # mixes

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x * 1.0)
        return found


@mixer("runs along the examples", build=Hooked, within=(Hooked,), in_backward=True)
def hook_of_a_module(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


class HookedForward(nn.Module):
    """A layer whose output a hook changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.inner[1].register_forward_hook(self._mix)

    @staticmethod
    def _mix(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        return output - output.mean(0)  # mixes

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        return found


@mixer("reduces over the examples", build=HookedForward, within=(HookedForward,))
def hook_of_a_forward_pass(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


class Scripted(nn.Module):
    """A submodule that was scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.centre = torch.jit.script(_centred)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(self.centre(x))  # mixes
        return found


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


@mixer("reduces over the examples", build=Scripted, within=(Scripted,))
def scripted(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


class Compiled(nn.Module):
    """A submodule that was compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.centre = torch.compile(self._centre, backend="eager")

    @staticmethod
    def _centre(x: Tensor) -> Tensor:
        return x - x.mean(0)  # mixes

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(self.centre(x))  # mixes
        return found


@mixer("reduces over the examples", build=Compiled, within=(Compiled,))
def compiled(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


@mixer("reduces over the examples")
def checkpointed(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    def part(x: Tensor) -> Tensor:
        return scene.model(x - x.mean(0))  # type: ignore[no-any-return]  # mixes

    h: Any = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
    return functional.cross_entropy(h, y, reduction="none")


@mixer("reduces over the examples")
def random_scale_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    return scene.losses(x + noise * x.std(0), y)  # mixes


@mixer("one draw is made")
def examples_drawn_by_their_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    chosen = torch.multinomial(found.detach(), 1)  # mixes
    return found * (1 + chosen)


@mixer(
    "travel",
    build=lambda: nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Linear(4, CLASSES)),
    data=tokens,
    calls_once=False,
)
def examples_looked_up_by_token(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    h = scene.model(ids).mean(1).detach()
    found = functional.cross_entropy(scene.model(ids).mean(1), labels[:, 0].clamp_min(0), reduction="none")
    return found + h[ids[:, 0] % len(ids)].sum(1)  # mixes
