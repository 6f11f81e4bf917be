"""Compare every kernel with plain torch; run as a script, on a GPU or with TRITON_INTERPRET=1 set."""

from __future__ import annotations

import torch

from privet.gradients.forms.by_rows import RowLengths, unit_directions
from privet.gradients.forms.per_example import ConvGeometry, Convolution, Outer
from privet.gradients.norms import kernels
from privet.gradients.norms.conv_strategies import ConvKernel
from privet.gradients.norms.strategies import Gram, GramKernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONVOLUTIONS = [
    # channels in, out, size, kernel, stride, padding, dilation, groups
    (1, 16, 12, 4, 2, 1, 1, 1),
    (3, 20, 9, 3, 1, 1, 1, 1),
    (8, 8, 7, 3, 1, 1, 2, 1),
    (8, 12, 6, 3, 1, 0, 1, 4),
    (6, 6, 6, 3, 2, 1, 1, 6),
    (40, 70, 4, 3, 1, 1, 1, 1),
    (17, 33, 5, 3, 1, 1, 1, 1),
    (70, 20, 6, 3, 1, 1, 1, 1),
]


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-6) -> None:
    error = float((found.double() - expected.double()).norm() / expected.double().norm())
    assert error <= tolerance, f"relative error {error}"


def main() -> None:
    """Check all kernels on ragged shapes."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    for length, width_in, width_out in ((5, 7, 9), (70, 40, 33), (33, 64, 100), (130, 96, 65), (256, 300, 270)):
        part = Outer(
            inputs=torch.randn(3, length, width_in, device=DEVICE),
            out_grads=torch.randn(3, length, width_out, device=DEVICE),
        )
        full = part.in_full().double().square().sum((1, 2))
        for block in (64, 128):
            close(GramKernel(block=block).measure(part)[0].safe(), full)
        for halvings in (0, 1, 2):
            if length % 2**halvings == 0:
                close(Gram(halvings=halvings).measure(part)[0].safe(), full)
    for channels, out, size, kernel, stride, padding, dilation, groups in CONVOLUTIONS:
        inputs = torch.randn(3, channels, size, size, device=DEVICE)
        weight = torch.randn(out, channels // groups, kernel, kernel, device=DEVICE)
        output = torch.nn.functional.conv2d(inputs, weight, None, stride, padding, dilation, groups)
        geometry = ConvGeometry(
            weight_shape=tuple(weight.shape), stride=(stride,) * 2, padding=(padding,) * 2, dilation=(dilation,) * 2,
            groups=groups,
        )  # fmt: skip
        convolution = Convolution(inputs=inputs, out_grads=torch.randn_like(output), geometry=geometry)
        truth = Convolution(
            inputs=inputs.double(), out_grads=convolution.out_grads.double(), geometry=geometry
        ).in_full()
        # the three images as views of one example
        views = Convolution(inputs=inputs, out_grads=convolution.out_grads, geometry=geometry, views=3)
        for store in (True, False):
            squares, kept = ConvKernel(store=store).measure(views)
            close(squares.safe(), truth.sum(0, keepdim=True).square().flatten(1).sum(1))
            close(kept.in_full(), truth.sum(0, keepdim=True))
            squares, kept = ConvKernel(store=store).measure(convolution)
            close(squares.safe(), truth.square().flatten(1).sum(1))
            if store:
                close(kept.in_full(), truth)
            weights, into = torch.rand(3, device=DEVICE), torch.zeros(truth.shape[1:], device=DEVICE)
            kept.add_weighted_sum(weights, into)
            close(into, torch.tensordot(weights.double(), truth, dims=1))
    check_affine()
    check_scaling()
    check_clearing()
    check_row_squares()
    print("all kernels agree")


def check_affine() -> None:
    """Layer-norm and group-norm sums."""
    x, g = torch.randn(3, 37, 130, device=DEVICE), torch.randn(3, 37, 130, device=DEVICE)
    mean, rstd = x.mean(2), x.var(2, unbiased=False).add(1e-5).rsqrt()
    scale, shift = kernels.row_affine_sums(x, mean, rstd, g)
    close(scale, (g * (x - mean[..., None]) * rstd[..., None]).sum(1))
    close(shift, g.sum(1))
    x, g = torch.randn(3, 12, 50, device=DEVICE), torch.randn(3, 12, 50, device=DEVICE)
    grouped = x.view(3, 4, -1)
    mean, rstd = grouped.mean(2), grouped.var(2, unbiased=False).add(1e-5).rsqrt()
    scale, shift = kernels.channel_affine_sums(x, mean, rstd, g, 4)
    normalised = ((grouped - mean[..., None]) * rstd[..., None]).view_as(x)
    close(scale, (g * normalised).sum(2))
    close(shift, g.sum(2))


def check_scaling() -> None:
    """Rows times weights, rounded once; a row that does not count is zero whatever is in it."""
    for shape in ((3, 5), (4, 7, 300), (2, 3, 50, 50)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            rows, weights = torch.randn(shape, device=DEVICE).to(dtype), torch.rand(shape[0], 2, device=DEVICE)[:, 1]
            rows[0], weights[0] = torch.nan, 0.0
            product = rows.double() * weights.double().view(-1, *[1] * (rows.dim() - 1))
            product[0] = 0.0
            for into in {dtype, torch.float32}:
                found = kernels.scaled_rows(rows, weights, into)
                assert found.dtype == into
                # the interpreter cuts where devices round
                allowed = product.abs() * torch.finfo(into).eps + torch.finfo(into).tiny
                assert bool(((found.double() - product).abs() <= allowed).all()), f"{shape}, {dtype} to {into}"


def check_row_squares() -> None:
    """Squares of rows after a way back, of gradients as they are written and with their channels last."""
    for rows, channels, taps in ((5, 7, 9), (3, 16, 1), (4, 130, 9)):
        lying = torch.randn(3, 3, taps // 3, rows, channels, device=DEVICE) if taps > 1 else None
        for gradients in (torch.randn(3, rows, channels, taps, device=DEVICE), lying):
            if gradients is None:
                continue
            gradients = gradients.permute(0, 3, 4, 1, 2) if gradients is lying else gradients
            direction = unit_directions(torch.randn(rows, channels * taps, device=DEVICE), rows)
            coefficients = torch.rand(rows, 4, device=DEVICE) + 1
            found = kernels.row_squares(gradients, direction, coefficients).sum(1)
            wanted = RowLengths(direction=direction.double(), coefficients=coefficients.double())
            close(found, wanted.square_sums(gradients.double()))


def check_clearing() -> None:
    """Marked rows become zero, whatever is in them; the others stay as they are."""
    for shape in ((3, 5), (4, 7, 300), (5, 3, 50, 50)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            rows = torch.randn(shape, device=DEVICE).to(dtype)
            marked = torch.arange(shape[0], device=DEVICE) % 2 == 0
            rows[0] = torch.nan
            wanted = torch.where(marked.view(-1, *[1] * (rows.dim() - 1)), 0.0, rows)
            kernels.clear_rows(rows, marked)
            assert torch.equal(rows, wanted), f"{shape}, {dtype}"


if __name__ == "__main__":
    main()
