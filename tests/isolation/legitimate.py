"""Programs that keep examples apart in ways that are easily taken for mixing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.isolation.mixer import CLASSES, WIDTH, Scene, network
from tests.isolation.mixer import tokens as labelled_tokens

_NUM, _TIME, _VOCABULARY = 9, 6, 9
_cross_entropy = partial(functional.cross_entropy, reduction="none")
_GENERATOR = torch.Generator().manual_seed(1)
_ROWS = torch.randn(_NUM, WIDTH, generator=_GENERATOR)
_CLASSES = torch.arange(_NUM) % CLASSES
_IDS = torch.randint(1, _VOCABULARY, (_NUM, _TIME), generator=_GENERATOR)
_LENGTHS = torch.randint(2, _TIME + 1, (_NUM,), generator=_GENERATOR)
_TEACHER, _PUBLIC = network().requires_grad_(False), torch.randn(20, WIDTH, generator=_GENERATOR)


@dataclass(frozen=True, kw_only=True)
class Legitimate:
    """A program, its model and its data."""

    program: Callable[..., Tensor]
    build: Callable[[], nn.Module]
    data: TensorDataset


LEGITIMATE: list[Legitimate] = []


def legitimate(
    build: Callable[[], nn.Module] = network, *data: Tensor
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Note a program."""

    def note(program: Callable[..., Tensor]) -> Callable[..., Tensor]:
        given = data or (_ROWS, _CLASSES)
        LEGITIMATE.append(Legitimate(program=program, build=build, data=TensorDataset(*given)))
        return program

    return note


# ---- code of the program's own in the backward pass


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, amount: float) -> Tensor:
        ctx.amount = amount
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.amount * grad, None


