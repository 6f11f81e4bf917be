"""Written-out calls of views, products and whatever picks or puts rows."""

from __future__ import annotations

import torch

from tests.isolation.rule_calls import CUBE, LARGE, PAIRS, SQUARE, VECTOR, call
from tests.isolation.rule_check import Sample
from tests.isolation.rule_samples import aten, floats, whole

LONG = floats(8, 6)


def _views() -> list[Sample]:
    shapes = ([16, 4], [4, 16], [64], [2, 2, 4, 4], [4, 2, 2, 4], [8, 8], [2, 8, 4], [4, 4, 2, 2])
    same = [
        call(getattr(aten, name).default, CUBE, shape)
        for name in ("view", "_unsafe_view", "reshape", "view_copy")
        for shape in (shapes if name == "view" else shapes[:2])
    ]
    return [
        *same,
        call(aten._reshape_alias.default, CUBE, [16, 4], [4, 1]),
        call(aten.flatten.using_ints, CUBE, 0, 1),
        call(aten.flatten.using_ints, CUBE, 1, 2),
        call(aten.unflatten.int, CUBE, 1, [2, 2]),
        call(aten.unflatten.int, CUBE, 0, [2, 2]),
        call(aten.permute.default, CUBE, [2, 0, 1]),
        call(aten.permute_copy.default, CUBE, [1, 2, 0]),
        call(aten.transpose.int, CUBE, 0, 2),
        call(aten.transpose_.default, CUBE, 0, -1),
        *(call(getattr(aten, name).default, SQUARE) for name in ("t", "t_", "numpy_T", "adjoint")),
        *(call(getattr(aten, name).default, CUBE) for name in ("numpy_T", "adjoint")),
        call(aten.expand.default, CUBE, [4, 4, 4, 4]),
        call(aten.expand.default, SQUARE.unsqueeze(1), [4, 4, 4]),
        call(aten.expand_as.default, SQUARE, CUBE),
        call(aten.broadcast_to.default, SQUARE, [4, 4, 4]),
        call(aten.repeat.default, SQUARE, [4, 1]),
        call(aten.repeat.default, SQUARE, [4, 1, 2]),
        call(aten.tile.default, SQUARE, [2]),
        call(aten.tile.default, SQUARE, [2, 1, 1]),
        *(call(getattr(aten, name).default, SQUARE, dim) for name in ("unsqueeze", "unsqueeze_") for dim in (0, 1, -1)),
        call(aten.squeeze.default, floats(1, 4, 1, 4)),
        call(aten.squeeze.dim, floats(1, 4, 1, 4), 0),
        call(aten.squeeze.dims, floats(1, 4, 1, 4), [0, 1]),
        call(aten.squeeze_.dim, floats(1, 4, 1, 4), 2),
        *(call(aten.select.int, CUBE, dim, index) for dim in (0, 1, 2) for index in (1, -1)),
        *(call(aten.slice.Tensor, LONG, dim, *cut) for dim in (0, 1)
          for cut in ((0, 4), (2, 4), (0, 8), (1, None), (0, 8, 2), (1, 8, 2), (-4, None),
                      (3, 4), (0, 6, 3), (0, 7, 2))),
        call(aten.as_strided.default, SQUARE, [4, 4], [1, 4]),
        call(aten.as_strided.default, SQUARE, [4, 4], [3, 1]),
        call(aten.as_strided.default, SQUARE, [16], [1]),
        call(aten.as_strided.default, SQUARE, [4, 2], [4, 2]),
        call(aten.as_strided.default, SQUARE, [2, 4], [4, 1], 4),
        call(aten.as_strided.default, SQUARE, [4, 2, 2], [4, 1, 1]),
        call(aten.as_strided_.default, SQUARE, [4, 4, 1, 1], [4, 1, 4, 4]),
        call(aten.as_strided_.default, SQUARE, [4, 4], [1, 4]),
        call(aten.as_strided_.default, SQUARE, [2, 4], [4, 1], 4),
        call(aten.diagonal.default, CUBE, 0, 0, 1),
        call(aten.diagonal.default, CUBE, 0, 1, 2),
        call(aten.diagonal.default, LARGE, 1, 0, 2),
        call(aten.diag_embed.default, SQUARE),
        call(aten.diag_embed.default, SQUARE, 0, 0, 1),
        call(aten.diag_embed.default, SQUARE, 1, 0, 2),
        call(aten.view_as_real.default, PAIRS),
        call(aten.view_as_complex.default, floats(4, 4, 2)),
        call(aten.real.default, PAIRS),
        call(aten.imag.default, PAIRS),
        *(call(aten.select_scatter.default, CUBE, SQUARE, dim, 1) for dim in (0, 1, 2)),
        *(call(aten.slice_scatter.default, CUBE, floats(4, 4, 4, seed=1), dim) for dim in (0, 1)),
        call(aten.slice_scatter.default, CUBE, floats(4, 2, 4), 1, 0, 2),
    ]  # fmt: skip


