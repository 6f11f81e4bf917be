"""Measures one architecture: a private session's clipped sum against a loop of single examples in plain torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import privet as pv
from privet.errors import PrivetError
from tests.isolation.architecture import Architecture, Batch, Built, Loss

# How far rounding may move a sum, as a share of its length: where all is computed in double precision, and where a
# model insists on single precision somewhere.
_TOLERANCE, _ROUGH_TOLERANCE = 1e-5, 2e-3
_EXAMPLES = 4


class Result(Enum):
    """What became of an architecture."""

    EXACT = "exact"
    MIXES = "refused, and it mixes its examples or draws for them by place"
    REFUSED = "refused, though each example has a gradient of its own"
    WRONG = "wrong"
    CRASHED = "crashed"


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The finding about one architecture.

    Attributes:
        name: Of the architecture.
        result: What became of it.
        message: The refusal or the error; empty if the sum is exact.
        error: The relative error of the sum.
        frozen: Parameters that take no part in the loss, which were frozen first.
        is_proven: Whether rules proved that the examples stay apart.
    """

    name: str
    result: Result
    message: str = ""
    error: float = float("nan")
    frozen: tuple[str, ...] = ()
    is_proven: bool = False


def measure(row: Architecture, *, num_examples: int = _EXAMPLES) -> Coverage:
    """Train one private step without noise and compare its clipped sum."""
    torch.manual_seed(0)
    model, make_batch, loss = quiet(row.build())
    batch = dict(make_batch(num_examples))
    with stillness():
        return _measured(row.name, model, batch, loss)


def _measured(name: str, model: nn.Module, batch: dict[str, Tensor], loss: Loss) -> Coverage:
    model, batch, tolerance = _in_double(model, batch, loss)
    frozen = freeze_idle(model, loss, batch)
    singles = _single_gradients(model, loss, batch)
    keeps_apart = keeps_examples_apart(model, loss, batch, tolerance)
    singles = [gradient for gradient in singles if bool(gradient.isfinite().all())]  # the others add zero
    norms = sorted(norm for gradient in singles if (norm := float(gradient.norm())) > 0)
    bound = norms[len(norms) // 2] if norms else 1.0
    expected = sum(gradient * min(1.0, bound / max(float(gradient.norm()), 1e-300)) for gradient in singles)
    assert isinstance(expected, Tensor)
    evidence: list[bool] = []
    try:
        found = session_sum(model, loss, batch, bound, evidence)
    except PrivetError as error:
        result = Result.REFUSED if keeps_apart else Result.MIXES
        return Coverage(name=name, result=result, message=str(error), frozen=frozen)
    except Exception as error:  # noqa: BLE001 (whatever comes out is the finding)
        return Coverage(name=name, result=Result.CRASHED, message=f"{type(error).__name__}: {error}", frozen=frozen)
    error_of_sum = max(float((each - expected).norm() / expected.norm().clamp(min=1e-300)) for each in found)
    is_exact = keeps_apart and error_of_sum <= tolerance
    message = "" if keeps_apart else "accepted, though plain torch gives other losses or gradients in a batch"
    result = Result.EXACT if is_exact else Result.WRONG
    return Coverage(
        name=name, result=result, message=message, error=error_of_sum, frozen=frozen, is_proven=bool(evidence[-1])
    )


def quiet(built: Built) -> Built:
    """Turn randomness off, so that a batch and its single examples compute the same; the modules stay in training."""
    model, make_batch, loss = built
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or (name == "p" and isinstance(module, nn.Module))):
                setattr(module, name, 0.0)

    return model, make_batch, loss


@contextmanager
def stillness() -> Iterator[None]:
    """Give constants instead of random numbers: a batch draws others than its single examples."""

    def same(*given: Any, **named: Any) -> Tensor:
        found: Tensor = given[0] if given else named["input"]
        return found

    def ones(*size: Any, **given: Any) -> Tensor:
        given.pop("generator", None)
        return torch.ones(*size, **given)

    def ones_like(like: Tensor, **given: Any) -> Tensor:
        given.pop("generator", None)
        return torch.ones_like(like, **given)

    def filled(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        return tensor.fill_(1)

    attention = nn.functional.scaled_dot_product_attention

    def without_dropout(*given: Any, **named: Any) -> Tensor:
        named.pop("dropout_p", None)
        found: Tensor = attention(*given[:4], *([0.0] if len(given) > 4 else []), *given[5:], **named)
        return found

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.functional, "scaled_dot_product_attention", without_dropout))
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
            stack.enter_context(mock.patch.object(nn.functional, name, same))
        for name, instead in (("randn", ones), ("rand", ones), ("randn_like", ones_like), ("rand_like", ones_like)):
            stack.enter_context(mock.patch.object(torch, name, instead))
        for name in ("bernoulli_", "normal_", "uniform_", "exponential_"):
            stack.enter_context(mock.patch.object(Tensor, name, filled))
        yield


