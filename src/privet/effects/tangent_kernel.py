"""Clipping and convergence: the neural tangent kernel of a model, with and without clipping.

Under gradient flow the training loss changes by ``dL/dt = -(dL/df)^T A (dL/df)``, where ``A`` is the tangent kernel
``H = (df/dw)(df/dw)^T`` without clipping and ``sum_r H_r C_r`` with clipping: ``H_r`` is the part of parameter group
``r``, and ``C_r`` is the diagonal matrix of the clipping factors (Bu et al., "On the convergence and calibration of
deep learning with differential privacy", equations 2.1 and 4.3). The loss decreases for all labels exactly if the
quadratic form of ``A`` is positive, and if ``A`` is regular, its stationary points are those with a zero gradient by
the outputs. Clipping by a threshold violates the first condition, and per-layer clipping can violate the second.

Not private: all results are exact functions of the examples. Use public data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from privet.errors import ArgumentError, UnsupportedModel
from privet.gradients.engines.single_examples import single_example_function
from privet.gradients.engines.support import quiet_vmap
from privet.mechanism.clipping import Clipping
from privet.mechanism.grouping import Grouping, OneGroup
from privet.mechanism.layout import Layout

Losses = Callable[[Tensor, Tensor], Tensor]
# Rounding of a product of float64 matrices, relative to the largest eigenvalue.
TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixProperties:
    """Properties of a square matrix that decide convergence.

    Attributes:
        asymmetry: Frobenius norm of ``A - A^T`` over that of ``A``; zero for a symmetric matrix.
        least_quadratic: The smallest ``x^T A x`` over unit vectors.
        least_eigenvalue: The smallest real part of an eigenvalue.
        largest: The spectral norm, the scale of the tolerance.
    """

    asymmetry: float
    least_quadratic: float
    least_eigenvalue: float
    largest: float

    @property
    def is_symmetric(self) -> bool:
        """Whether the matrix equals its transpose."""
        return self.asymmetry <= TOLERANCE

    @property
    def is_positive_in_quadratic_form(self) -> bool:
        """Whether the quadratic form is non-negative: the loss increases for no labels."""
        return self.least_quadratic >= -TOLERANCE * self.largest

    @property
    def is_positive_in_eigenvalues(self) -> bool:
        """Whether no eigenvalue has a negative real part."""
        return self.least_eigenvalue >= -TOLERANCE * self.largest


def matrix_properties(matrix: Tensor) -> MatrixProperties:
    """Measure a square matrix in double precision.

    Edge cases: the zero matrix is symmetric and positive in both senses; NaN and infinite entries are refused.
    """
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ArgumentError(f"A kernel matrix must be square and not empty, got the shape {tuple(matrix.shape)}.")
    exact = matrix.detach().double()
    if not bool(exact.isfinite().all()):
        raise ArgumentError("The matrix has entries that are not finite numbers. Use examples with finite gradients.")
    length = float(exact.norm())
    return MatrixProperties(
        asymmetry=float((exact - exact.mT).norm()) / length if length else 0.0,
        least_quadratic=float(torch.linalg.eigvalsh((exact + exact.mT) / 2)[0]),
        least_eigenvalue=float(torch.linalg.eigvals(exact).real.min()),
        largest=float(torch.linalg.matrix_norm(exact, 2)),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TangentKernel:
    """The tangent kernel of a model on a batch, split by parameter group.

    Attributes:
        parts: One matrix per group, ``[groups, examples * outputs, examples * outputs]``; their sum is ``H``.
        output_gradients: The derivative of each example's loss by its outputs, ``[examples, outputs]``.
    """

    parts: Tensor
    output_gradients: Tensor

    @property
    def whole(self) -> Tensor:
        """``H``: the kernel of all parameters together."""
        return self.parts.sum(0)

    @cached_property
    def gradient_norms(self) -> Tensor:
        """Norm of each example's loss gradient in each group, ``[examples, groups]``."""
        examples, outputs = self.output_gradients.shape
        blocks = self.parts.reshape(-1, examples, outputs, examples, outputs)
        own = torch.diagonal(blocks, dim1=1, dim2=3)  # [groups, outputs, outputs, examples]
        squares = torch.einsum("nk,gkln,nl->ng", self.output_gradients, own, self.output_gradients)
        return squares.clamp_min(0).sqrt()

    def clipped(self, factors: Tensor) -> Tensor:
        """Return ``sum_r H_r C_r`` for factors ``[examples, groups]``; factors of one give ``H``."""
        if factors.shape != self.gradient_norms.shape:
            raise ArgumentError(
                f"factors must have one row per example and one column per group, {tuple(self.gradient_norms.shape)}; "
                f"got {tuple(factors.shape)}."
            )
        columns = factors.to(self.parts).repeat_interleave(self.output_gradients.shape[1], 0)
        return torch.einsum("gij,jg->ij", self.parts, columns)

    def loss_derivative(self, matrix: Tensor) -> float:
        """Return ``dL/dt`` of the mean loss under the gradient flow that ``matrix`` describes."""
        gradient = self.output_gradients.flatten() / len(self.output_gradients)
        return -float(gradient @ matrix @ gradient)


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelReport:
    """The effect of one clipping rule on the kernel of one batch.

    Attributes:
        properties: Properties of the matrix ``A``.
        loss_derivative: Initial derivative of the mean loss by time.
        dropped_share: Fraction of examples with a factor of zero in some group.
        scaled_alike: Whether all examples of a group have the same factor, so that clipping only scales the learning
            rate.
    """

    properties: MatrixProperties
    loss_derivative: float
    dropped_share: float
    scaled_alike: bool