def _parts() -> list[Sample]:
    other = floats(4, 4, 4, seed=1)
    return [
        *(call(op, CUBE, 2, dim) for op in (
            aten.split.Tensor, aten.unsafe_split.Tensor, aten.chunk.default, aten.unsafe_chunk.default,
        ) for dim in (0, 1)),
        *(call(op, CUBE, [1, 3], dim) for op in (
            aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default,
        ) for dim in (0, 1)),
        *(call(aten.unbind.int, CUBE, dim) for dim in (0, 1, 2)),
        *(call(op, [CUBE, other], dim) for op in (aten.cat.default, aten.concat.default, aten.stack.default)
          for dim in (0, 1, 2)),
        call(aten.cat.default, [CUBE, CUBE[:2]], 0),
        call(aten.cat.default, [CUBE[:, :2], CUBE], 1),
    ]  # fmt: skip


def _products() -> list[Sample]:
    other, second = floats(4, 4, seed=1), floats(4, 4, 4, seed=1)
    small = whole(5, 32, 32).to(torch.int8)
    return [
        call(aten.mm.default, SQUARE, other),
        call(aten.bmm.default, CUBE, second),
        call(aten.mv.default, SQUARE, VECTOR),
        call(aten.dot.default, VECTOR, floats(4, seed=2)),
        call(aten.vdot.default, VECTOR, floats(4, seed=2)),
        *(call(aten.matmul.default, one, two) for one in (VECTOR, SQUARE, CUBE, LARGE)
          for two in (floats(4, seed=2), other, second)),
        call(aten._int_mm.default, small, small),
        *(call(op, SQUARE, other, floats(4, 4, seed=3)) for op in (
            aten.addmm.default, aten.addmm_.default, aten._addmm_activation.default)),
        call(aten.addmm.default, VECTOR, SQUARE, other),
        *(call(op, CUBE, second, floats(4, 4, 4, seed=3)) for op in (aten.baddbmm.default, aten.baddbmm_.default)),
        call(aten.baddbmm.default, SQUARE, CUBE, second),
        *(call(op, VECTOR, SQUARE, floats(4, seed=2)) for op in (aten.addmv.default, aten.addmv_.default)),
        call(aten.addbmm.default, SQUARE, CUBE, second),
        call(aten.addr.default, SQUARE, VECTOR, floats(4, seed=2)),
        call(aten._trilinear.default, SQUARE, CUBE, other, [1, 3], [0], [1, 2], [2, 3]),
    ]  # fmt: skip


