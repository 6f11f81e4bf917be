"""Losses and layouts that keep examples apart by masks, gathers and windows inside of each example."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.isolation.architecture import (
    CLASSES,
    Architecture,
    Batch,
    Build,
    Built,
    Loss,
    class_loss,
    images,
    per_example,
    token_loss,
    tokens,
)

_WIDTH, _HEADS, _TIME, _VOCABULARY = 8, 2, 16, 64


def _of_images(model: nn.Module, loss: Loss, shape: tuple[int, ...] = (3, 16, 16)) -> Built:
    return model, lambda num: images(num, shape), loss


def _convolutional(out: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.GELU(), nn.Flatten(), nn.LazyLinear(out))


def _initialised(model: nn.Module, *inputs: Tensor) -> nn.Module:
    model(*inputs)
    return model


def _focal() -> Built:
    model = _initialised(_convolutional(), torch.randn(2, 3, 16, 16))

    def loss(batch: Batch) -> Tensor:
        found = class_loss(model(batch["x"]), batch["y"])
        return (1 - (-found).exp()) ** 2 * found

    return _of_images(model, loss)


def _smoothed() -> Built:
    model = _initialised(_convolutional(), torch.randn(2, 3, 16, 16))
    return _of_images(
        model,
        lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none", label_smoothing=0.1),
    )


def _weighted_classes() -> Built:
    model = _initialised(_convolutional(), torch.randn(2, 3, 16, 16))
    weights = torch.linspace(0.5, 2.0, CLASSES)
    return _of_images(
        model, lambda batch: functional.cross_entropy(model(batch["x"]), batch["y"], weight=weights, reduction="none")
    )


def _many_labels() -> Built:
    model = _initialised(_convolutional(), torch.randn(2, 3, 16, 16))

    def loss(batch: Batch) -> Tensor:
        targets = functional.one_hot(batch["y"], CLASSES).float()
        return functional.binary_cross_entropy_with_logits(model(batch["x"]), targets, reduction="none").mean(1)

    return _of_images(model, loss)


def _distilled() -> Built:
    model = _initialised(_convolutional(), torch.randn(2, 3, 16, 16))
    teacher = _initialised(_convolutional(), torch.randn(2, 3, 16, 16)).requires_grad_(False)

    def loss(batch: Batch) -> Tensor:
        with torch.no_grad():
            wanted = (teacher(batch["x"]) / 2).softmax(1)
        return functional.kl_div((model(batch["x"]) / 2).log_softmax(1), wanted, reduction="none").sum(1)

    return _of_images(model, loss)


def _triplets() -> Built:
    """Anchor, positive and negative are parts of one record."""
    model = _initialised(_convolutional(6), torch.randn(2, 3, 16, 16))

    def loss(batch: Batch) -> Tensor:
        parts = model(batch["x"].flatten(0, 1)).view(len(batch["x"]), 3, -1)
        return functional.triplet_margin_loss(parts[:, 0], parts[:, 1], parts[:, 2], reduction="none")

    return model, lambda num: images(num, (3, 3, 16, 16)), loss


def _contrast_within() -> Built:
    """Tokens of one sequence are told from each other."""
    model = nn.Embedding(_VOCABULARY, _WIDTH)

    def loss(batch: Batch) -> Tensor:
        h = functional.normalize(model(batch["input_ids"]), dim=2)
        scores = (h @ h.mT).masked_fill(batch["attention_mask"][:, None] == 0, -1e9) / 0.1
        found = scores.log_softmax(2).diagonal(dim1=1, dim2=2) * batch["attention_mask"]
        return -found.sum(1) / batch["attention_mask"].sum(1)

    return model, tokens, loss


def _aligned() -> Built:
    """Connectionist temporal classification, with the length of each example."""
    model = nn.Sequential(nn.Embedding(_VOCABULARY, _WIDTH), nn.Linear(_WIDTH, CLASSES + 1))

    def loss(batch: Batch) -> Tensor:
        scores = model(batch["input_ids"]).log_softmax(2).transpose(0, 1)
        targets = batch["y"][:, None].expand(-1, 2) + 1
        lengths = torch.full((len(targets),), 2)
        return functional.ctc_loss(
            scores, targets, batch["attention_mask"].sum(1), lengths, reduction="none", zero_infinity=True
        )

    return model, tokens, loss


class _Experts(nn.Module):
    """A dense mixture of experts: every expert sees every example."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(_WIDTH, 3)
        self.experts = nn.ModuleList([nn.Linear(_WIDTH, _WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        found = torch.stack([expert(x) for expert in self.experts], -1)
        return (found * shares.unsqueeze(-2)).sum(-1)


def _rotated(x: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10000 ** (-torch.arange(half) / half)
    first, second = x.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


class _Attention(nn.Module):
    """Heads that share keys, with rotary positions, slopes or windows."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.queries = kind, nn.Linear(_WIDTH, _WIDTH)
        self.keys, self.values = nn.Linear(_WIDTH, _WIDTH // _HEADS), nn.Linear(_WIDTH, _WIDTH // _HEADS)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        queries = self.queries(x).unflatten(2, (_HEADS, -1)).transpose(1, 2)
        keys, values = (layer(x).unsqueeze(1).expand(-1, _HEADS, -1, -1) for layer in (self.keys, self.values))
        if self.kind == "rotary":
            queries, keys = _rotated(queries), _rotated(keys)
        scores = queries @ keys.mT
        places = torch.arange(x.shape[1])
        distances = (places[:, None] - places[None, :]).abs()
        if self.kind == "slopes":
            scores = scores - distances * torch.tensor([0.5, 0.25])[:, None, None]
        if self.kind == "windows":
            scores = scores.masked_fill(distances > 3, -1e9)
        scores = scores.masked_fill(mask[:, None, None] == 0, -1e9)
        found: Tensor = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
        return found


class _Language(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.table, self.attention = nn.Embedding(_VOCABULARY, _WIDTH), _Attention(kind)
        self.experts, self.head = _Experts(), nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.table(ids)
        x = x + self.attention(functional.rms_norm(x, (_WIDTH,)), mask)
        found: Tensor = self.head(x + self.experts(x))
        return found


def _language(kind: str) -> Build:
    def build() -> Built:
        model = _Language(kind)
        return (
            model,
            tokens,
            lambda batch: token_loss(model(batch["input_ids"], batch["attention_mask"]), batch["labels"]),
        )

    return build


def _cached() -> Built:
    """Keys of a prefix are joined to those of the rest, as a cache does."""
    model = nn.ModuleDict({"table": nn.Embedding(_VOCABULARY, _WIDTH), "head": nn.Linear(_WIDTH, CLASSES)})

    def loss(batch: Batch) -> Tensor:
        x = model["table"](batch["input_ids"])
        keys = torch.cat([x[:, :8], x[:, 8:]], 1)
        found = functional.scaled_dot_product_attention(x[:, 8:], keys, keys)
        return class_loss(model["head"](found[:, -1]), batch["y"])

    return model, tokens, loss


def _perceived() -> Built:
    """Learned queries look at the tokens of one example."""

    class Perceiver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries, self.table = nn.Parameter(torch.randn(4, _WIDTH)), nn.Embedding(_VOCABULARY, _WIDTH)
            self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
            self.head = nn.Linear(_WIDTH, CLASSES)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            x = self.table(ids)
            queries = self.queries.expand(len(ids), -1, -1)
            found, _ = self.attention(queries, x, x, key_padding_mask=mask == 0, need_weights=False)
            scores: Tensor = self.head(found.mean(1))
            return scores

    model = Perceiver()
    return model, tokens, lambda batch: class_loss(model(batch["input_ids"], batch["attention_mask"]), batch["y"])


def _gathered() -> Built:
    """Rows that a network points at inside each example, as deformable layers do."""
    model = nn.ModuleDict({"offsets": nn.Linear(_WIDTH, 1), "head": nn.Linear(_WIDTH, CLASSES)})

    def loss(batch: Batch) -> Tensor:
        x = batch["x"].flatten(2).mT[..., :_WIDTH].contiguous()
        offsets = model["offsets"](x).tanh() * 2
        places = (torch.arange(x.shape[1])[:, None] + offsets).clamp(0, x.shape[1] - 1)
        low = places.floor().long()
        share = places - low
        first = x.gather(1, low.expand_as(x))
        second = x.gather(1, (low + 1).clamp(max=x.shape[1] - 1).expand_as(x))
        return class_loss(model["head"]((first * (1 - share) + second * share).mean(1)), batch["y"])

    return model, lambda num: images(num, (_WIDTH, 4, 4)), loss


def _warped() -> Built:
    """A spatial transformer: each image is read at places of its own."""
    model = nn.ModuleDict(
        {"pose": _initialised(_convolutional(6), torch.randn(2, 3, 16, 16)), "head": nn.Linear(3 * 64, CLASSES)}
    )

    def loss(batch: Batch) -> Tensor:
        grid = functional.affine_grid(
            model["pose"](batch["x"]).view(-1, 2, 3), (len(batch["x"]), 3, 8, 8), align_corners=False
        )
        return class_loss(
            model["head"](functional.grid_sample(batch["x"], grid, align_corners=False).flatten(1)), batch["y"]
        )

    return _of_images(model, loss)


def _volumes() -> Built:
    model = nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4, affine=True), nn.ReLU(), nn.MaxPool3d(2),
        nn.ConvTranspose3d(4, 2, 2, 2), nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip
    return model, lambda num: images(num, (1, 4, 8, 8)), lambda batch: class_loss(model(batch["x"]), batch["y"])


def _normed_weights() -> Built:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(48, _WIDTH)), nn.Tanh(), parametrizations.orthogonal(nn.Linear(8, 8)),
        nn.Linear(_WIDTH, CLASSES),
    )  # fmt: skip
    return model, lambda num: images(num, (48,)), lambda batch: class_loss(model(batch["x"]), batch["y"])


def _reconstructed() -> Built:
    """A masked autoencoder: the same patches are hidden in no two examples."""
    model = nn.Sequential(nn.Linear(12, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, 12))

    def loss(batch: Batch) -> Tensor:
        patches = functional.unfold(batch["x"], 2, stride=2).mT
        hidden = torch.rand(patches.shape[:2]).argsort(1) < 16
        found = model(patches.masked_fill(hidden.unsqueeze(2), 0.0))
        return ((found - patches).square().mean(2) * hidden).sum(1) / 16

    return _of_images(model, loss)


def _survival() -> Built:
    """Discrete hazards with censoring, each example by itself."""
    model = nn.Sequential(nn.Linear(12, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, CLASSES))

    def loss(batch: Batch) -> Tensor:
        hazards = functional.logsigmoid(model(batch["x"]))
        survived = functional.logsigmoid(-model(batch["x"])).cumsum(1)
        found: Tensor = (hazards + survived).gather(1, batch["y"][:, None]).squeeze(1)
        return -found

    return model, lambda num: images(num, (12,)), loss


def _quantiles() -> Built:
    model = nn.Sequential(nn.Linear(12, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, 3))
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss(batch: Batch) -> Tensor:
        missed = batch["y"][:, None].float() - model(batch["x"])
        return per_example(torch.maximum(levels * missed, (levels - 1) * missed))

    return model, lambda num: images(num, (12,)), loss


_ROWS: dict[str, Build] = {
    "focal loss": _focal, "label smoothing": _smoothed, "weights of classes": _weighted_classes,
    "many labels": _many_labels, "distillation": _distilled, "triplets within a record": _triplets,
    "contrast within a sequence": _contrast_within, "alignment by CTC": _aligned,
    "grouped queries, rotary": _language("rotary"), "grouped queries, slopes": _language("slopes"),
    "grouped queries, windows, dense experts": _language("windows"), "joined keys": _cached,
    "learned queries": _perceived, "gathered within an example": _gathered, "spatial transformer": _warped,
    "volumes": _volumes, "normed weights": _normed_weights, "masked autoencoder": _reconstructed,
    "hazards": _survival, "quantiles": _quantiles,
}  # fmt: skip
LOSSES = tuple(Architecture(name=name, build=build) for name, build in _ROWS.items())