def _in_double(model: nn.Module, batch: Batch, loss: Loss) -> tuple[nn.Module, dict[str, Tensor], float]:
    """Return model and batch in double precision where the program takes that, and the tolerance that fits."""
    state = copy.deepcopy(model.state_dict())
    double = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    model.double()
    try:
        losses = loss(double)
        if losses.dtype is torch.float64 and bool(_gradient(model, losses).isfinite().all()):
            return model, double, _TOLERANCE
    except (RuntimeError, TypeError, ValueError):
        pass
    model.float()
    model.load_state_dict(state)
    return model, dict(batch), _ROUGH_TOLERANCE


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [value for value in model.parameters() if value.requires_grad]


def freeze_idle(model: nn.Module, loss: Loss, batch: Batch) -> tuple[str, ...]:
    """Freeze the parameters that take no part in the loss, as privet asks; return their names."""
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    torch.manual_seed(1)
    found: Sequence[Tensor | None] = torch.autograd.grad(
        loss(batch).sum(), [value for _, value in named], allow_unused=True
    )
    idle = [(name, value) for (name, value), gradient in zip(named, found, strict=True) if gradient is None]
    for _, value in idle:
        value.requires_grad_(False)
    return tuple(name for name, _ in idle)


def rows_of(batch: Batch, start: int, stop: int) -> dict[str, Tensor]:
    """Return some examples of a batch."""
    return {name: value[start:stop] for name, value in batch.items()}


def _gradient(model: nn.Module, losses: Tensor) -> Tensor:
    parameters = _trainable(model)
    found: Sequence[Tensor | None] = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return torch.cat([gradient.detach().reshape(-1).double() for gradient in filled])


def _single_gradients(model: nn.Module, loss: Loss, batch: Batch) -> list[Tensor]:
    size = len(next(iter(batch.values())))
    gradients = []
    for place in range(size):
        torch.manual_seed(1)
        gradients.append(_gradient(model, loss(rows_of(batch, place, place + 1))))
    return gradients


def keeps_examples_apart(model: nn.Module, loss: Loss, batch: Batch, tolerance: float) -> bool:
    """Whether plain torch gives a batch the losses of its single examples, and their sum the sum of gradients."""
    size = len(next(iter(batch.values())))
    torch.manual_seed(1)
    together = loss(batch)
    apart = []
    for place in range(size):
        torch.manual_seed(1)
        apart.append(loss(rows_of(batch, place, place + 1)))
    losses = torch.cat(apart)
    if losses.shape != together.shape or not torch.allclose(
        losses, together, rtol=10 * tolerance, atol=tolerance, equal_nan=True
    ):
        return False
    is_sound = losses.isfinite()
    one, other = _gradient(model, together[is_sound]), _gradient(model, losses[is_sound])
    return bool((one - other).norm() <= 10 * tolerance * other.norm())


class _Rows:
    """The examples of a batch as a data set."""

    def __init__(self, batch: Mapping[str, Tensor]) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(next(iter(self._batch.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[index] for name, value in self._batch.items()}


def session_sum(model: nn.Module, loss: Loss, batch: Batch, bound: float, evidence: list[bool]) -> list[Tensor]:
    """Return the clipped sums of two full-batch steps at the same weights; note whether the program was proven.

    In the second step the program is recognised.
    """
    optimizer = torch.optim.SGD(_trainable(model), lr=0.0)
    size = len(next(iter(batch.values())))
    plan = pv.Plan(
        sampling=pv.sampling.FullBatch(steps=2, expected_batch_size=size),
        clipping=pv.clipping.Threshold(norm=bound),
        noise=pv.noise.Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    )
    found: list[Tensor] = []
    with pv.privatize(model, optimizer, _Rows(batch), plan, seed=0) as session:
        for step in session.steps():
            step.accumulate(loss)
            found.append(step._clipped.flat.detach().clone().double())
            step.update()
        evidence.append(not session._run.summation.watch.has_tried)
    return found
