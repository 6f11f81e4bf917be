"""What a network reads of scattering features: the ways to bring channels of different size to one scale.

Each is a function of the features of one example, with constants that no private data were read for, so it has no
privacy cost. Channels of scattering features differ in scale by orders of magnitude (Tramer and Boneh 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from privet.datasets.scattering import Scattering, synthetic_photographs

Scale = Callable[[Tensor], Tensor]
_NUM_SYNTHETIC = 256


class Scaling(Protocol):
    """A way to scale features."""

    @property
    def title(self) -> str:
        """What rows call it."""
        ...

    def over(self, scattering: Scattering, image_shape: tuple[int, ...]) -> Scale:
        """Return the function of features ``[example, channel, height, width]``, for images of a shape."""
        ...


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Subtract the mean of a group of channels in an example and divide by the standard deviation.

    Attributes:
        num_groups: Number of groups.
    """

    num_groups: int

    @property
    def title(self) -> str:
        return f"{self.num_groups} groups"

    def over(self, scattering: Scattering, image_shape: tuple[int, ...]) -> Scale:
        return lambda features: functional.group_norm(features, self.num_groups)


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Subtract the mean of a channel over synthetic photographs, and divide by the standard deviation.

    Attributes:
        offset: If positive, logarithms are taken first: of one plus the feature's size over so many typical sizes.
    """

    offset: float = 0.0

    @property
    def title(self) -> str:
        return f"logarithms, offset {self.offset:g}" if self.offset else "synthetic means"

    def over(self, scattering: Scattering, image_shape: tuple[int, ...]) -> Scale:
        colours, height, width = image_shape
        found = scattering.features(synthetic_photographs((height, width), num_images=_NUM_SYNTHETIC))
        sizes = found.square().mean((0, 2, 3)).sqrt().view(-1, 1, 1)
        bent = self._bent(found, sizes)
        means, stds = bent.mean((0, 2, 3)).view(-1, 1, 1), bent.std((0, 2, 3)).view(-1, 1, 1)
        constants = [values.repeat(colours, 1, 1) for values in (sizes, means, stds)]

        def scale(features: Tensor) -> Tensor:
            own_sizes, own_means, own_stds = (values.to(features.device) for values in constants)
            return (self._bent(features, own_sizes) - own_means) / own_stds

        return scale

    def _bent(self, features: Tensor, sizes: Tensor) -> Tensor:
        if not self.offset:
            return features
        return torch.sign(features) * torch.log1p(features.abs() / (self.offset * sizes))
