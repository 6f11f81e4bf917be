"""The networks that recipes use by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from torch import nn

from privet import checks
from privet.errors import ArgumentError
from privet.models.convex_relu import convex_relu
from privet.models.convolutional import (
    clipping_mnist_cnn,
    dp_cnn,
    dp_cnn_small,
    h_cnn,
    h_cnn_small,
    lenet5,
    tutorial_cnn,
)
from privet.models.dense import logistic_regression, mlp_64_64, mlp_1000
from privet.models.minilm import minilm_lora
from privet.models.oriented_edges import oriented_edges
from privet.models.standardised import table_classes, table_curved, table_linear
from privet.models.vision_transformer import small_vit
from privet.models.wide_networks import wrn_16_4, wrn_40_4


class ModelFactory(Protocol):
    """Builds a network with PyTorch's default initialisation."""

    def __call__(self, input_shape: Sequence[int], num_classes: int, /) -> nn.Module:
        """Return the network for examples of this shape and ``num_classes`` outputs."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One named network and the task it was published for.

    Attributes:
        name: key of ``MODELS``.
        build: builds the network from the shape of one example and the number of outputs.
        input_shape: shape of one example in the published task.
        num_classes: number of outputs in the published task; 1 is a regression.
        description: one line of text.
    """

    name: str
    build: ModelFactory
    input_shape: tuple[int, ...]
    num_classes: int
    description: str


_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
_TASKS: Mapping[str, tuple[ModelFactory, tuple[int, ...], int, str]] = {
    "dp_cnn": (dp_cnn, _COLOUR, 10, "DP-CNN: six 3x3 convolutions, tanh, for CIFAR-10"),
    "dp_cnn_small": (dp_cnn_small, _GREY, 10, "DP-CNN/S: two convolutions, tanh, for MNIST and Fashion-MNIST"),
    "h_cnn": (h_cnn, (243, 8, 8), 10, "H-CNN: two convolutions, tanh, on scattering features of CIFAR-10"),
    "h_cnn_small": (h_cnn_small, (81, 7, 7), 10, "H-CNN/S: two convolutions, tanh, on scattering features of MNIST"),
    "clipping_mnist_cnn": (clipping_mnist_cnn, _GREY, 10, "MNIST network of the clipping paper, ReLU"),
    "tutorial_cnn": (tutorial_cnn, _COLOUR, 10, "CIFAR-10 network of the PyTorch tutorial"),
    "lenet5": (lenet5, _GREY, 10, "LeNet-5 with ReLU and max-pooling"),
    "mlp_1000": (mlp_1000, _GREY, 10, "One hidden layer of 1,000, ReLU"),
    "mlp_64_64": (mlp_64_64, (8,), 1, "Two hidden layers of 64, ReLU, for tables"),
    "oriented_edges": (oriented_edges, _GREY, 10, "Fixed edge features and one linear layer: little noise"),
    "small_vit": (small_vit, _GREY, 10, "Vision transformer: patches of 4, four layers of width 64"),
    "wrn_16_4": (wrn_16_4, _COLOUR, 10, "WRN-16-4 with standardised filters and group norm, for CIFAR-10"),
    "wrn_40_4": (wrn_40_4, _COLOUR, 10, "WRN-40-4 with standardised filters and group norm, for CIFAR-10"),
    "logistic_regression": (logistic_regression, _GREY, 10, "Linear classifier: a convex problem"),
    "table_linear": (table_linear, (8,), 1, "Softmax, linear or Poisson regression on privately standardised columns"),
    "table_classes": (table_classes, _GREY, 10, "Softmax regression on such columns for more than two classes"),
    "table_curved": (table_curved, (8,), 1, "The same with fixed cosines of the columns, for tables of many records"),
    "minilm_lora": (minilm_lora, (64,), 2, "Pre-trained MiniLM with LoRA adapters, for sentences; needs privet[text]"),
    "convex_relu": (convex_relu, _GREY, 10, "Two-layer ReLU network with 100 fixed gates: convex, proven constants"),
}

MODELS: Mapping[str, ModelSpec] = MappingProxyType(
    {
        name: ModelSpec(name=name, build=build, input_shape=shape, num_classes=num_classes, description=description)
        for name, (build, shape, num_classes, description) in _TASKS.items()
    }
)


def find_model(name: str) -> ModelSpec:
    """Return the network of this name.

    Raises:
        ArgumentError: no network has this name; the message lists all names and suggests the nearest.
    """
    spec = MODELS.get(name)
    if spec is None:
        raise ArgumentError(checks.unknown("model", name, MODELS))
    return spec


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters, the dimension of the noise."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
