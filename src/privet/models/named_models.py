"""The networks that recipes can ask for by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from torch import nn

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
from privet.models.vision_transformer import small_vit


class ModelFactory(Protocol):
    """Builds a fresh network with PyTorch's default initialisation; never trained weights."""

    def __call__(self, input_shape: Sequence[int], num_classes: int, /) -> nn.Module:
        """Return the network for examples of this shape and this many outputs."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One named network and the task it was published for.

    Attributes:
        name: the key of ``MODELS``.
        build: makes a fresh network from the shape of one example and the number of outputs.
        input_shape: shape of one example in the published task.
        num_classes: outputs in the published task; 1 is a regression.
        description: one line for people.
    """

    name: str
    build: ModelFactory
    input_shape: tuple[int, ...]
    num_classes: int
    description: str


_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
_SPECS = (
    ModelSpec(
        name="dp_cnn",
        build=dp_cnn,
        input_shape=_COLOUR,
        num_classes=10,
        description="DP-CNN: six 3x3 convolutions, tanh, for CIFAR-10",
    ),
    ModelSpec(
        name="dp_cnn_small",
        build=dp_cnn_small,
        input_shape=_GREY,
        num_classes=10,
        description="DP-CNN/S: two convolutions, tanh, for MNIST and Fashion-MNIST",
    ),
    ModelSpec(
        name="h_cnn",
        build=h_cnn,
        input_shape=(243, 8, 8),
        num_classes=10,
        description="H-CNN: two convolutions, tanh, on scattering features of CIFAR-10",
    ),
    ModelSpec(
        name="h_cnn_small",
        build=h_cnn_small,
        input_shape=(81, 7, 7),
        num_classes=10,
        description="H-CNN/S: two convolutions, tanh, on scattering features of MNIST and Fashion-MNIST",
    ),
    ModelSpec(
        name="clipping_mnist_cnn",
        build=clipping_mnist_cnn,
        input_shape=_GREY,
        num_classes=10,
        description="MNIST network of the clipping paper: two convolutions, ReLU",
    ),
    ModelSpec(
        name="tutorial_cnn",
        build=tutorial_cnn,
        input_shape=_COLOUR,
        num_classes=10,
        description="CIFAR-10 network of the PyTorch tutorial",
    ),
    ModelSpec(
        name="lenet5",
        build=lenet5,
        input_shape=_GREY,
        num_classes=10,
        description="LeNet-5 with ReLU and max-pooling",
    ),
    ModelSpec(
        name="mlp_1000",
        build=mlp_1000,
        input_shape=_GREY,
        num_classes=10,
        description="One hidden layer of 1,000, ReLU",
    ),
    ModelSpec(
        name="mlp_64_64",
        build=mlp_64_64,
        input_shape=(8,),
        num_classes=1,
        description="Two hidden layers of 64, ReLU, for tables",
    ),
    ModelSpec(
        name="oriented_edges",
        build=oriented_edges,
        input_shape=_GREY,
        num_classes=10,
        description="Fixed edge features, then one linear layer: little to train, so little noise",
    ),
    ModelSpec(
        name="small_vit",
        build=small_vit,
        input_shape=_GREY,
        num_classes=10,
        description="Vision transformer: patches of 4, four layers of width 64",
    ),
    ModelSpec(
        name="logistic_regression",
        build=logistic_regression,
        input_shape=_GREY,
        num_classes=10,
        description="Linear classifier: a convex problem",
    ),
    ModelSpec(
        name="minilm_lora",
        build=minilm_lora,
        input_shape=(64,),
        num_classes=2,
        description="Pre-trained MiniLM with low-rank adapters, for sentences; needs privet[text]",
    ),
    ModelSpec(
        name="convex_relu",
        build=convex_relu,
        input_shape=_GREY,
        num_classes=10,
        description="Two-layer ReLU network with 100 fixed random gates: convex, with proven constants",
    ),
)

MODELS: Mapping[str, ModelSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})


def find_model(name: str) -> ModelSpec:
    """Return the network of this name.

    Raises:
        ArgumentError: no network has this name; the message lists all and suggests the nearest.
    """
    spec = MODELS.get(name)
    if spec is None:
        near = difflib.get_close_matches(str(name), MODELS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(f"There is no model {name!r}.{hint} Known models: {', '.join(MODELS)}.")
    return spec


def count_parameters(model: nn.Module) -> int:
    """Return how many numbers training may change: the dimension that noise is added in."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
