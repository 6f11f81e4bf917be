"""Calls that are written out, since signatures do not tell what they need. Axes are of equal length on purpose."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.isolation.rule_check import Sample
from tests.isolation.rule_samples import aten, floats, whole

CUBE = floats(4, 4, 4)
SQUARE = floats(4, 4)
LARGE = floats(4, 4, 4, 4)
HUGE = floats(2, 2, 4, 4, 4)
IMAGE = floats(4, 4, 4, 4)
SOUND = floats(4, 4, 4)
PIXELS = floats(2, 4, 4, 4)
VECTOR = floats(4)
SPD = CUBE @ CUBE.mT + 4 * torch.eye(4)
PAIRS = torch.complex(floats(4, 4), floats(4, 4, seed=1))


def lstm_cell(given: Tensor, hidden: Tensor, cell: Tensor, *biases: Tensor) -> tuple[Tensor, ...]:
    gates = given + hidden + sum(biases)
    enters, forgets, new, leaves = gates.chunk(4, 1)
    cell = forgets.sigmoid() * cell + enters.sigmoid() * new.tanh()
    return leaves.sigmoid() * cell.tanh(), cell, gates


def gru_cell(given: Tensor, hidden: Tensor, state: Tensor, *biases: Tensor) -> tuple[Tensor, ...]:
    one, other = (x + bias for x, bias in zip((given, hidden), biases, strict=True))
    (r, z, n), (s, y, m) = one.chunk(3, 1), other.chunk(3, 1)
    resets, updates = (r + s).sigmoid(), (z + y).sigmoid()
    return (n + resets * m).tanh() * (1 - updates) + updates * state, torch.cat([resets, updates], 1)


def call(operation: object, *args: object, iotas: dict[int, tuple[int, int]] | None = None, **kwargs: object) -> Sample:
    assert isinstance(operation, torch._ops.OpOverload)
    return Sample(operation=operation, args=args, kwargs=kwargs, iotas=iotas or {})


def _losses() -> list[Sample]:
    classes = whole(4, 4)
    return [call(aten.nll_loss_forward.default, SQUARE, classes, None, reduction, -100) for reduction in (0, 1, 2)] + [
        call(aten.nll_loss_forward.default, SQUARE, classes, VECTOR.abs(), 0, -100),
        call(aten.nll_loss2d_forward.default, LARGE, whole(4, 4, 4, 4), None, 0, -100),
        call(aten.nll_loss_backward.default, VECTOR, SQUARE, classes, None, 0, -100, torch.zeros(())),
        call(aten.nll_loss2d_backward.default, LARGE[0], LARGE, whole(4, 4, 4, 4), None, 0, -100, torch.zeros(())),
        call(aten.multi_margin_loss.default, SQUARE, classes, 1, 1, None, 0),
        call(aten._ctc_loss.default, LARGE[0].log_softmax(2), whole(3, 4, 4) + 1, [4] * 4, [2] * 4),
        call(aten._ctc_loss.Tensor, LARGE[0].log_softmax(2), whole(3, 4, 4) + 1, torch.full((4,), 4), classes % 2 + 1),
        call(aten.binary_cross_entropy.default, SQUARE.sigmoid(), SQUARE.abs().clamp_max(1), None, 0),
        call(aten.binary_cross_entropy.default, SQUARE.sigmoid(), SQUARE.abs().clamp_max(1), SQUARE.abs(), 1),
        call(aten.bucketize.Tensor, SQUARE, torch.arange(-2.0, 2.0)),
        call(aten.bucketize.Scalar, 0.3, torch.arange(-2.0, 2.0)),
        call(aten.searchsorted.Tensor, SQUARE.sort(1).values, floats(4, 4, seed=3)),
        call(aten.searchsorted.Tensor, torch.arange(-2.0, 2.0), SQUARE),
        call(aten.searchsorted.Tensor, torch.zeros(4, 4), torch.ones(4, 4), sorter=SQUARE.argsort(1)),
        call(aten.searchsorted.Tensor, floats(4, 4), floats(4, 4, seed=3), sorter=SQUARE.argsort(1)),
        call(aten.multinomial.default, SQUARE.abs(), 2),
        call(aten.multinomial.default, VECTOR.abs(), 2),
    ]


def _pools() -> list[Sample]:
    two, three = [2, 2], [2, 2, 2]
    grown = [
        call(getattr(aten, name).default, tensor, size, *rest)
        for name, tensor, size, rest in (
            ("upsample_nearest1d", SOUND, [8], ()),
            ("upsample_nearest2d", IMAGE, [8, 8], ()),
            ("upsample_nearest3d", HUGE, [8, 8, 8], ()),
            ("_upsample_nearest_exact1d", SOUND, [8], ()),
            ("_upsample_nearest_exact2d", IMAGE, [8, 8], ()),
            ("_upsample_nearest_exact3d", HUGE, [8, 8, 8], ()),
            ("upsample_linear1d", SOUND, [8], (False,)),
            ("upsample_bilinear2d", IMAGE, [8, 8], (False,)),
            ("upsample_trilinear3d", HUGE, [8, 8, 8], (False,)),
            ("upsample_bicubic2d", IMAGE, [8, 8], (False,)),
            ("_upsample_bilinear2d_aa", IMAGE, [8, 8], (False,)),
            ("_upsample_bicubic2d_aa", IMAGE, [8, 8], (False,)),
            ("reflection_pad1d", SOUND, [1, 1], ()),
            ("reflection_pad2d", IMAGE, [1, 1, 1, 1], ()),
            ("reflection_pad3d", HUGE, [1] * 6, ()),
            ("replication_pad1d", SOUND, [1, 1], ()),
            ("replication_pad2d", IMAGE, [1, 1, 1, 1], ()),
            ("replication_pad3d", HUGE, [1] * 6, ()),
            ("reflection_pad1d", SQUARE, [1, 1], ()),
            ("max_pool1d_with_indices", SOUND, [2], ()),
            ("max_pool2d_with_indices", IMAGE, two, ()),
            ("max_pool2d_with_indices", CUBE, two, ()),
            ("max_pool3d_with_indices", HUGE, three, ()),
            ("max_pool2d", IMAGE, two, ()),
            ("avg_pool1d", SOUND, [2], ()),
            ("avg_pool2d", IMAGE, two, ()),
            ("avg_pool3d", HUGE, three, ()),
            ("_adaptive_avg_pool2d", IMAGE, two, ()),
            ("_adaptive_avg_pool3d", HUGE, three, ()),
            ("adaptive_avg_pool1d", SOUND, [2], ()),
            ("adaptive_max_pool1d", SOUND, [2], ()),
            ("adaptive_max_pool2d", IMAGE, two, ()),
            ("adaptive_max_pool3d", HUGE, three, ()),
        )
    ]
    best, where = torch.nn.functional.max_pool2d(IMAGE, 2, return_indices=True)
    best3, where3 = torch.nn.functional.max_pool3d(HUGE, 2, return_indices=True)
    return [
        *grown,
        call(aten.fractional_max_pool2d.default, IMAGE, two, two, torch.rand(4, 4, 2)),
        call(aten.max_unpool2d.default, best, where, [4, 4]),
        call(aten.max_unpool3d.default, best3, where3, [4, 4, 4], [2, 2, 2], [0, 0, 0]),
    ]


def _matrices() -> list[Sample]:
    reflections, tau = torch.geqrf(CUBE)
    lu, pivots = torch.linalg.lu_factor(SPD)
    lower = torch.linalg.cholesky(SPD)
    wide = floats(2, 4, 4, 4)
    return [
        *(
            call(getattr(aten, name).default, tensor)
            for name in (
                "linalg_inv_ex", "inverse", "linalg_cholesky_ex", "cholesky", "_linalg_svd", "_linalg_eigh",
                "linalg_eig", "linalg_qr", "_linalg_det", "_linalg_slogdet", "linalg_lu_factor_ex", "linalg_lu",
                "linalg_matrix_exp", "matrix_exp", "linalg_ldl_factor_ex", "geqrf",
            )
            for tensor in (SPD, SPD[0])
        ),
        call(aten.cholesky_inverse.default, lower),
        call(aten.linalg_householder_product.default, reflections, tau),
        call(aten.linalg_cross.default, floats(3, 3, 3), floats(3, 3, 3, seed=1)),
        call(aten.linalg_cross.default, floats(3, 3, 3), floats(3, 3, 3, seed=1), dim=0),
        call(aten.linalg_cross.default, floats(2, 2, 3), floats(1, 2, 3, seed=1)),
        call(aten._linalg_solve_ex.default, SPD, CUBE),
        call(aten._linalg_solve_ex.default, SPD, SQUARE),
        call(aten._linalg_solve_ex.default, SPD[:, None], SQUARE[:, None]),
        call(aten._linalg_solve_ex.default, SPD[0], SQUARE),
        call(aten._linalg_solve_ex.default, wide + 4 * torch.eye(4), floats(2, 4, 4)),
        call(aten.linalg_solve_triangular.default, lower, CUBE, upper=False),
        call(aten.linalg_solve_triangular.default, lower[0], CUBE, upper=False),
        call(aten.cholesky_solve.default, CUBE, lower),
        call(aten.triangular_solve.default, CUBE, lower, False),
        call(aten.linalg_lu_solve.default, lu, pivots, CUBE),
        call(aten.ormqr.default, reflections, tau, CUBE),
    ]  # fmt: skip


def _attention() -> list[Sample]:
    q, k, v = (floats(2, 2, 4, 4, seed=seed) for seed in range(3))
    mask = floats(2, 1, 4, 4)
    return [
        call(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v),
        call(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, 0.0, False, attn_mask=mask),
        call(aten._scaled_dot_product_attention_math.default, q, k, v, mask),
        call(aten._scaled_dot_product_attention_math.default, q, k, v, SQUARE),
        call(aten._scaled_dot_product_attention_math.default, q, k, v, None, 0.5),
        call(aten._scaled_dot_product_attention_math.default, q[0], k[0], v[0]),
    ]


def _norms() -> list[Sample]:
    mean, var, scale = torch.zeros(4), torch.ones(4), floats(4)
    running = [call(op, IMAGE, scale, None, mean, var, trains, 0.1, 1e-5) for op in (
        aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
    ) for trains in (True, False)]  # fmt: skip
    return [
        *running,
        call(aten.native_layer_norm.default, CUBE, [4], scale, None, 1e-5),
        call(aten.native_layer_norm.default, CUBE, [4, 4], None, None, 1e-5),
        call(aten._fused_rms_norm.default, CUBE, [4], scale, 1e-5),
        call(aten.native_group_norm.default, IMAGE, scale, None, 4, 4, 16, 2, 1e-5),
        call(aten._native_batch_norm_legit.no_stats, IMAGE, scale, None, True, 0.1, 1e-5),
        call(aten._native_batch_norm_legit_no_training.default, IMAGE, scale, None, mean, var, 0.1, 1e-5),
        call(aten._batch_norm_with_update.default, IMAGE, scale, None, mean, var, 0.1, 1e-5),
        call(aten._batch_norm_no_update.default, IMAGE, scale, None, mean, var, 0.1, 1e-5),
        call(aten._batch_norm_impl_index.default, IMAGE, scale, None, mean, var, True, 0.1, 1e-5, False),
        call(aten._batch_norm_impl_index.default, IMAGE, scale, None, mean, var, False, 0.1, 1e-5, False),
        call(aten._native_batch_norm_legit_functional.default, IMAGE, scale, None, mean, var, True, 0.1, 1e-5),
        call(aten.batch_norm_update_stats.default, IMAGE, mean, var, 0.1),
    ]


def _filters() -> list[Sample]:
    def conv(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, *, transposed: bool = False) -> list[Sample]:
        num = x.dim() - 2
        plain = ([1] * num, [1] * num, [1] * num, transposed, [0] * num, groups)
        return [
            call(aten.convolution.default, x, weight, bias, *plain),
            call(aten._convolution.default, x, weight, bias, *plain, False, False, True, True),
        ]

    return [
        *conv(SOUND, floats(4, 4, 3), floats(4), 1),
        *conv(SOUND, floats(4, 2, 3), None, 2),
        *conv(SOUND, floats(8, 1, 3), floats(8), 4),
        *conv(SOUND, floats(4, 2, 3), None, 2, transposed=True),
        *conv(SOUND, floats(4, 4, 3), floats(4), 1, transposed=True),
        *conv(IMAGE, floats(4, 4, 3, 3), floats(4), 1),
        call(aten.unfold.default, CUBE, 0, 2, 1),
        call(aten.unfold.default, CUBE, 1, 2, 2),
        call(aten.im2col.default, IMAGE, [2, 2], [1, 1], [0, 0], [2, 2]),
        call(aten.im2col.default, CUBE, [2, 2], [1, 1], [0, 0], [2, 2]),
        call(aten.col2im.default, floats(4, 16, 4), [4, 4], [2, 2], [1, 1], [0, 0], [2, 2]),
        call(aten.pixel_shuffle.default, IMAGE, 2),
        call(aten.pixel_unshuffle.default, IMAGE, 2),
        call(aten.channel_shuffle.default, IMAGE, 2),
        call(aten.channel_shuffle.default, CUBE, 2),
        call(aten.native_channel_shuffle.default, IMAGE, 2),
        call(aten.grid_sampler_2d.default, PIXELS, floats(2, 4, 4, 2), 0, 0, False),
        call(aten.grid_sampler_3d.default, HUGE, floats(2, 4, 4, 4, 3), 0, 0, False),
        call(aten.affine_grid_generator.default, floats(2, 2, 3), [2, 1, 4, 4], False),
        call(aten.constant_pad_nd.default, CUBE, [1, 1]),
        call(aten.constant_pad_nd.default, CUBE, [0, 0, 0, 0, 1, 1]),
        call(aten.constant_pad_nd.default, CUBE, [0, 0, -1, 1]),
        *(call(getattr(aten, name).default, tensor) for name in ("tril", "triu", "tril_", "triu_")
          for tensor in (CUBE, SQUARE)),
    ]  # fmt: skip


def _cells() -> list[Sample]:
    weights = [floats(16, 4), floats(16, 4, seed=1), floats(16), floats(16, seed=1)]
    state = floats(1, 4, 4), floats(1, 4, 4, seed=1)
    rest = (False, [], 2, 4, 1, True, False, False, False)
    lstm = (floats(4, 4), floats(4, 4, seed=1), floats(4, 1), floats(4), floats(4, seed=1))
    gru = (floats(3, 3), floats(3, 3, seed=1), floats(3, 1), floats(3), floats(3, seed=1))
    return [
        Sample(operation=aten._thnn_fused_lstm_cell.default, args=lstm, stand_in=lstm_cell),
        Sample(operation=aten._thnn_fused_gru_cell.default, args=gru, stand_in=gru_cell),
        call(aten.mkldnn_rnn_layer.default, CUBE, *weights, *state, *rest),
        call(aten._cdist_forward.default, CUBE, floats(4, 4, 4, seed=1), 2.0, 0),
        call(aten._cdist_forward.default, SQUARE, floats(4, 4, seed=1), 2.0, 0),
        call(aten._euclidean_dist.default, SQUARE, floats(4, 4, seed=1)),
        call(aten._euclidean_dist.default, CUBE, floats(4, 4, 4, seed=1)),
    ]


CALLS: tuple[Sample, ...] = (
    *_losses(), *_pools(), *_matrices(), *_attention(), *_norms(), *_filters(), *_cells(),
)  # fmt: skip
