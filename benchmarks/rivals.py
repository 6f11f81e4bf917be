"""Other libraries for differentially private training, used according to their documentation.

A library is imported when its contender is set up, so a missing library fails alone, with the reason. Where the
documentation of a library requires changes of the model (its own LSTM, no in-place activations), they are made here, so
that its speed can be compared.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.contenders import Contender, Option, Role, Running, Settings, device_of, trained_parameters
from benchmarks.models import Batch, losses_of
from benchmarks.public import Logits

_DPLSTM_NAMES = {
    "l0.ih.weight": "weight_ih_l0",
    "l0.hh.weight": "weight_hh_l0",
    "l0.ih.bias": "bias_ih_l0",
    "l0.hh.bias": "bias_hh_l0",
}


class MeanLoss(nn.Module):
    """The benchmark's loss as a criterion with the ``reduction`` switch that Opacus expects."""

    reduction = "mean"

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean, or one loss per example while ``reduction`` is "none"."""
        losses = losses_of(outputs, labels)
        return losses if self.reduction == "none" else losses.mean()


@dataclass(frozen=True, kw_only=True)
class Opacus:
    """Opacus's ``PrivacyEngine`` with one of its per-example modes; flat clipping.

    Its loader is left out, which draws batches by Poisson sampling: the library is timed without that cost.

    Attributes:
        mode: "hooks", "functorch", "ew" or "ghost", the library's own names.
    """

    name: str
    mode: str
    role: Role = Role.RIVAL
    option: Option = Option.EAGER
    noise_dtype: str = "float32"

    def setup(self, model: nn.Module, settings: Settings) -> Running:
        """Wrap model and optimizer."""
        return RunningOpacus(_fit_for_opacus(model), settings, self.mode)


def spelled_out(model: nn.Module) -> nn.Module:
    """Let the model give its embeddings one row of ids for every example, where it would give them one for all."""
    for module in model.modules():
        if isinstance(module, Logits):
            module.spells_out = True
    return model


def _fit_for_opacus(model: nn.Module) -> nn.Module:
    """Replace LSTMs by the library's own and in-place activations by others; weights and device are unchanged."""
    for module in spelled_out(model).modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    if not any(isinstance(module, nn.LSTM) for module in model.modules()):
        return model
    validators = importlib.import_module("opacus.validators")
    device, dtype = device_of(model), next(model.parameters()).dtype
    fixed: nn.Module = validators.ModuleValidator.fix(model)
    return fixed.to(device, dtype).train()


class RunningOpacus:
    """:class:`Opacus` bound to a model."""

    def __init__(self, model: nn.Module, settings: Settings, mode: str) -> None:
        library = importlib.import_module("opacus")
        self._settings, self._device = settings, device_of(model)
        self._inner = model
        # The engine asks the loader only for its numbers; the batches come from device memory, as everyone's do.
        numbers = DataLoader(TensorDataset(torch.zeros(settings.logical_batch)), batch_size=settings.logical_batch)
        made = library.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(trained_parameters(model), lr=settings.learning_rate),
            criterion=MeanLoss(),
            data_loader=numbers,
            noise_multiplier=settings.noise_multiplier,
            max_grad_norm=settings.clip_norm,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        self._module: Any = made[0]
        self._optimizer: Any = made[1]
        self._criterion: Any = made[2] if mode == "ghost" else MeanLoss()

    def _backward(self, batch: Batch) -> None:
        inputs, labels = batch
        with self._settings.precision(self._device):
            loss = self._criterion(self._module(inputs), labels)
        loss.backward()

    def step(self, parts: Sequence[Batch]) -> None:
        """Accumulate all parts but the last without an update, as the library's memory manager does."""
        for place, part in enumerate(parts):
            self._optimizer.signal_skip_step(do_skip=place < len(parts) - 1)
            self._backward(part)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def clipped_sum(self, batch: Batch) -> Mapping[str, Tensor]:
        """Take the gradient that would be given to the plain optimizer, without noise, times the batch size."""
        self._backward(batch)
        self._optimizer.pre_step()
        size = self._settings.logical_batch
        named = self._inner.named_parameters()
        found = {_original_name(name): value.grad * size for name, value in named if value.grad is not None}
        self._optimizer.zero_grad(set_to_none=True)
        return found

    def close(self) -> None:
        """Remove the hooks."""
        with contextlib.suppress(AttributeError, ValueError):
            self._module.remove_hooks()


def _original_name(name: str) -> str:
    for theirs, ours in _DPLSTM_NAMES.items():
        name = name.replace(theirs, ours)
    return name


class AccumulationNotSupported(RuntimeError):
    """The library's step takes one physical batch."""


@dataclass(frozen=True, kw_only=True)
class FastDP:
    """fastDP's book-keeping engine.

    Attributes:
        mode: "MixOpt", "MixGhostClip" or "ghost", the library's own names.
        origin: Use its trick of differentiating with respect to the first layer only, which saves weight gradients.
    """

    name: str
    mode: str = "MixOpt"
    origin: bool = False
    role: Role = Role.RIVAL
    option: Option = Option.EAGER
    noise_dtype: str = "float32"

    def setup(self, model: nn.Module, settings: Settings) -> Running:
        """Attach the engine to an optimizer."""
        return RunningFastDP(spelled_out(model), settings, mode=self.mode, origin=self.origin)


