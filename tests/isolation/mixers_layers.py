"""Layers that let examples meet: normalisation over the batch, attention over it, shapes that cut through examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.isolation.mixer import CLASSES, LATE, NUM_EXAMPLES, WIDTH, Scene, mixer


class Normalised(nn.Module):
    """A layer of one's own that normalises by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        h = functional.batch_norm(self.first(x), None, None, self.scale, None, True)  # mixes
        found: Tensor = self.last(h)
        return found


@mixer("mean and deviation of the batch", build=Normalised, within=(Normalised,))
def batch_norm_with_a_scale(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


@mixer("mean and deviation of the batch", starts=LATE)
def batch_norm_with_averages_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    mean, var = torch.zeros(WIDTH), torch.ones(WIDTH)
    return scene.losses(functional.batch_norm(x, mean, var, training=scene.is_late), y)  # mixes


@mixer("mean and deviation of the batch")
def batch_norm_by_function(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = functional.batch_norm(scene.model(x), None, None, training=True)  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("mean and deviation of the batch")
def instance_norm_of_one_instance(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = functional.instance_norm(scene.model(x).T.unsqueeze(0)).squeeze(0).T  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("normalises over the examples")
def layer_norm_over_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x).T
    h = functional.layer_norm(h, (len(x),)).T  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("normalises over the examples")
def group_norm_over_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x).T.unsqueeze(0)
    h = functional.group_norm(h, 1).squeeze(0).T  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("reduces over the examples")
def batch_norm_by_hand(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    var, mean = torch.var_mean(h, 0)  # mixes
    return functional.cross_entropy((h - mean) / (var + 1e-3).sqrt(), y, reduction="none")


@mixer("reduces over the examples")
def centred(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x - x.mean(0), y)  # mixes


@mixer("reduces over the examples")
def centred_in_whole_numbers(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    whole = (x * 8).long()
    return scene.losses((whole - whole.sum(0)).float(), y)  # mixes


@mixer("reduces over the examples")
def scaled_to_the_largest(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x / x.abs().amax(), y)  # mixes


@mixer("reduces over the examples")
def scaled_by_the_norm_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x / torch.linalg.matrix_norm(x), y)  # mixes


@mixer("runs along the examples")
def normalised_columns(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(scene.model(x).softmax(0), y, reduction="none")  # mixes


@mixer("cuts through the examples")
def statistics_of_groups(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    groups = x.view(1, 2 * WIDTH, -1) if len(x) % 2 == 0 else x.reshape(WIDTH, len(x))  # mixes
    return scene.losses((groups - groups.mean(-1, keepdim=True)).reshape(x.shape), y)


@mixer("cuts through the examples")
def transposed_by_reshape(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x.reshape(WIDTH, len(x)).T, y)  # mixes


@mixer("products of examples")
def attention_over_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x).unsqueeze(0)
    h = functional.scaled_dot_product_attention(h, h, h).squeeze(0)  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("products of examples")
def attention_by_hand(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    weights = (h @ h.mT).softmax(1)  # mixes
    return functional.cross_entropy(weights @ h, y, reduction="none")


class SwappedAttention(nn.Module):
    """Attention whose layer expects time first and gets examples first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.MultiheadAttention(WIDTH, 2), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x, x, x, need_weights=False)[0]  # mixes
        found: Tensor = self.head(h.mean(1))
        return found


class SwappedRecurrence(nn.Module):
    """A recurrent layer that expects time first and gets examples first."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.layer, self.head = kind(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)[0]  # mixes
        found: Tensor = self.head(h[:, -1])
        return found


def sequences(time: int) -> Callable[[], TensorDataset]:
    def make() -> TensorDataset:
        generator = torch.Generator().manual_seed(3)
        rows = torch.randn(NUM_EXAMPLES, time, WIDTH, generator=generator)
        return TensorDataset(rows, torch.arange(NUM_EXAMPLES) % CLASSES)

    return make


@mixer("mixes", build=SwappedAttention, data=sequences(NUM_EXAMPLES), within=(SwappedAttention,))
def attention_with_axes_swapped(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


@mixer("mixes", build=SwappedAttention, data=sequences(5), within=(SwappedAttention,))
def attention_with_axes_swapped_and_as_many_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


@mixer("mixes", build=SwappedRecurrence, data=sequences(5), within=(SwappedRecurrence,))
def recurrence_with_axes_swapped(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


@mixer("mixes", build=lambda: SwappedRecurrence(nn.GRU), data=sequences(3), within=(SwappedRecurrence,))
def gated_recurrence_with_axes_swapped(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


@mixer("mixes", build=lambda: SwappedRecurrence(nn.RNN), data=sequences(8), within=(SwappedRecurrence,))
def plain_recurrence_with_axes_swapped(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y)


@mixer("mixes")
def recurrence_through_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h, found = torch.zeros(WIDTH), []
    for row in x:
        h = (h + row).tanh()  # mixes
        found.append(h)
    return scene.losses(torch.stack(found), y)


@mixer("runs along the examples")
def convolution_over_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x).T.unsqueeze(0)
    h = functional.conv1d(h, torch.ones(CLASSES, CLASSES, 3), padding=1).squeeze(0).T  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("sums over channels of several examples")
def convolution_of_examples_as_channels(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x).unsqueeze(0)
    h = functional.conv1d(h, torch.ones(len(x), len(x), 1)).squeeze(0)  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("across the axis of the examples")
def pooled_over_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = functional.max_pool1d(scene.model(x).T, 3, stride=1, padding=1).T  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("windows hold several examples")
def windows_over_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    h = h.repeat(2, 1).unfold(0, 2, 1).sum(2)[: len(x)]  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("memory is read across examples")
def windows_of_memory(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = x.contiguous().as_strided((len(x), WIDTH), (WIDTH - 1, 1))  # mixes
    return scene.losses(h, y)


@mixer("sums over the examples")
def product_with_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = torch.ones(len(x), len(x)) @ scene.model(x)  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("runs along the examples")
def fourier_over_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = torch.fft.fft(scene.model(x), dim=0).real  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("reduces over the examples")
def phases_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    phases = torch.polar(torch.ones_like(x), x)
    shared = phases.mean(0).angle()  # mixes
    return scene.losses(x + shared, y)


@mixer("at different places are joined")
def blended_with_a_neighbour(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    other = torch.cat([x[1:], x[:1]])  # mixes
    return scene.losses(0.8 * x + 0.2 * other, y)


@mixer("picked by a fixed number")
def blended_at_random(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    order = torch.randperm(len(x))
    return scene.losses(0.8 * x + 0.2 * x[order], y)  # mixes


@mixer("runs along the examples")
def patches_of_a_neighbour(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x[:, :2] = x.flip(0)[:, :2]  # mixes
    return scene.losses(x, y)


@mixer("reduces over the examples")
def imputed_by_the_mean(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(torch.where(x > 0, x, x.mean()), y)  # mixes


@mixer("reduces over the examples")
def half_precision(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = scene.model(x)
        h = h - h.mean(0)  # mixes
    return functional.cross_entropy(h.float(), y, reduction="none")


@mixer("reduces over the examples")
def mapped_by_vmap(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = torch.func.vmap(lambda column: column - column.mean(), in_dims=1, out_dims=1)(x)  # mixes
    return scene.losses(x, y)


@mixer("over the examples")
def examples_taken_for_features(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = functional.linear(scene.model(x).T, torch.ones(len(x), len(x))).T  # mixes
    return functional.cross_entropy(h, y, reduction="none")


@mixer("examples are added to the batch")
def padded_with_rows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = functional.pad(x, (0, 0, 1, 0))[:-1]  # mixes
    return scene.losses(x, y)


@mixer("its place in the batch")
def weighted_by_a_triangle(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x.tril(), y)  # mixes


@mixer("some examples are overwritten")
def first_example_overwritten(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x[torch.tensor([0])] = 0.0  # mixes
    return scene.losses(x, y)
