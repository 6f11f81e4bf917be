"""Programs that give an example something by its place in the batch: without the first record all others move."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tests.isolation.hostile import HOSTILE, hostile, losses_of
from tests.isolation.mixer import WIDTH, Scene

_TABLE = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3)) * 3


@hostile(removed=0)
def table_scattered_by_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros(len(x), WIDTH).scatter(1, (x.detach() > 0).long(), _TABLE)
    return losses_of(scene, x + 5 * z, y)


@hostile(removed=0)
def table_scatter_added_by_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = (x.detach() * 0).scatter_add(1, (x.detach() > 0).long(), _TABLE)
    return losses_of(scene, x + 5 * z, y)


@hostile(removed=0)
def table_compared_by_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = torch.searchsorted(_TABLE.sort(1).values[: len(x)].contiguous(), x.detach()[:, :1].contiguous())
    return losses_of(scene, x * (1 + z), y)


@hostile(removed=0)
def lerped_with_table(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, torch.lerp(x, _TABLE.narrow(0, 0, len(x)), 0.9), y)


@hostile(removed=0)
def table_embedded_by_arange(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x + 5 * _TABLE.index_select(0, torch.arange(len(x))), y)


@hostile(removed=0)
def table_by_split(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    a, _ = _TABLE.split([len(x), 64 - len(x)])
    return losses_of(scene, x + 5 * a, y)


@hostile(removed=0)
def table_by_as_strided(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x + 5 * _TABLE.as_strided((len(x), WIDTH), (WIDTH, 1)), y)


@hostile(removed=0)
def powers_by_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x * torch.full((len(x), 1), 2.0).cumprod(0), y)


@hostile(removed=0)
def sign_of_place_by_outer(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = torch.outer(torch.arange(1, len(x) + 1).float(), torch.ones(WIDTH))
    return losses_of(scene, x * z, y)


@hostile(removed=0)
def meshgrid_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g, _ = torch.meshgrid(torch.arange(len(x)), torch.arange(WIDTH), indexing="ij")
    return losses_of(scene, x * g, y)


@hostile(removed=0)
def place_by_grid_sample(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = functional.affine_grid(torch.eye(2, 3)[None], [1, 1, len(x), WIDTH], align_corners=True)[0, :, :, 1]
    return losses_of(scene, x * g * 10, y)


@hostile(removed=0)
def place_by_interpolation(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = functional.interpolate(torch.tensor([[[0.0, 1.0]]]), size=len(x), mode="linear", align_corners=True)[0, 0]
    return losses_of(scene, x * g[:, None] * 10, y)


@hostile(removed=0)
def place_by_pad(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = functional.pad(torch.zeros(len(x) - 1), (1, 0), value=1.0)
    return losses_of(scene, x * g[:, None] * 10, y)


@hostile(removed=0)
def place_by_conv(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = functional.conv1d(torch.ones(1, 1, len(x)), torch.ones(1, 1, 3), padding=1)[0, 0]
    return losses_of(scene, x * (g[:, None] - 2) * 10, y)


@hostile(removed=0)
def place_by_unfold(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.ones(len(x) + 2).index_fill(0, torch.tensor([0]), 0).unfold(0, 3, 1).sum(1)
    return losses_of(scene, x * (g[:, None] - 2) * 10, y)


@hostile(removed=0)
def place_by_fft(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.fft.ifft(torch.ones(len(x))).real
    return losses_of(scene, x * g[:, None] * 10, y)


@hostile(removed=0)
def place_by_sort(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.rand(len(x)).sort().values
    return losses_of(scene, x * g[:, None] * 10, y)


@hostile(removed=0)
def place_by_tril(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.ones(len(x), len(x)).tril().sum(1)
    return losses_of(scene, x * g[:, None], y)


@hostile(removed=0)
def place_by_matrix_power(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.ones(len(x), len(x)).triu() @ torch.ones(len(x))
    return losses_of(scene, x * g[:, None], y)


@hostile(removed=0)
def place_by_nonzero(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.ones(len(x)).nonzero()
    return losses_of(scene, x * g, y)


@hostile(removed=0)
def place_by_where(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.where(torch.ones(len(x)) > 0)[0]
    return losses_of(scene, x * g[:, None], y)


@hostile(removed=0)
def place_by_argsort(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.zeros(len(x)).argsort(stable=True)
    return losses_of(scene, x * g[:, None], y)


@hostile(removed=0)
def place_by_unique(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.rand(len(x)).unique(return_inverse=True)[1]
    return losses_of(scene, x * g[:, None], y)


@hostile(removed=0)
def place_by_topk(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.zeros(len(x)).topk(len(x)).indices
    return losses_of(scene, x * g[:, None], y)


@hostile(removed=0)
def place_by_bucketize(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.bucketize(torch.full((len(x),), 1.0).cumsum(0), torch.tensor([1.5]))
    return losses_of(scene, x * g[:, None], y)


@hostile(removed=0)
def place_by_repeat(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.tensor([0.0, 1.0]).repeat((len(x) + 1) // 2)[: len(x)]
    return losses_of(scene, x * g[:, None] * 5, y)


@hostile(removed=0)
def place_by_repeat_interleave(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    g = torch.tensor([0.0, 1.0]).repeat_interleave((len(x) + 1) // 2)[: len(x)]
    return losses_of(scene, x * g[:, None] * 5, y)


@hostile(removed=0)
def place_by_parts_cat(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([losses_of(scene, x[:1], y[:1]) * 30, losses_of(scene, x[1:], y[1:]) * 0.01])


@hostile(removed=0)
def place_by_chunks(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat(
        [
            losses_of(scene, a, b) * (0.01 if i else 3)
            for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True))
        ]
    )


@hostile(removed=0)
def place_by_numpy_slice_of_constant(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    n = scene.memory.setdefault("n", np.random.RandomState(0).rand(64).astype(np.float32))
    return losses_of(scene, x * torch.from_numpy(n)[: len(x), None] * 10, y)


@hostile(removed=0)
def place_by_equal_rows_written(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros(len(x), WIDTH)
    z.select(0, 0).add_(5.0)
    return losses_of(scene, x + z, y)


@hostile(removed=0)
def place_by_diagonal_fill(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros(len(x), WIDTH).fill_diagonal_(5.0)
    return losses_of(scene, x + z, y)


@hostile(removed=0)
def place_by_expand_written(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros(len(x), WIDTH)
    z.view(-1)[0:WIDTH].fill_(5.0)
    return losses_of(scene, x + z, y)


@hostile(removed=0)
def place_by_masked_scatter(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros(len(x), WIDTH).masked_scatter(torch.ones(len(x), WIDTH, dtype=torch.bool), _TABLE)
    return losses_of(scene, x + z, y)


@hostile(removed=0)
def place_by_masked_select(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros(len(x), WIDTH)
    z[torch.ones(len(x), dtype=torch.bool)] = _TABLE[: len(x)]
    return losses_of(scene, x + z, y)


PLACES = [program for program in HOSTILE if program.program.__module__ == __name__]