class RunningFastDP:
    """:class:`FastDP` bound to a model."""

    def __init__(self, model: nn.Module, settings: Settings, *, mode: str, origin: bool) -> None:
        library = importlib.import_module("fastDP")
        self._model, self._settings, self._device = model, settings, device_of(model)
        self._optimizer = torch.optim.SGD(trained_parameters(model), lr=settings.learning_rate)
        with contextlib.redirect_stdout(io.StringIO()):
            self._engine: Any = library.PrivacyEngine(
                model,
                batch_size=settings.logical_batch,
                sample_size=50_000,
                epochs=1,
                max_grad_norm=settings.clip_norm,
                noise_multiplier=settings.noise_multiplier,
                clipping_mode=mode,
                clipping_fn="Abadi",
                clipping_style="all-layer",
                loss_reduction="mean",
                origin_params=_origin(model) if origin else None,
            )
            self._engine.attach(self._optimizer)

    def _backward(self, batch: Batch) -> None:
        inputs, labels = batch
        self._optimizer.zero_grad(set_to_none=True)
        with self._settings.precision(self._device):
            loss = losses_of(self._model(inputs), labels).mean()
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, parts: Sequence[Batch]) -> None:
        """Run the one part."""
        if len(parts) != 1:
            raise AccumulationNotSupported(f"fastDP is run with one physical batch per step, got {len(parts)}")
        self._backward(parts[0])
        with contextlib.redirect_stdout(io.StringIO()):
            self._optimizer.step()

    def clipped_sum(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the gradients that the engine stored for its own optimizer step."""
        self._backward(batch)
        found = {}
        for name, parameter in self._model.named_parameters():
            if hasattr(parameter, "private_grad"):
                found[name] = parameter.private_grad.clone()
                del parameter.private_grad
        return found

    def close(self) -> None:
        """Detach from the optimizer."""
        with contextlib.suppress(AttributeError, ValueError):
            self._engine.detach()


def _origin(model: nn.Module) -> list[str]:
    """Return the names of the first layer with parameters and of position embeddings, where the gradient ends."""
    layers = (name for name, part in model.named_modules() if isinstance(part, nn.Conv2d | nn.Linear | nn.Embedding))
    positions = [name for name, _ in model.named_children() if name == "positions"]
    return [f"{name}." for name in (next(layers), *positions)]


@dataclass(frozen=True, kw_only=True)
class Opake:
    """Opake: vmap over a functional loss, then its Gaussian noise."""

    name: str = "opake"
    role: Role = Role.RIVAL
    option: Option = Option.EAGER
    noise_dtype: str = "float32"

    def setup(self, model: nn.Module, settings: Settings) -> Running:
        """Build the clipped-gradient and noise functions."""
        return RunningOpake(model, settings)


class RunningOpake:
    """:class:`Opake` bound to a model."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        clipping = importlib.import_module("opake.dpsgd.clipping")
        noise = importlib.import_module("opake.dpsgd.noise")
        random = importlib.import_module("opake.random")
        self._settings, self._device = settings, device_of(model)
        self._parameters = {name: value.detach() for name, value in model.named_parameters()}

        def loss_of_one(parameters: dict[str, Tensor], inputs: Tensor, label: Tensor) -> Tensor:
            outputs = torch.func.functional_call(model, parameters, (inputs.unsqueeze(0),))
            return losses_of(outputs, label.unsqueeze(0)).sum()

        self._clipped, self._clip_state = clipping.clipped_grad(
            loss_of_one, clipping_norm=settings.clip_norm, batch_argnums=(1, 2)
        )
        self._noise, self._noise_state = noise.gaussian_noise(
            noise_multiplier=settings.noise_multiplier, key=random.key(settings.seed)
        )

    def _sum(self, batch: Batch) -> Any:
        with self._settings.precision(self._device):
            total, self._clip_state = self._clipped(self._parameters, *batch, state=self._clip_state)
        return total

    def step(self, parts: Sequence[Batch]) -> None:
        """Clip, add noise and update the one part."""
        if len(parts) != 1:
            raise AccumulationNotSupported(f"Opake is run with one physical batch per step, got {len(parts)}")
        noised, self._noise_state = self._noise(self._sum(parts[0]), self._noise_state)
        scale = -self._settings.learning_rate / self._settings.logical_batch
        for name, parameter in self._parameters.items():
            parameter.add_(noised.pytree[name], alpha=scale)

    def clipped_sum(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the clipped gradients as the library sums them."""
        return dict(self._sum(batch).pytree)

    def close(self) -> None:
        """Nothing was attached."""


RIVALS: tuple[Contender, ...] = (
    Opacus(name="opacus_hooks", mode="hooks"),
    Opacus(name="opacus_functorch", mode="functorch"),
    Opacus(name="opacus_ghost", mode="ghost"),
    Opacus(name="opacus_ew", mode="ew"),
    FastDP(name="fastdp"),
    FastDP(name="fastdp_origin", origin=True),
    Opake(),
)
