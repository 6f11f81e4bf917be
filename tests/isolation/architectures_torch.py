"""Architectures made of torch's own layers, and those of privet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from privet.models.adapters import add_adapters
from privet.models.named_models import MODELS
from tests.isolation.architecture import (
    CLASSES,
    Architecture,
    Batch,
    Build,
    Built,
    class_loss,
    images,
    padded,
    per_example,
    token_loss,
    tokens,
)


def _classifier(model: nn.Module, shape: tuple[int, ...]) -> Built:
    return model, lambda num: images(num, shape), lambda batch: class_loss(model(batch["x"]), batch["y"])


def _catalogue(name: str) -> Build:
    def build() -> Built:
        spec = MODELS[name]
        model = spec.build(spec.input_shape, max(spec.num_classes, CLASSES))
        return _classifier(model, tuple(spec.input_shape))

    return build


def _layers(shape: tuple[int, ...], *layers: Callable[[], nn.Module]) -> Build:
    """Layers one after another, then a classifier of everything that is left."""

    def build() -> Built:
        body = nn.Sequential(*(layer() for layer in layers), nn.Flatten())
        width = body(torch.randn(2, *shape)).shape[1]
        return _classifier(nn.Sequential(body, nn.Linear(width, CLASSES)), shape)

    return build


class _Residual(nn.Module):
    """x + f(x), with a convolution where the widths differ."""

    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.shortcut = inner, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.inner(x))


def _resnet() -> nn.Module:
    def block(channels: int, out: int, stride: int) -> nn.Module:
        inner = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.GroupNorm(4, out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.GroupNorm(4, out),
        )
        return _Residual(inner, None if channels == out and stride == 1 else nn.Conv2d(channels, out, 1, stride))

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(4, 8), nn.ReLU(), block(8, 8, 1), block(8, 16, 2), block(16, 16, 1),
        nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip


class _Dense(nn.Module):
    """A block of DenseNet: every layer sees all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4 + 4 * number, 4, 3, padding=1) for number in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, nn.functional.dropout(torch.relu(layer(x)), 0.1, self.training)], 1)
        return x


