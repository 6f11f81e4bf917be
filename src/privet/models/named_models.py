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


def _spec(name: str, build: ModelFactory, shape: tuple[int, ...], num_classes: int, description: str) -> ModelSpec:
    return ModelSpec(name=name, build=build, input_shape=shape, num_classes=num_classes, description=description)


_SPECS = (
    _spec("dp_cnn", dp_cnn, _COLOUR, 10, "DP-CNN: six 3x3 convolutions, tanh, for CIFAR-10"),
    _spec("dp_cnn_small", dp_cnn_small, _GREY, 10, "DP-CNN/S: two convolutions, tanh, for MNIST and Fashion-MNIST"),
    _spec("h_cnn", h_cnn, (243, 8, 8), 10, "H-CNN: two convolutions, tanh, on scattering features of CIFAR-10"),
    _spec(
        "h_cnn_small",
        h_cnn_small,
        (81, 7, 7),
        10,
        "H-CNN/S: two convolutions, tanh, on scattering features of MNIST and Fashion-MNIST",
    ),
    _spec(
        "clipping_mnist_cnn",
        clipping_mnist_cnn,
        _GREY,
        10,
        "MNIST network of the clipping paper: two convolutions, ReLU",
    ),
    _spec("tutorial_cnn", tutorial_cnn, _COLOUR, 10, "CIFAR-10 network of the PyTorch tutorial"),
    _spec("lenet5", lenet5, _GREY, 10, "LeNet-5 with ReLU and max-pooling"),
    _spec("mlp_1000", mlp_1000, _GREY, 10, "One hidden layer of 1,000, ReLU"),
    _spec("mlp_64_64", mlp_64_64, (8,), 1, "Two hidden layers of 64, ReLU, for tables"),
    _spec(
        "oriented_edges",
        oriented_edges,
        _GREY,
        10,
        "Fixed edge features, then one linear layer: little to train, so little noise",
    ),
    _spec("small_vit", small_vit, _GREY, 10, "Vision transformer: patches of 4, four layers of width 64"),
    _spec("logistic_regression", logistic_regression, _GREY, 10, "Linear classifier: a convex problem"),
    _spec(
        "minilm_lora",
        minilm_lora,
        (64,),
        2,
        "Pre-trained MiniLM with low-rank adapters, for sentences; needs privet[text]",
    ),
    _spec(
        "convex_relu",
        convex_relu,
        _GREY,
        10,
        "Two-layer ReLU network with 100 fixed random gates: convex, with proven constants",
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