def _picks() -> list[Sample]:
    numbers, grid = whole(4, 4), whole(4, 4, 4)
    counting = torch.arange(4)
    bags = torch.arange(0, 8, 2)
    return [
        call(aten.embedding.default, SQUARE, grid),
        call(aten._embedding_bag.default, SQUARE, whole(4, 8), bags, iotas={2: (0, 2)}),
        call(aten._embedding_bag.default, SQUARE, whole(4, 8), bags),
        call(aten._embedding_bag.default, SQUARE, whole(4, 8), bags, False, 0, False, floats(8), iotas={2: (0, 2)}),
        call(aten._embedding_bag_forward_only.default, SQUARE, whole(4, 8), bags, iotas={2: (0, 2)}),
        *(call(aten.gather.default, CUBE, dim, whole(4, 4, 4, 4)) for dim in (0, 1, 2)),
        call(aten.gather.default, CUBE, 1, whole(4, 2, 4, 4)),
        call(aten.gather.default, VECTOR, 0, numbers),
        call(aten.take_along_dim.default, SQUARE, grid, 1),
        call(aten.take_along_dim.default, SQUARE, grid, 0),
        *(call(op, SQUARE, dim, grid, floats(4, 4, seed=1)) for dim in (0, 1) for op in (
            aten.scatter.src, aten.scatter_.src, aten.scatter_add.default, aten.scatter_add_.default)),
        *(call(op, SQUARE, dim, grid, floats(4, 4, seed=1), "sum") for dim in (0, 1) for op in (
            aten.scatter_reduce.two, aten.scatter_reduce_.two)),
        call(aten.scatter.value, SQUARE, 1, grid, 1.0),
        call(aten.scatter.src, SQUARE, 1, grid[:2], floats(4, 4, seed=1)),
        *(call(aten.index_select.default, SQUARE, dim, numbers) for dim in (0, 1)),
        *(call(aten.index_select.default, SQUARE, dim, counting, iotas={1: (0, 1)}) for dim in (0, 1)),
        *(call(op, SQUARE, dim, numbers, floats(4, 4, seed=1)) for dim in (0, 1) for op in (
            aten.index_add.default, aten.index_add_.default, aten.index_copy.default, aten.index_copy_.default)),
        *(call(op, SQUARE, dim, counting, floats(4, 4, seed=1), iotas={1: (0, 1)}) for dim in (0, 1) for op in (
            aten.index_add.default, aten.index_copy_.default)),
        *(call(op, SQUARE, dim, numbers, 1.0) for dim in (0, 1) for op in (
            aten.index_fill.int_Scalar, aten.index_fill_.int_Scalar)),
        *(call(op, CUBE, indices, iotas=iotas) for op in (aten.index.Tensor, aten._unsafe_index.Tensor)
          for indices, iotas in (
            ([numbers], {}), ([None, numbers], {}), ([None, None, numbers], {}), ([grid], {}),
            ([counting, numbers], {1: (0, 1)}), ([numbers, None, numbers], {}),
            ([None, counting, numbers], {1: (0, 1)}),
            ([counting, None, numbers], {1: (0, 1)}), ([counting.unsqueeze(1), grid], {1: (0, 1)}),
            ([counting.unsqueeze(0), grid], {1: (1, 1)}))),
        call(aten.index.Tensor, CUBE, [SQUARE > 0]),
        call(aten.index.Tensor, CUBE, [None, VECTOR > 0]),
        *(call(op, SQUARE, indices, values, iotas=iotas) for op in (
            aten.index_put.default, aten.index_put_.default, aten._unsafe_index_put.default,
            aten._index_put_impl_.default)
          for indices, values, iotas in (
            ([numbers], floats(4, 4, seed=1), {}), ([None, numbers], floats(4, 4, seed=1), {}),
            ([counting, numbers], floats(4, seed=1), {1: (0, 1)}), ([counting], floats(4, 4, seed=1), {1: (0, 1)}),
            ([None, counting], floats(4, 4, seed=1), {1: (0, 1)}),
            ([numbers, counting], floats(4, seed=1), {2: (0, 1)}),
            ([SQUARE > 0], torch.tensor(1.0), {}))),
        call(aten.nonzero.default, grid),
        call(aten.nonzero_static.default, grid, size=4),
        call(aten.masked_select.default, SQUARE, grid > 1),
        call(aten.masked_scatter.default, SQUARE, grid > 1, CUBE),
        call(aten.masked_scatter_.default, SQUARE, grid > 1, CUBE),
        call(aten._unique2.default, grid),
        call(aten.unique_dim.default, grid, 0),
        call(aten.unique_consecutive.default, grid),
        call(aten.take.default, SQUARE, grid),
        call(aten.isin.Tensor_Tensor, grid, numbers),
        call(aten.isin.Tensor_Tensor, grid, numbers, assume_unique=True),
        call(aten.isin.Tensor_Scalar, grid, 1),
        call(aten.isin.Scalar_Tensor, 1, grid),
        call(aten.put_.default, SQUARE, grid, floats(4, 4, seed=1)),
        call(aten.repeat_interleave.Tensor, numbers),
        call(aten._pack_padded_sequence.default, CUBE, torch.tensor([4, 3, 2, 1]), True),
    ]  # fmt: skip