def neural_tangent_kernel(
    model: nn.Module, inputs: Tensor, targets: Tensor, losses: Losses, *, grouping: Grouping | None = None
) -> TangentKernel:
    """Compute the kernel of a model on a batch, in double precision and one part per clipping group.

    Memory grows with examples times outputs times parameters: use small networks and a few hundred examples.

    Args:
        model: A module without interaction between examples. It is copied, not changed.
        inputs: The examples.
        targets: Targets of ``losses``.
        losses: Maps outputs and targets to one loss per example.
        grouping: The clipping groups; one group by default.

    Raises:
        UnsupportedModel: the model does not run on single examples.
    """
    exact = copy.deepcopy(model).double()
    named, outputs_of = single_example_function(exact)
    layout = Layout.of([(name, tuple(value.shape)) for name, value in named.items()], grouping or OneGroup())
    examples = inputs.detach().double() if inputs.is_floating_point() else inputs

    def flat_outputs(parameters: dict[str, Tensor], example: Tensor) -> Tensor:
        return outputs_of(parameters, example).flatten()

    try:
        with quiet_vmap():
            slopes = torch.func.vmap(
                torch.func.jacrev(flat_outputs),
                in_dims=(None, 0),
            )(named, examples)
    except (RuntimeError, ValueError) as error:
        raise UnsupportedModel(
            f"The kernel needs the outputs of one example at a time: {str(error).splitlines()[0]} Put random layers "
            "(dropout) into eval(), and use layers without interaction between examples."
        ) from error
    parts = [torch.zeros((), dtype=torch.float64)] * layout.num_groups
    for name, group in zip(layout.names, layout.groups, strict=True):
        rows = slopes[name].flatten(2).flatten(0, 1)
        parts[group] = parts[group].to(rows.device) + rows @ rows.mT
    return TangentKernel(parts=torch.stack(parts), output_gradients=_output_gradients(exact, examples, targets, losses))


def _output_gradients(model: nn.Module, examples: Tensor, targets: Tensor, losses: Losses) -> Tensor:
    with torch.no_grad():
        outputs = model(examples)
    leaf = outputs.detach().requires_grad_()
    wanted = targets.double() if targets.is_floating_point() else targets
    each = losses(leaf, wanted)
    if each.shape != (len(examples),):
        raise ArgumentError(f"losses must give one number per example, got the shape {tuple(each.shape)}.")
    gradients: Tensor = torch.autograd.grad(each.sum(), leaf)[0]
    return gradients.reshape(len(examples), -1)


def kernel_report(kernel: TangentKernel, clipping: Clipping | None) -> KernelReport:
    """Return the effect of a clipping rule on a kernel; None is training without clipping."""
    norms = kernel.gradient_norms
    factors = torch.ones_like(norms) if clipping is None else clipping.for_groups(norms.shape[1]).factors(norms)
    matrix = kernel.clipped(factors)
    return KernelReport(
        properties=matrix_properties(matrix),
        loss_derivative=kernel.loss_derivative(matrix),
        dropped_share=float((factors == 0).any(1).double().mean()),
        scaled_alike=bool((factors == factors[:1]).all()),
    )
