"""The networks of the benchmark that are not in ``privet.models``: plain modules, default initialisation.

Position embeddings use ``nn.Embedding`` with one row of ids per example: the only form for which every library computes
per-example gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_NORM_GROUPS = 16


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(_NORM_GROUPS, channels), channels)


def _conv(channels: int, width: int, *, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)


def _stages(block: type[nn.Module], channels: int, widths: Sequence[int], blocks_per_stage: int) -> nn.Sequential:
    """Stack residual blocks; every stage but the first halves the image."""
    blocks: list[nn.Module] = []
    for stage, width in enumerate(widths):
        for place in range(blocks_per_stage):
            blocks.append(block(channels, width, 2 if stage > 0 and place == 0 else 1))
            channels = width
    return nn.Sequential(*blocks)


class BasicBlock(nn.Module):
    """Residual block of He et al. (2016a) with group norm and in-place ReLU."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(channels, width, kernel=3, stride=stride),
            _norm(width),
            nn.ReLU(inplace=True),
            _conv(width, width, kernel=3, stride=1),
            _norm(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(_conv(channels, width, kernel=1, stride=stride), _norm(width))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """Add the transformed images to the shortcut."""
        return self.activation(self.body(images) + self.shortcut(images))  # type: ignore[no-any-return]


class PreActivationBlock(nn.Module):
    """Residual block of He et al. (2016b), as in wide residual networks, with group norm."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first_norm = _norm(channels)
        self.first = _conv(channels, width, kernel=3, stride=stride)
        self.second_norm = _norm(width)
        self.second = _conv(width, width, kernel=3, stride=1)
        changes_shape = stride != 1 or channels != width
        self.shortcut = _conv(channels, width, kernel=1, stride=stride) if changes_shape else None

    def forward(self, images: Tensor) -> Tensor:
        """Normalise and activate before each convolution."""
        active = functional.relu(self.first_norm(images))
        kept = images if self.shortcut is None else self.shortcut(active)
        return self.second(functional.relu(self.second_norm(self.first(active)))) + kept  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """ResNet-18 for small images: 3x3 stem, no first pool. 11.17M parameters at width 64."""

    def __init__(self, *, width: int = 64, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, width, kernel=3, stride=1), _norm(width), nn.ReLU(inplace=True))
        self.blocks = _stages(BasicBlock, width, [width, 2 * width, 4 * width, 8 * width], blocks_per_stage=2)
        self.head = nn.Linear(8 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify by the mean over positions."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """Bottleneck block of He et al. (2016a) with group norm: four times as wide outside as inside."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        inner = width // 4
        self.body = nn.Sequential(
            _conv(channels, inner, kernel=1, stride=1),
            _norm(inner),
            nn.ReLU(inplace=True),
            _conv(inner, inner, kernel=3, stride=stride),
            _norm(inner),
            nn.ReLU(inplace=True),
            _conv(inner, width, kernel=1, stride=1),
            _norm(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(_conv(channels, width, kernel=1, stride=stride), _norm(width))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """Add the transformed images to the shortcut."""
        return self.activation(self.body(images) + self.shortcut(images))  # type: ignore[no-any-return]


class ResNet50(nn.Module):
    """ResNet-50 for photographs: 7x7 stem and pool, stages of 3, 4, 6 and 3 bottlenecks. 25.6M parameters."""

    def __init__(self, *, width: int = 64, num_classes: int = 1_000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv(3, width, kernel=7, stride=2), _norm(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage, num_blocks in enumerate((3, 4, 6, 3)):
            wide = 4 * width * 2**stage
            for place in range(num_blocks):
                blocks.append(Bottleneck(channels, wide, 2 if stage > 0 and place == 0 else 1))
                channels = wide
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify by the mean over positions."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))  # type: ignore[no-any-return]


class WideResNet16(nn.Module):
    """WRN-16 (Zagoruyko and Komodakis 2016) with group norm. 2.75M parameters at widening 4."""

    def __init__(self, *, widening: int = 4, base: int = 16, num_classes: int = 10) -> None:
        super().__init__()
        width = base * widening
        self.stem = _conv(3, base, kernel=3, stride=1)
        self.blocks = _stages(PreActivationBlock, base, [width, 2 * width, 4 * width], blocks_per_stage=2)
        self.norm = _norm(4 * width)
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify by the mean over positions."""
        active = functional.relu(self.norm(self.blocks(self.stem(images))))
        return self.head(active.mean((2, 3)))  # type: ignore[no-any-return]


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose filters have mean zero and unit variance (Qiao et al. 2019), with a gain for each output."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Standardise the filters and convolve."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        scale = torch.rsqrt(variance * self.weight[0].numel() + 1e-4) * self.gain
        return self._conv_forward(images, (self.weight - mean) * scale, self.bias)


def with_standardised_weights(model: nn.Module) -> nn.Module:
    """Replace the convolutions of a model by standardised ones of the same shape, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Conv2d:
                made = StandardisedConv2d(
                    child.in_channels, child.out_channels, child.kernel_size, stride=child.stride,
                    padding=child.padding, bias=child.bias is not None,
                )  # fmt: skip
                setattr(parent, name, made)
    return model


class TransformerBlock(nn.Module):
    """Pre-norm attention and feed-forward, through ``scaled_dot_product_attention``."""

    def __init__(self, width: int, *, num_heads: int, is_causal: bool) -> None:
        super().__init__()
        self.num_heads, self.is_causal = num_heads, is_causal
        self.attention_norm = nn.LayerNorm(width)
        self.in_projection = nn.Linear(width, 3 * width)
        self.out_projection = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Attend, then transform each position."""
        states = states + self.out_projection(self._attend(self.in_projection(self.attention_norm(states))))
        widened = functional.gelu(self.widen(self.feed_forward_norm(states)))
        return states + self.narrow(widened)  # type: ignore[no-any-return]

    def _attend(self, projected: Tensor) -> Tensor:
        split = projected.view(*projected.shape[:2], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        return attended.transpose(1, 2).flatten(2)


def _position_ids(states: Tensor) -> Tensor:
    """Return 0, 1, 2, ... for every example of ``[batch, length, ...]``, as contiguous memory."""
    start = states.new_zeros(states.shape[:2], dtype=torch.long)
    return start + torch.arange(states.shape[1], device=states.device)


class VisionTransformer(nn.Module):
    """ViT with learned positions and mean pooling. The defaults are ViT-S/16 at 224x224, 22.05M parameters."""

    def __init__(
        self,
        *,
        width: int = 384,
        num_heads: int = 6,
        num_blocks: int = 12,
        side: int = 224,
        patch: int = 16,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Embedding((side // patch) ** 2, width)
        blocks = (TransformerBlock(width, num_heads=num_heads, is_causal=False) for _ in range(num_blocks))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify by the mean over patches."""
        states = self.patches(images).flatten(2).transpose(1, 2)
        states = states + self.positions(_position_ids(states))
        return self.head(self.norm(self.blocks(states)).mean(1))  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """GPT-2 with an untied head, because two of the rivals refuse tied weights. Defaults: 162.64M parameters."""

    def __init__(
        self,
        *,
        width: int = 768,
        num_heads: int = 12,
        num_blocks: int = 12,
        vocabulary: int = 50257,
        max_length: int = 512,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(max_length, width)
        blocks = (TransformerBlock(width, num_heads=num_heads, is_causal=True) for _ in range(num_blocks))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next token at every position."""
        states = self.tokens(ids) + self.positions(_position_ids(ids))
        return self.head(self.norm(self.blocks(states)))  # type: ignore[no-any-return]


class EncoderBlock(nn.Module):
    """Post-norm attention with a padding mask and dropout, with BERT's separate projections."""

    def __init__(self, width: int, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Attend to tokens that are no padding, then transform each position."""
        query, key, value = (self._heads(part(states)) for part in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended = self.out(attended.transpose(1, 2).flatten(2))
        states = self.attention_norm(states + self.dropout(attended))
        return self.feed_forward_norm(states + self.dropout(self.narrow(functional.gelu(self.widen(states)))))  # type: ignore[no-any-return]

    def _heads(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:2], self.num_heads, -1).transpose(1, 2)


class Bert(nn.Module):
    """The shapes and operations of BERT-base with a classifier: 109.48M parameters."""

    def __init__(
        self,
        *,
        width: int = 768,
        num_heads: int = 12,
        num_blocks: int = 12,
        vocabulary: int = 30522,
        max_length: int = 512,
        num_classes: int = 2,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions, self.kinds = nn.Embedding(max_length, width), nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.blocks = nn.ModuleList([EncoderBlock(width, num_heads=num_heads) for _ in range(num_blocks)])
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, num_classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Classify by the first token; id 0 is padding."""
        states = self.tokens(ids) + self.positions(_position_ids(ids)) + self.kinds(torch.zeros_like(ids))
        states, mask = self.dropout(self.norm(states)), (ids != 0)[:, None, None, :]
        for block in self.blocks:
            states = block(states, mask)
        return self.head(self.dropout(torch.tanh(self.pooler(states[:, 0]))))  # type: ignore[no-any-return]


class SequenceClassifier(nn.Module):
    """Embedding, one LSTM, mean over time, linear. The defaults have 1.12M parameters."""

    def __init__(self, *, vocabulary: int = 10_000, embedding_width: int = 100, width: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embedding_width)
        self.lstm = nn.LSTM(embedding_width, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Classify by the mean over time."""
        states, _ = self.lstm(self.tokens(ids))
        return self.head(states.mean(1))  # type: ignore[no-any-return]