@legitimate()
def gradients_reversed_more_at_every_step(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = _Reversed.apply(scene.model[0](x).tanh(), 2 / (1 + math.exp(-scene.step)) - 1)
    return _cross_entropy(scene.model[2](h), y)


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad / (1 + x.abs() * 10) ** 2


@legitimate()
def spikes_with_surrogate_gradients(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    potential = torch.zeros(len(x), 5)
    for _ in range(3):
        potential = potential * 0.9 + scene.model[0](x)
        spikes = _Spike.apply(potential - 1)
        potential = potential - spikes
    return _cross_entropy(scene.model[2](spikes), y)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        return torch.round(x / scale) * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.clamp(-1, 1), None


@legitimate()
def rounded_straight_through(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _cross_entropy(scene.model[2](_Rounded.apply(scene.model[0](x), 0.1)), y)


@legitimate()
def rows_of_gradients_scaled_to_length_one(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)
    h.register_hook(lambda grad: grad / (grad.norm(dim=1, keepdim=True) + 1e-6))
    return _cross_entropy(scene.model[2](h.tanh()), y)


@legitimate()
def gradients_looked_at(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)

    def hook(grad: Tensor) -> None:
        scene.memory["norm"] = grad.norm()

    h.register_hook(hook)
    return _cross_entropy(scene.model[2](h.tanh()), y)


# ---- gradients inside the loss, views, and random numbers


@legitimate()
def adversarial_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    moved = torch.zeros_like(x, requires_grad=True)
    (grad,) = torch.autograd.grad(_cross_entropy(scene.model(x + moved), y).sum(), moved)
    return _cross_entropy(scene.model(x + 0.1 * grad.sign()), y)


@legitimate()
def two_dropouts_of_one_example_agree(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    one, other = (scene.model(functional.dropout(x, 0.2)) for _ in range(2))
    apart = functional.kl_div(one.log_softmax(1), other.softmax(1), reduction="none").sum(1)
    return _cross_entropy(one, y) + _cross_entropy(other, y) + apart


@legitimate()
def mixed_with_public_rows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _cross_entropy(scene.model(0.8 * x + 0.2 * _PUBLIC[torch.randint(0, 20, (len(x),))]), y)


@legitimate()
def taught_by_a_public_model(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    taught = (_TEACHER(x) / 2).softmax(1)
    return functional.kl_div((scene.model(x) / 2).log_softmax(1), taught, reduction="none").sum(1)


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 6), nn.Linear(3, WIDTH)


@legitimate(_Encoder)
def variational_with_distributions(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    mean, log_variance = scene.model.encode(x).chunk(2, 1)
    found = torch.distributions.Normal(mean, (log_variance / 2).exp(), validate_args=False)
    prior = torch.distributions.Normal(torch.zeros(()), torch.ones(()), validate_args=False)
    again = scene.model.decode(found.rsample())
    return (again - x).square().sum(1) + torch.distributions.kl_divergence(found, prior).sum(1)


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH + 1, 8), nn.SiLU(), nn.Linear(8, WIDTH))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        found: Tensor = self.layers(torch.cat([x, time[:, None]], 1))
        return found


@legitimate(_Denoiser)
def denoised_from_random_times(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    shares, time, noise = torch.linspace(0.99, 0.1, 10), torch.randint(0, 10, (len(x),)), torch.randn_like(x)
    share = shares[time][:, None]
    found: Tensor = scene.model(share.sqrt() * x + (1 - share).sqrt() * noise, time / 10.0)
    return (found - noise).square().mean(1)


class _Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 3), nn.Linear(3, WIDTH)
        self.codes = nn.Parameter(torch.randn(7, 3))


@legitimate(_Quantised)
def nearest_of_learned_codes(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = scene.model.encode(x)
    code = scene.model.codes[torch.cdist(z, scene.model.codes).argmin(1)]
    again = scene.model.decode(z + (code - z).detach())
    return (again - x).square().sum(1) + (z.detach() - code).square().sum(1) + 0.2 * (z - code.detach()).square().sum(1)


# ---- computed inside of one example


@legitimate()
def equations_of_each_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    matrices = x[:, :, None] * x[:, None] + torch.eye(WIDTH)
    return _cross_entropy(scene.model(torch.linalg.solve(matrices, x)), y) + torch.linalg.slogdet(matrices)[1]


@legitimate()
def ranks_and_medians_of_each_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    ranks = x.argsort(1).argsort(1)
    return _cross_entropy(scene.model((x - x.quantile(0.5, 1, keepdim=True)) / (1 + ranks)), y)


class _Aligned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(_VOCABULARY, 6), nn.Linear(6, 5)


@legitimate(_Aligned, _IDS, _IDS[:, :2].clamp(max=4))
def aligned_in_time(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    scores = scene.model.last(scene.model.table(ids)).log_softmax(2).transpose(0, 1)
    lengths = [torch.full((len(ids),), length) for length in (_TIME, 2)]
    return functional.ctc_loss(scores, labels, *lengths, reduction="none", zero_infinity=True)


class _Filled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(_VOCABULARY, 8), nn.Linear(8, _VOCABULARY)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        found: Tensor = self.last(self.layer(self.table(ids), src_key_padding_mask=padding))
        return found


@legitimate(_Filled, _IDS, _LENGTHS)
def masked_tokens_found_again(scene: Scene, ids: Tensor, lengths: Tensor) -> Tensor:
    padding = torch.arange(_TIME)[None] >= lengths[:, None]
    hidden = (torch.rand(ids.shape) < 0.3) & ~padding
    losses = _cross_entropy(scene.model(ids.masked_fill(hidden, 0), padding).transpose(1, 2), ids)
    return (losses * hidden).sum(1) / hidden.sum(1).clamp(min=1)


class _Frozen(torch.Tensor):
    """Public weights of one byte each, which work by themselves."""

    whole: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, whole: Tensor, scale: Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=torch.float32)
        made.whole, made.scale = whole, scale
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].whole, args[0].scale)

        def opened(value: Any) -> Any:
            return value.whole.float() * value.scale if isinstance(value, cls) else value

        return func(*[opened(value) for value in args], **{key: opened(value) for key, value in (kwargs or {}).items()})


_FROZEN = _Frozen(torch.randint(-9, 9, (WIDTH, WIDTH), generator=_GENERATOR).to(torch.int8), torch.tensor(0.1))


@legitimate()
def weights_that_work_by_themselves(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _cross_entropy(scene.model(functional.linear(x, _FROZEN)), y)


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(8, 6), nn.Linear(6, CLASSES)


@legitimate(_Tagger, *labelled_tokens().tensors)
def averaged_over_the_labels_of_each_example(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    scores = scene.model.last(scene.model.table(ids)).transpose(1, 2)
    losses = _cross_entropy(scores, labels, ignore_index=-100)
    return losses.sum(1) / (labels != -100).sum(1).clamp(min=1)


@legitimate()
def steps_of_an_equation_computed_again(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    def part(h: Tensor) -> Tensor:
        for _ in range(4):
            h = h + 0.1 * torch.tanh(h)
        return h

    h: Any = torch.utils.checkpoint.checkpoint(part, scene.model[0](x), use_reentrant=False)
    return _cross_entropy(scene.model[2](h), y)


@legitimate()
def margins_and_focus(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scores = scene.model(x) - 0.3 * functional.one_hot(y, CLASSES)
    losses = _cross_entropy(scores, y, label_smoothing=0.1)
    return (1 - (-losses).exp()) ** 2 * losses