def _others() -> list[Sample]:
    wide = floats(4, 4, 4) * 9
    return [
        *(call(aten.renorm.default, wide, 2, dim, 1.0) for dim in (0, 1, 2)),
        *(call(aten.roll.default, CUBE, [1], [dim]) for dim in (0, 1)),
        call(aten.roll.default, CUBE, [1]),
        call(aten.rot90.default, CUBE, 1, [0, 1]),
        call(aten.rot90.default, CUBE, 1, [1, 2]),
        call(aten.flip.default, CUBE, [0, 2]),
        call(aten._fft_c2r.default, torch.fft.rfft(CUBE), [2], 0, 4),
        call(aten._fft_c2r.default, torch.fft.rfft(CUBE, dim=0), [0], 0, 4),
        call(aten._fft_c2c.default, PAIRS, [0], 0, True),
        call(aten.bincount.default, whole(4, 4)),
        call(aten.clamp.default, SQUARE, 0.0, 1.0),
        call(aten.clamp.Tensor, SQUARE, VECTOR, None),
        call(aten.clamp_.default, SQUARE, 0.0, 1.0),
        call(aten.detach_.default, SQUARE),
        call(aten.prelu.default, SQUARE, torch.full((1,), 0.2)),
        call(aten.prelu.default, SQUARE, VECTOR),
        call(aten.prelu.default, CUBE, VECTOR),
        call(aten._prelu_kernel.default, CUBE, VECTOR.view(4, 1)),
        call(aten.fill_.Tensor, SQUARE, torch.tensor(2.0)),
        call(aten.fill.Tensor, SQUARE, torch.tensor(2.0)),
        call(aten.bernoulli_.Tensor, SQUARE, SQUARE.sigmoid()),
        call(aten.copy_.default, SQUARE, VECTOR),
        call(aten.copy_.default, CUBE, SQUARE),
        call(aten.copy.default, CUBE, SQUARE),
        call(aten.where.self, SQUARE > 0, SQUARE, VECTOR),
        call(aten.normal.Tensor_Tensor, SQUARE, SQUARE.abs()),
        call(aten.feature_dropout.default, CUBE, 0.5, True),
        call(aten.glu.default, CUBE, 0),
        call(aten.glu.default, CUBE, 2),
        *(call(aten.diff.default, CUBE, 1, dim) for dim in (0, 1)),
        *(call(aten.var_mean.correction, CUBE, [dim]) for dim in (0, 2)),
        *(call(aten.sum.dim_IntList, CUBE, [0, 1], keep) for keep in (True, False)),
        *(call(aten.median.dim, CUBE, dim) for dim in (0, 1)),
        *(call(aten.max.dim, CUBE, dim, True) for dim in (0, 1)),
        *(call(aten.norm.ScalarOpt_dim, CUBE, 2, [dim]) for dim in (0, 1)),
        *(call(aten.kthvalue.default, CUBE, 2, dim) for dim in (0, 1)),
        *(call(aten.topk.default, CUBE, 2, dim) for dim in (0, 1, 2)),
        *(call(aten.sort.stable, CUBE, stable=True, dim=dim) for dim in (0, 1)),
        *(call(aten.argsort.default, CUBE, dim) for dim in (0, 1)),
        call(aten.msort.default, CUBE),
        call(aten.histc.default, CUBE),
        call(aten.rrelu_with_noise.default, SQUARE, floats(4, 4, seed=1), training=True),
        call(aten.native_dropout.default, CUBE, 0.5, True),
        call(aten.polar.default, SQUARE.abs(), SQUARE),
    ]


ROWS: tuple[Sample, ...] = (*_views(), *_parts(), *_products(), *_picks(), *_others())
