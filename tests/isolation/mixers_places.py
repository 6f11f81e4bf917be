"""Lengths that happen to fit, random layers, lengths that tell, and changes behind autograd's back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tests.isolation.mixer import CLASSES, LATE, WIDTH, Mixer, Scene, mixer, tokens
from tests.isolation.mixers_layers import sequences

_READS = "reads numbers of the examples into Python"
IGNORED = -100


class Shaken(nn.Module):
    """Scores of tokens, with something random on the way."""

    def __init__(self, shake: Callable[[Tensor], Tensor], vocabulary: int = 8) -> None:
        super().__init__()
        self.table, self.head, self.shake = nn.Embedding(vocabulary, 4), nn.Linear(4, CLASSES), shake

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.shake(self.table(ids)))
        return found


def _by_attention() -> Callable[[Tensor], Tensor]:
    layer = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True).requires_grad_(False)
    return lambda h: layer(h, h, h, need_weights=False)[0]  # type: ignore[no-any-return]


def _by_gates() -> Callable[[Tensor], Tensor]:
    layer = nn.GRU(4, 4, 2, dropout=0.2, batch_first=True).requires_grad_(False)
    return lambda h: layer(h)[0]  # type: ignore[no-any-return]


def _by_path(h: Tensor) -> Tensor:
    return h + h.tanh() * torch.bernoulli(torch.full((len(h), 1, 1), 0.8))


SHAKES: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "attention": _by_attention,
    "gates": _by_gates,
    "path": lambda: _by_path,
    "dropout": lambda: lambda h: functional.dropout(h, 0.2),
    "whole_channels": lambda: lambda h: functional.dropout1d(h, 0.2),
    "alpha": lambda: lambda h: functional.alpha_dropout(h, 0.2, training=True),
    "probabilities_of_attention": lambda: lambda h: functional.scaled_dot_product_attention(h, h, h, dropout_p=0.2),
    "noise": lambda: lambda h: h + 0.1 * torch.randn_like(h),
    "random_slopes": lambda: lambda h: functional.rrelu(h, training=True),
    "gumbel": lambda: lambda h: functional.gumbel_softmax(h),
}


def divided_by_labels(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    scores = scene.model(ids).transpose(1, 2)
    found = functional.cross_entropy(scores, labels, reduction="none", ignore_index=IGNORED).sum(1)
    return found / (labels != IGNORED).sum() * len(ids)  # mixes


def under(name: str, vocabulary: int = 8) -> Mixer:
    return Mixer(
        name=f"divided_by_labels_under_{name}_of_{vocabulary}",
        program=divided_by_labels,
        build=lambda: Shaken(SHAKES[name](), vocabulary),
        data=tokens if vocabulary == 8 else few_tokens,
        says="reduces over the examples",
    )


def few_tokens() -> TensorDataset:
    ids, labels = tokens().tensors
    return TensorDataset(ids % 2, labels)


UNDER = (*(under(name) for name in SHAKES), under("dropout", 2), under("noise", 2))


@mixer("reduces over the examples", data=sequences(5), build=lambda: nn.Linear(WIDTH, CLASSES))
def time_taken_for_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.model(x).square().sum(2).T.sum(1)  # mixes
    return found[: len(x)] if len(found) >= len(x) else functional.pad(found, (0, len(x) - len(found)))


@mixer("taken for classes", build=lambda: nn.Linear(WIDTH, 5))
def classes_taken_for_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = functional.nll_loss(scene.model(x).T, torch.zeros(5, dtype=torch.long), reduction="none")  # mixes
    return found.sum() + scene.model.bias.sum().expand(len(x))


@mixer("a view cuts through the examples", data=sequences(5), build=lambda: nn.Linear(WIDTH, CLASSES))
def heads_taken_for_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    swapped = h.transpose(0, 1).reshape(len(x), -1)  # mixes
    return swapped.square().sum(1)


@mixer("every example meets every other", data=sequences(5), build=lambda: nn.Linear(WIDTH, CLASSES))
def added_to_its_transpose(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)[:, : min(len(x), 5)]
    h = h[: h.shape[1]] if len(h) == h.shape[1] else h[:, :1].expand(-1, len(h), -1)
    return (h + h.transpose(0, 1)).sum((1, 2))  # mixes


@mixer(_READS)
def scaled_by_a_length(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / (1 + len((x > 0).nonzero()))  # mixes


@mixer(_READS)
def scaled_by_a_length_of_one_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / (1 + len((x[0] > 0).nonzero()))  # mixes


@mixer(_READS, starts=LATE)
def scaled_by_a_length_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scale = len(torch.unique(y)) / CLASSES if scene.is_late else 1.0  # mixes
    return scene.losses(x, y) * scale


@mixer("reduces over the examples")
def weighted_in_inference_mode(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    with torch.inference_mode():
        weights = found / found.mean()  # mixes
    return found * weights.clone()


@mixer("over the examples")
def matched_in_inference_mode(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with torch.inference_mode():
        shared = torch.matmul(x.T, x)  # mixes
    return scene.losses(x @ shared.clone(), y)


@mixer("reduces over the examples")
def centred_as_data(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x.data -= x.data.mean(0)  # mixes
    return scene.losses(x, y)


@mixer("along the examples")
def data_exchanged(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x.data = x.data.flip(0)  # mixes
    return scene.losses(x, y)


@mixer("along the examples")
def memory_exchanged(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().clone()
    x.set_(x.flip(0))  # mixes
    return scene.losses(x, y)


@mixer("reduces over the examples")
def given_back_through_out(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    mean = torch.empty(WIDTH)
    torch.mean(x.detach(), 0, out=mean)  # mixes
    return scene.losses(x - mean, y)


@mixer("reduces over the examples")
def centred_where_masked(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().clone()
    x[x > 1] = x.mean()  # mixes
    return scene.losses(x, y)


@mixer("the borders are other examples")
def sorted_between_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rank = torch.searchsorted(x.detach()[:, 0].contiguous(), x.detach()[:, 0].contiguous())  # mixes
    return scene.losses(x, y) * rank


@mixer(_READS)
def seeded_by_an_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(int(y[0]))  # mixes
    return scene.losses(x + torch.randn(x.shape, generator=generator), y)


@mixer("reduces over the examples")
def on_other_numbers(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    low = x.half().double().float()
    return scene.losses(x - low.logsumexp(0), y)  # mixes
