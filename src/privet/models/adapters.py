"""Low-rank adapters (LoRA; Hu et al. 2022): frozen linear layers plus a trained low-rank product.

An adapted layer computes ``x W' + b + scale * x A' B'`` with low-rank ``A`` and ``B``; ``W`` and ``b`` are frozen.
Under differential privacy fewer trained parameters mean less total noise and less memory per example (Yu et al. 2022).
After training, the product can be merged into ``W``, and the model has its original architecture again.

Names of modules and weights are those of the package PEFT, so adapters can be exchanged with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from privet import checks
from privet.errors import ArgumentError

# The names under which PEFT writes adapters to a file.
_PREFIX = "base_model.model."
_PARTS = ("lora_A", "lora_B")


class AdaptedLinear(nn.Module):
    """A frozen linear layer plus a trained low-rank product, which is zero at initialisation.

    Attributes:
        base_layer: The frozen layer.
        lora_A: Linear layer from the inputs to ``rank`` numbers.
        lora_B: Linear layer from these to the outputs; initialised to zero.
        scale: Factor of the product.
    """

    def __init__(self, base_layer: nn.Linear, *, rank: int, scale: float = 1.0) -> None:
        super().__init__()
        checks.count("rank", rank)
        self.base_layer = base_layer.requires_grad_(False)
        like = {"device": base_layer.weight.device, "dtype": base_layer.weight.dtype}
        self.lora_A = nn.Linear(base_layer.in_features, rank, bias=False, **like)
        self.lora_B = nn.Linear(rank, base_layer.out_features, bias=False, **like)
        self.scale = checks.positive("scale", scale)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.base_layer(inputs) + self.scale * self.lora_B(self.lora_A(inputs))
        return outputs

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Merge the product into the weight of the frozen layer, in place, and return the layer."""
        self.base_layer.weight += self.scale * (self.lora_B.weight @ self.lora_A.weight)
        return self.base_layer


def add_adapters(module: nn.Module, *, rank: int, scale: float = 1.0, targets: Sequence[str] = ()) -> tuple[str, ...]:
    """Freeze a module and add adapters to its linear layers, in place. Parts outside it, such as a head, do not change.

    Args:
        module: The pre-trained body. All its parameters are frozen.
        rank: Rank of the adapters.
        scale: Factor of each adapter's product; ``lora_alpha / r`` in PEFT.
        targets: Last parts of the names of the layers to adapt, such as ``("query", "value")``; empty for all.

    Returns:
        The names of the adapted layers.

    Raises:
        ArgumentError: no layer matches, or the module has adapters already.
    """
    if _adapted(module):
        raise ArgumentError("The module has adapters already. Merge them first with merge_adapters().")
    module.requires_grad_(False)
    found = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and name and (not targets or _is_target(name, targets))
    ]
    if not found:
        wanted = ", ".join(targets) or "any"
        raise ArgumentError(f"No linear layer inside the module matches the targets ({wanted}). Check their names.")
    for name in found:
        base = module.get_submodule(name)
        assert isinstance(base, nn.Linear)
        module.set_submodule(name, AdaptedLinear(base, rank=rank, scale=scale))
    return tuple(found)


def merge_adapters(module: nn.Module) -> None:
    """Replace every adapted layer by an equivalent linear layer, in place; it stays frozen."""
    for name, part in _adapted(module).items():
        module.set_submodule(name, part.merged())


def adapter_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the adapters' weights under the names of PEFT in ``adapter_model.safetensors``."""
    return {
        f"{_PREFIX}{name}.{part}.weight": getattr(adapted, part).weight.detach()
        for name, adapted in _adapted(module).items()
        for part in _PARTS
    }


@torch.no_grad()
def load_adapter_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights with the names of :func:`adapter_weights` into a module with the same adapters.

    Raises:
        ArgumentError: names or shapes differ from those of the module's adapters; then nothing changes.
    """
    own = adapter_weights(module)
    wrong = sorted(set(own) ^ set(weights)) or [name for name in own if own[name].shape != weights[name].shape]
    if wrong:
        raise ArgumentError(
            f"The weights are not those of this module's adapters; the first that differs is {wrong[0]!r}. Add "
            "adapters of the same rank to the same layers first."
        )
    for name, tensor in own.items():
        tensor.copy_(weights[name])


def _adapted(module: nn.Module) -> dict[str, AdaptedLinear]:
    return {name: part for name, part in module.named_modules() if isinstance(part, AdaptedLinear)}


def _is_target(name: str, targets: Sequence[str]) -> bool:
    return any(name == target or name.endswith(f".{target}") for target in targets)
