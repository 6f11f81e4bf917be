"""Several views of every record: randomly transformed copies whose losses are averaged before clipping.

Averaging K views before clipping leaves the sensitivity as it is: however many views there are, one record contributes
one clipped gradient (augmentation multiplicity; De et al. 2022). Counting views as records would cost K times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privet import checks
from privet.errors import ArgumentError, DataError
from privet.training.batching import MapDataset
from privet.training.reading import reader_of
from privet.vocabulary import OneItem, one_item_of

Transform = Callable[[Tensor], Tensor]
LossFunction = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Views:
    """A data set of the same records, each as several views: ``[record, view, ...]`` instead of ``[record, ...]``.

    A session hands out batches ``(inputs [B, K, ...], targets [B])``; :func:`mean_over_views` turns a loss function for
    plain batches into one for these.

    Attributes:
        dataset: The records; the first entry of an item is the argument of the transform.
        transform: Maps a batch of inputs ``[N, ...]`` to as many transformed ones, drawing each row's change afresh.
            It must not look at other rows, nor choose its draws by the data.
        num_views: How many views of a record a step uses.
    """

    dataset: MapDataset
    transform: Transform
    num_views: int

    def __post_init__(self) -> None:
        """Refuse a number of views below one and transforms that cannot be called."""
        object.__setattr__(self, "num_views", checks.count("num_views", self.num_views))
        if not callable(self.transform):
            raise ArgumentError(f"transform must be a function from inputs to inputs, got {self.transform!r}.")

    @property
    def one_item(self) -> OneItem:
        """The unit of one item of the data set, which its views do not change."""
        return one_item_of(self.dataset)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """Return one record with its views on the first axis of its input."""
        inputs, *rest = self.take(torch.tensor([index]))
        return (inputs[0], *(value[0] for value in rest))

    def take(self, indices: Tensor) -> tuple[Any, ...]:
        """Return the records at these positions, views on the second axis of the inputs."""
        batch = reader_of(self.dataset, None).read(indices.numpy())
        if not isinstance(batch, tuple | list) or not batch or not isinstance(batch[0], Tensor):
            raise DataError("Views needs records that are tuples whose first entry is a tensor of inputs.")
        inputs = batch[0]
        views = self.transform(inputs.repeat_interleave(self.num_views, 0))
        if len(views) != len(inputs) * self.num_views:
            raise DataError(f"The transform of Views returned {len(views)} rows; it must return one for each it gets.")
        return (views.reshape(len(inputs), self.num_views, *views.shape[1:]), *batch[1:])


def mean_over_views(losses: LossFunction) -> LossFunction:
    """Turn a function from a plain batch to its losses into one for batches of :class:`Views`.

    The model sees all views as one batch ``[B * K, ...]``; the result is one loss per record, the mean over its views.
    Both engines find the records in that batch by themselves, and no gradient of a single view is ever written out.

    Guarantee:
        Each loss depends on the views of its own record alone, so clipping bounds the record, however many its views.
    """

    def averaged(inputs: Tensor, *rest: Tensor) -> Tensor:
        size, num_views = inputs.shape[:2]
        found = losses(inputs.flatten(0, 1), *(value.repeat_interleave(num_views, 0) for value in rest))
        return found.reshape(size, num_views).mean(1)

    return averaged


@dataclass(frozen=True, kw_only=True)
class ShiftAndFlip:
    """Shift images by a few pixels and mirror them: the usual augmentation of small photographs.

    Attributes:
        max_shift: Largest shift in pixels, in both directions of both axes; the border is filled by reflection.
        flip: Whether every other image, at random, is mirrored left to right.
    """

    max_shift: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        """Refuse a negative shift."""
        object.__setattr__(self, "max_shift", checks.count("max_shift", self.max_shift, minimum=0))

    def __call__(self, images: Tensor) -> Tensor:
        """Return images ``[N, channel, height, width]``, each with its own shift and its own coin."""
        if images.dim() != 4:
            raise ArgumentError(f"ShiftAndFlip takes images [N, channel, height, width], got {list(images.shape)}.")
        size, reach, (height, width) = len(images), self.max_shift, images.shape[2:]
        padded = functional.pad(images, (reach,) * 4, mode="reflect")
        down, right = torch.randint(0, 2 * reach + 1, (2, size), device=images.device)
        rows = torch.arange(height, device=images.device) + down.unsqueeze(1)
        columns = torch.arange(width, device=images.device).expand(size, width)
        if self.flip:
            mirrored = torch.rand(size, 1, device=images.device) < 0.5
            columns = torch.where(mirrored, width - 1 - columns, columns)
        columns = columns + right.unsqueeze(1)
        # one number for each pixel, the same in all channels; the result lies in memory as the images do
        pixels = (rows * padded.shape[3]).unsqueeze(2) + columns.unsqueeze(1)
        pixels = pixels.flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1)
        return padded.flatten(2).gather(2, pixels).view(*images.shape)