class _Inverted(nn.Module):
    """A block of MobileNet and EfficientNet: depthwise, with squeeze and excitation and dropped paths."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = channels * 4
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1), nn.GroupNorm(4, wide), nn.SiLU(inplace=True))
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide), nn.GroupNorm(4, wide), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 4, 1), nn.SiLU(), nn.Conv2d(4, wide, 1))
        self.project = nn.Conv2d(wide, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.depthwise(self.expand(x))
        h = self.project(h * torch.sigmoid(self.squeeze(h)))
        kept = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(0.8)
        return x + h * kept / 0.8


class _Shuffle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        num, channels, height, width = x.shape
        return x.view(num, 2, channels // 2, height, width).transpose(1, 2).reshape(num, channels, height, width)


class _UNet(nn.Module):
    """Down, up again, and what was on the way beside."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, 2)
        self.middle, self.last = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 3, 1)
        self.norm = nn.InstanceNorm2d(16, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        side = torch.relu(self.down(x))
        deep = torch.relu(self.norm(self.middle(nn.functional.max_pool2d(side, 2))))
        return self.last(torch.cat([side, self.up(deep)], 1))


def _segmentation(model: Callable[[], nn.Module]) -> Build:
    def build() -> Built:
        net = model().train()

        def make(num: int) -> Batch:
            return {"x": torch.randn(num, 3, 16, 16), "y": torch.randint(0, 3, (num, 16, 16))}

        def loss(batch: Batch) -> Tensor:
            return per_example(nn.functional.cross_entropy(net(batch["x"]), batch["y"], reduction="none"))

        return net, make, loss

    return build


class _Recurrent(nn.Module):
    """An embedding, a recurrent network, and the state at the end of every sequence."""

    def __init__(self, kind: Callable[..., nn.Module], *, both: bool = False, first: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 12, padding_idx=1)
        self.network = kind(12, 10, num_layers=2, dropout=0.1, bidirectional=both, batch_first=first)
        self.first = first
        self.head = nn.Linear(20 if both else 10, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        states, _ = self.network(x if self.first else x.transpose(0, 1))
        states = states if self.first else states.transpose(0, 1)
        weights = mask[:, :, None].to(states.dtype)
        return self.head((states * weights).sum(1) / weights.sum(1))


class _Cells(nn.Module):
    """A recurrent cell in a loop over time."""

    def __init__(self, cell: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(64, 12), cell(12, 10), nn.Linear(10, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x, state, found = self.embed(ids), None, []
        for time in range(ids.shape[1]):
            state = self.cell(x[:, time], state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return self.head(torch.stack(found, 1).mul(mask[:, :, None]).sum(1))


class _Encoder(nn.Module):
    """torch's transformer with padding."""

    def __init__(self, *, norm_first: bool, batch_first: bool = True) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(64, 16), nn.Embedding(32, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=batch_first, norm_first=norm_first)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.batch_first = nn.Linear(16, CLASSES), batch_first

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        if self.batch_first:
            return self.head(self.body(x, src_key_padding_mask=mask == 0)[:, 0])
        return self.head(self.body(x.transpose(0, 1), src_key_padding_mask=mask == 0)[0])


def _sequences(model: Callable[[], nn.Module]) -> Build:
    def build() -> Built:
        net = model().train()
        return net, tokens, lambda batch: class_loss(net(batch["input_ids"], batch["attention_mask"]), batch["y"])

    return build


class _Translation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.body = nn.Transformer(16, 2, 1, 1, 32, 0.1, batch_first=True)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x, hidden = self.embed(ids), torch.where(mask == 0, float("-inf"), 0.0)
        return self.head(self.body(x, x, tgt_mask=causal, src_key_padding_mask=hidden, tgt_key_padding_mask=hidden))


class _CausalConvolutions(nn.Module):
    """WaveNet's gated, dilated convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 8), nn.Conv1d(8, 64, 1)
        self.layers = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**number) for number in range(3))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        for number, layer in enumerate(self.layers):
            filtered, gate = layer(nn.functional.pad(x, (2**number, 0))).chunk(2, 1)
            x = x + torch.tanh(filtered) * torch.sigmoid(gate)
        return self.head(x).transpose(1, 2)


def _language(model: Callable[[], nn.Module]) -> Build:
    def build() -> Built:
        net = model().train()
        return net, tokens, lambda batch: token_loss(net(batch["input_ids"], batch["attention_mask"]), batch["labels"])

    return build


class _Mixer(nn.Module):
    """MLP-Mixer: over places, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.places, self.channels = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = h + nn.functional.gelu(self.places(self.norm(h).transpose(1, 2))).transpose(1, 2)
        return (h + nn.functional.gelu(self.channels(self.norm(h)))).mean(1)


class _PointNet(nn.Module):
    """A network on sets of points: the same for each, then the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Sequential(nn.Linear(3, 16), nn.LayerNorm(16), nn.ReLU()), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(x).max(1).values)


def _variational() -> Built:
    encoder, decoder = nn.Linear(20, 8), nn.Linear(4, 20)
    model = nn.ModuleList([encoder, decoder]).train()

    def loss(batch: Batch) -> Tensor:
        mean, scale = encoder(batch["x"]).chunk(2, 1)
        code = mean + torch.exp(scale / 2) * torch.randn_like(mean)
        likeness = nn.functional.mse_loss(decoder(code), batch["x"], reduction="none").sum(1)
        return likeness - 0.5 * (1 + scale - mean**2 - scale.exp()).sum(1)

    return model, lambda num: {"x": torch.randn(num, 20)}, loss


def _table() -> Built:
    """Numbers and kinds in one row, as in wide and deep networks and factorisation machines."""
    kinds, numbers = nn.ModuleList(nn.Embedding(9, 4) for _ in range(3)), nn.Linear(5, 4)
    deep = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    model = nn.ModuleList([kinds, numbers, deep]).train()

    def make(num: int) -> Batch:
        return {"k": torch.randint(0, 9, (num, 3)), "n": torch.randn(num, 5), "y": torch.rand(num).round()}

    def loss(batch: Batch) -> Tensor:
        rows = torch.stack([*(kind(batch["k"][:, place]) for place, kind in enumerate(kinds)), numbers(batch["n"])], 1)
        pairs = (rows.sum(1) ** 2 - (rows**2).sum(1)).sum(1) / 2
        return nn.functional.binary_cross_entropy_with_logits(
            deep(rows.flatten(1)).squeeze(1) + pairs, batch["y"], reduction="none"
        )

    return model, make, loss


def _bags() -> Built:
    bag, head = nn.EmbeddingBag(64, 8, mode="mean", padding_idx=1), nn.Linear(8, CLASSES)
    model = nn.ModuleList([bag, head]).train()
    return model, tokens, lambda batch: class_loss(head(bag(batch["input_ids"])), batch["y"])


def _pairs() -> Built:
    """Two towers for the two halves of an example."""
    tower, joint = nn.Linear(6, 8), nn.Bilinear(8, 8, 3)
    model = nn.ModuleList([tower, joint]).train()

    def make(num: int) -> Batch:
        return {"a": torch.randn(num, 6), "b": torch.randn(num, 6), "y": torch.randint(0, 3, (num,))}

    def loss(batch: Batch) -> Tensor:
        one, other = tower(batch["a"]), tower(batch["b"])
        alike = nn.functional.cosine_similarity(one, other)
        return class_loss(joint(one, other), batch["y"]) + (1 - alike)

    return model, make, loss


def _speech() -> Built:
    """Convolutions, a recurrent network and the CTC loss."""
    front, body, head = nn.Conv1d(4, 8, 3, 2, 1), nn.GRU(8, 8, bidirectional=True, batch_first=True), nn.Linear(16, 7)
    model = nn.ModuleList([front, body, head]).train()

    def make(num: int) -> Batch:
        return {
            "x": torch.randn(num, 4, 32),
            "y": torch.randint(1, 7, (num, 5)),
            "lengths": padded(num, 16, 11).sum(1),
            "targets": padded(num, 5).sum(1),
        }

    def loss(batch: Batch) -> Tensor:
        scores = head(body(front(batch["x"]).transpose(1, 2))[0]).log_softmax(2).transpose(0, 1)
        return nn.functional.ctc_loss(
            scores, batch["y"], batch["lengths"], batch["targets"], reduction="none", zero_infinity=True
        )

    return model, make, loss


def _adapted() -> Built:
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    add_adapters(model, rank=2)
    return _classifier(model, (12,))


def _squash(shape: tuple[int, ...], norm: Callable[[], nn.Module]) -> Build:
    return _layers(shape, lambda: nn.Conv2d(3, 8, 3), norm, nn.ReLU, lambda: nn.Dropout2d(0.1), lambda: nn.AvgPool2d(2))


_IMAGE = (3, 32, 32)
_ROWS: dict[str, Build] = {
    **{f"privet {name}": _catalogue(name) for name in MODELS if name != "minilm_lora"},
    "privet adapters on linear layers": _adapted,
    "AlexNet (small)": _layers(
        _IMAGE, lambda: nn.Conv2d(3, 8, 5, 2), lambda: nn.ReLU(inplace=True), lambda: nn.LocalResponseNorm(3),
        lambda: nn.MaxPool2d(3, 2), lambda: nn.Conv2d(8, 8, 3, groups=2), nn.Dropout,
    ),
    "VGG (small)": _layers(
        _IMAGE, lambda: nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU, lambda: nn.MaxPool2d(2), lambda: nn.AdaptiveAvgPool2d(7)
    ),
    "ResNet with group normalisation": _layers(_IMAGE, _resnet),
    "DenseNet block": _layers(_IMAGE, lambda: nn.Conv2d(3, 4, 3), _Dense, lambda: nn.AvgPool2d(4)),
    "MobileNet, EfficientNet block": _layers(_IMAGE, lambda: nn.Conv2d(3, 8, 3, 2), lambda: _Inverted(8)),
    "ShuffleNet block": _layers(_IMAGE, lambda: nn.Conv2d(3, 8, 3, 2), _Shuffle, lambda: nn.Conv2d(8, 8, 3, groups=2)),
    "frozen batch normalisation": _squash(_IMAGE, lambda: nn.BatchNorm2d(8).eval().requires_grad_(requires_grad=False)),
    "instance normalisation": _squash(_IMAGE, lambda: nn.InstanceNorm2d(8, affine=True)),
    "convolution 1d": _layers((4, 32), lambda: nn.Conv1d(4, 8, 3), nn.GELU, lambda: nn.AdaptiveMaxPool1d(4)),
    "convolution 3d": _layers((2, 8, 8, 8), lambda: nn.Conv3d(2, 4, 3), nn.PReLU, lambda: nn.MaxPool3d(2)),
    "super resolution": _segmentation(
        lambda: nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1, padding_mode="reflect"), nn.PixelShuffle(2))
    ),
    "U-Net": _segmentation(_UNet),
    "resized by interpolation": _segmentation(
        lambda: nn.Sequential(nn.Conv2d(3, 3, 3, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear"))
    ),
    "MLP-Mixer": _layers(_IMAGE, _Mixer),
    "PointNet": lambda: _classifier(_PointNet(), (10, 3)),
    "variational autoencoder": _variational,
    "wide and deep, factorisation machine": _table,
    "embedding bag": _bags,
    "two towers and a bilinear form": _pairs,
    "speech: convolution, GRU, CTC": _speech,
    "LSTM": _sequences(lambda: _Recurrent(nn.LSTM)),
    "LSTM, both directions": _sequences(lambda: _Recurrent(nn.LSTM, both=True)),
    "LSTM, time first": _sequences(lambda: _Recurrent(nn.LSTM, first=False)),
    "GRU": _sequences(lambda: _Recurrent(nn.GRU)),
    "GRU, both directions": _sequences(lambda: _Recurrent(nn.GRU, both=True)),
    "Elman network": _sequences(lambda: _Recurrent(nn.RNN)),
    "LSTM cell": _sequences(lambda: _Cells(nn.LSTMCell)),
    "GRU cell": _sequences(lambda: _Cells(nn.GRUCell)),
    "Elman cell": _sequences(lambda: _Cells(nn.RNNCell)),
    "torch transformer encoder": _sequences(lambda: _Encoder(norm_first=False)),
    "torch transformer encoder, norm first": _sequences(lambda: _Encoder(norm_first=True)),
    "torch transformer encoder, time first": _sequences(lambda: _Encoder(norm_first=False, batch_first=False)),
    "torch transformer, encoder and decoder": _language(_Translation),
    "WaveNet": _language(_CausalConvolutions),
}  # fmt: skip

TORCH = tuple(Architecture(name=name, build=build) for name, build in _ROWS.items())
