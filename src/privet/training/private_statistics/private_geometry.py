"""Units for shaped clipping and noise, from public examples or from a separate private release.

Both measure the size of per-example gradients in every row and column of the parameters. The release clips every
example, adds Gaussian noise to the sums of squares, and charges a separate ledger; the total guarantee is that of the
composition of both ledgers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from privet import checks
from privet.accounting.ledger import Ledger
from privet.errors import DataError, PrivetError, UnsupportedModel
from privet.gradients.engines.support import check_model, quiet_vmap
from privet.mechanism.events import DpEvent, gaussian_event
from privet.mechanism.geometry import Factored
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.second_moments import DEFAULT_FLOOR, axis_sizes, factored_geometry, split_axis_sums
from privet.training.distributed.shared_release import SharedRelease
from privet.training.release import BoundedTensors, ChargedRelease, Part
from privet.training.trained import trainable_parameters

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Losses = Callable[[Tensor, Tensor], Tensor]
_CHUNK = 64


def public_geometry(
    model: nn.Module,
    losses: Losses,
    features: Tensor,
    labels: Tensor,
    *,
    power: float,
    floor: float = DEFAULT_FLOOR,
) -> Factored:
    """Return units from public examples. Nothing is charged, so no private example may be among them.

    Args:
        model: The model before training.
        losses: A function from outputs and labels to one loss per example.
        features: Features of the public examples.
        labels: Labels of the public examples.
        power: 1/4 for plain steps, 1/2 for steps preconditioned with power 1.
        floor: Lower limit of the second moment of a row or column, relative to the mean.
    """
    layout = _layout(model)
    total = sum(_axis_sums(layout, rows) for rows in _gradients(model, losses, features, labels))
    if isinstance(total, int):
        raise DataError("public_geometry() needs at least one public example.")
    return factored_geometry(layout, split_axis_sums(layout, total.cpu().numpy()), power=power, floor=floor)


def geometry_event(noise_multiplier: float) -> DpEvent:
    """Return the cost of :func:`release_geometry`, for calibration together with a plan."""
    return gaussian_event(bounds=(1.0,), stds=(checks.positive("noise_multiplier", noise_multiplier),))


def release_geometry(
    model: nn.Module,
    losses: Losses,
    features: Tensor,
    labels: Tensor,
    *,
    norm: float,
    noise_multiplier: float,
    power: float,
    floor: float = DEFAULT_FLOOR,
    ledger: Ledger | None = None,
    seed: int | None = None,
    group: ProcessGroup | DeviceMesh | None = None,
) -> tuple[Factored, Ledger]:
    """Charge a round, and release units from the private examples with noise.

    Args:
        model: The model before training.
        losses: A function from outputs and labels to one loss per example.
        features: Features of all private examples, one row per unit of privacy.
        labels: Labels of the same examples.
        norm: Bound on the norm of a per-example gradient.
        noise_multiplier: Ratio of the noise to the sensitivity of the sums of squares.
        power: 1/4 for plain steps, 1/2 for steps preconditioned with power 1.
        floor: Lower limit of the second moment of a row or column, relative to the mean.
        ledger: The ledger to charge; a new one in memory by default.
        seed: Makes the release repeatable and NOT PRIVATE; for tests and studies on public data.
        group: As for ``privatize``: the processes that release together, each of them with all examples.

    Guarantee:
        The sums of squares of a gradient of norm at most ``norm`` total at most ``norm^2`` over the rows, and the same
        over the columns, so one added or removed example changes the vector of all sums by at most ``sqrt(2) * norm^2``
        in l2 norm. Every sum gets Gaussian noise of ``noise_multiplier`` times that. The round is charged before any
        example is read. An example whose gradient is not finite counts as zero. All later computation is
        post-processing.
    """
    layout = _layout(model)
    bound = math.sqrt(2) * checks.positive("norm", norm) ** 2
    event = geometry_event(noise_multiplier)
    settings = f"release_geometry norm={norm!r} noise_multiplier={noise_multiplier!r} power={power!r} floor={floor!r}"
    shared, device = SharedRelease.of(group), next(model.parameters()).device
    kept = ledger or shared.ledger(hashlib.sha256(f"{settings} {layout!r}".encode()).hexdigest())
    std = noise_multiplier * bound
    with shared.together(), ChargedRelease[tuple[Tensor, ...]](shared.ledger_of_ranks(kept), event) as release:
        held = {**dict(model.named_parameters()), "features": features, "labels": labels}
        source = shared.source(device, torch.float64, seed=seed, data=held)
        own = shared.part(features), shared.part(labels)
        total = shared.add_up_(_clipped_axis_sums(model, losses, *own, layout=layout, norm=norm))
        release.add_noise_and_compare(BoundedTensors(parts=[Part(values=total, std=std)], bound=bound, source=source))
    # a sum below the noise is raised to the noise's standard deviation
    released = np.maximum(total.cpu().numpy(), std)
    return factored_geometry(layout, split_axis_sums(layout, released), power=power, floor=floor), kept


def _clipped_axis_sums(
    model: nn.Module, losses: Losses, features: Tensor, labels: Tensor, *, layout: Layout, norm: float
) -> Tensor:
    """Return the sums of squares of gradients clipped to ``norm``. Secret."""
    size = sum(rows + columns for rows, columns in axis_sizes(layout))
    total = torch.zeros(size, dtype=torch.float64, device=next(model.parameters()).device)
    for rows in _gradients(model, losses, features, labels):
        lengths = rows.norm(dim=1)
        factors = (norm / lengths).clamp(max=1.0).masked_fill(~lengths.isfinite(), 0.0)
        total += _axis_sums(layout, torch.where(lengths.isfinite()[:, None], rows, 0.0) * factors[:, None])
    return total


def _layout(model: nn.Module) -> Layout:
    check_model(model)
    return Layout.of([(name, tuple(value.shape)) for name, value in trainable_parameters(model)], OneGroup())


def _gradients(model: nn.Module, losses: Losses, features: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """Yield flat per-example gradients, a chunk of examples at a time."""
    named = {name: value.detach() for name, value in trainable_parameters(model)}
    rest = {name: value.detach() for name, value in model.named_parameters() if name not in named}
    rest |= dict(model.named_buffers())

    def loss_of(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, {**rest, **parameters}, (one.unsqueeze(0),))
        return losses(outputs, label.unsqueeze(0)).sum()

    gradient = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0), randomness="different")
    for start in range(0, len(features), _CHUNK):
        part = slice(start, start + _CHUNK)
        try:
            with quiet_vmap():
                found = gradient(named, features[part], labels[part])
        except PrivetError:
            raise
        except (RuntimeError, ValueError) as error:
            raise UnsupportedModel(
                f"The model does not run under vmap, one example at a time: {str(error).splitlines()[0]} Measure units "
                "on a model that does, or use units from released gradients."
            ) from error
        yield torch.cat([found[name].flatten(1) for name in named], 1).double()


def _axis_sums(layout: Layout, rows: Tensor) -> Tensor:
    """Return the sums of squares over all examples, by row and by column of every parameter, in one vector."""
    squares = rows.square().sum(0)
    parts = []
    for where, shape in zip(layout.slices, layout.shapes, strict=True):
        values = squares[where].view(shape if shape else (1,))
        parts.append(values.reshape(len(values), -1).sum(1))
        if len(shape) > 1:
            parts.append(values.reshape(shape[0], shape[1], -1).sum((0, 2)))
    return torch.cat(parts)
