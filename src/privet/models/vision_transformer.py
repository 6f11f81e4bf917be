"""A small vision transformer (Dosovitskiy et al., 2021) without dropout and without a class token.

The publication that trains one privately on padded digits (Xu and Chen, 2026, Appendix E.2) does not state its size.
The size is RECONSTRUCTED: patches of 4, width 64, four layers of four heads, hidden width 128.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from privet import checks
from privet.errors import ArgumentError
from privet.models.convolutional import image_shape

_PATCH, _WIDTH, _NUM_LAYERS, _NUM_HEADS, _HIDDEN_WIDTH = 4, 64, 4, 4, 128


def small_vit(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    """Build the transformer. 138,890 parameters for 1x28x28 images and 10 classes.

    Raises:
        ArgumentError: height or width is no multiple of 4.
    """
    channels, height, width = image_shape("The small ViT", input_shape)
    if height % _PATCH or width % _PATCH:
        raise ArgumentError(
            f"The small ViT cuts images into patches of {_PATCH} by {_PATCH}, and these are {height} by {width}. "
            f"Resize them to multiples of {_PATCH}."
        )
    num_patches = (height // _PATCH) * (width // _PATCH)
    return nn.Sequential(
        PatchEmbedding(channels, num_patches),
        *(TransformerLayer() for _ in range(_NUM_LAYERS)),
        nn.LayerNorm(_WIDTH),
        MeanOverPatches(),
        nn.Linear(_WIDTH, checks.count("num_classes", num_classes)),
    )


class PatchEmbedding(nn.Module):
    """Maps images to one vector per patch, plus a learned position embedding."""

    def __init__(self, channels: int, num_patches: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(channels, _WIDTH, kernel_size=_PATCH, stride=_PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(num_patches, _WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        """Return ``[batch, patches, width]``."""
        patches: Tensor = self.projection(images)
        return patches.flatten(2).transpose(1, 2) + self.places


class TransformerLayer(nn.Module):
    """Attention between patches and a two-layer network on each, both with layer norm and residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(_WIDTH)
        self.attention_inputs = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.attention_output = nn.Linear(_WIDTH, _WIDTH)
        self.network_norm = nn.LayerNorm(_WIDTH)
        self.network = nn.Sequential(nn.Linear(_WIDTH, _HIDDEN_WIDTH), nn.GELU(), nn.Linear(_HIDDEN_WIDTH, _WIDTH))

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape, ``[batch, patches, width]``."""
        mixed: Tensor = states + self._attended(self.attention_norm(states))
        changed: Tensor = mixed + self.network(self.network_norm(mixed))
        return changed

    def _attended(self, states: Tensor) -> Tensor:
        batch, patches, width = states.shape
        heads = self.attention_inputs(states).view(batch, patches, 3, _NUM_HEADS, width // _NUM_HEADS)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4).unbind(0)
        found = functional.scaled_dot_product_attention(queries, keys, values)
        output: Tensor = self.attention_output(found.transpose(1, 2).reshape(batch, patches, width))
        return output


class MeanOverPatches(nn.Module):
    """Maps ``[batch, patches, width]`` to ``[batch, width]``."""

    def forward(self, states: Tensor) -> Tensor:
        return states.mean(1)
