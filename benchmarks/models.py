"""The eight models of the benchmark, each with its data and its batch for an accelerator, a processor and a test.

Images are random normal numbers. Token ids follow a Zipf law, so that tokens repeat within a sequence as in text: rules
for embeddings must sum repeated rows, and a benchmark without repetitions would not measure that cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.networks import LanguageModel, ResNet18, SequenceClassifier, VisionTransformer, WideResNet16
from privet.models import clipping_mnist_cnn, dp_cnn, mlp_1000

Batch = tuple[Tensor, Tensor]


class Scale(Enum):
    """The scale of a model and its batch."""

    ACCELERATOR = "accelerator"
    PROCESSOR = "processor"
    TINY = "tiny"


class Data(Protocol):
    """A source of random examples of one shape."""

    def draw(self, num_examples: int, generator: torch.Generator) -> Batch:
        """Return inputs and labels, on the processor."""
        ...


@dataclass(frozen=True, kw_only=True)
class Images:
    """Square images of normal pixels with uniform labels."""

    channels: int
    side: int
    num_classes: int = 10

    def draw(self, num_examples: int, generator: torch.Generator) -> Batch:
        """Return float32 images and one label for each."""
        images = torch.randn(num_examples, self.channels, self.side, self.side, generator=generator)
        return images, torch.randint(0, self.num_classes, (num_examples,), generator=generator)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Sequences whose token frequencies fall as one over the rank.

    Attributes:
        num_classes: Labels per sequence; None asks for the next token at every position.
        first_id: The most frequent token; ids below it, which a model may keep for padding, do not occur.
    """

    length: int
    vocabulary: int
    num_classes: int | None = None
    first_id: int = 0

    def draw(self, num_examples: int, generator: torch.Generator) -> Batch:
        """Return token ids and labels."""
        ids = self._ids(num_examples, self.length + 1, generator)
        if self.num_classes is None:
            return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        return ids[:, :-1].contiguous(), torch.randint(0, self.num_classes, (num_examples,), generator=generator)

    def _ids(self, num_examples: int, length: int, generator: torch.Generator) -> Tensor:
        # The inverse of the distribution function of the density 1/x on [1, number of used ids + 1).
        uniform = torch.rand(num_examples, length, generator=generator, dtype=torch.float64)
        num_used = self.vocabulary - self.first_id
        ranks = torch.exp(uniform * math.log(num_used + 1)).long() - 1
        return ranks.clamp_(0, num_used - 1) + self.first_id


@dataclass(frozen=True, kw_only=True)
class Size:
    """One model at one scale.

    Attributes:
        build: Constructs the model.
        data: Its examples.
        batch_size: Examples of one step.
        build_still: Constructs the same model without random layers, whose sums can be compared; None if it has none.
    """

    build: Callable[[], nn.Module]
    data: Data
    batch_size: int
    build_still: Callable[[], nn.Module] | None = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model of the benchmark at every scale.

    Attributes:
        name: The short name used on the command line and in tables.
        description: One line.
        sizes: The model and its batch at each scale.
        floor: Least throughput of the default engine on an accelerator, over that of plain training.
    """

    name: str
    description: str
    sizes: Mapping[Scale, Size]
    floor: float = 0.0


def losses_of(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return one cross entropy per example; for a sequence of labels, their mean.

    Half-precision outputs are compared in float32, as autocast does.
    """
    logits = outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
    if labels.dim() == 1:
        return functional.cross_entropy(logits, labels, reduction="none")
    per_position = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return per_position.view(labels.shape).mean(1)


def _classifier(
    name: str,
    description: str,
    build: Callable[[], nn.Module],
    data: Data,
    *,
    batches: tuple[int, int],
    tiny: Size,
    floor: float,
) -> Workload:
    """Return a workload whose scales for accelerator and processor differ only in the batch."""
    large = Size(build=build, data=data, batch_size=batches[0])
    small = Size(build=build, data=data, batch_size=batches[1])
    sizes = {Scale.ACCELERATOR: large, Scale.PROCESSOR: small, Scale.TINY: tiny}
    return Workload(name=name, description=description, sizes=MappingProxyType(sizes), floor=floor)


_GREY = Images(channels=1, side=28)
_COLOUR = Images(channels=3, side=32)
_SMALL_COLOUR = Images(channels=3, side=16)

_WORKLOADS = (
    _classifier(
        "mnist",
        "CNN of two convolutions for 28x28 grey images, 26,010 parameters",
        clipping_mnist_cnn,
        _GREY,
        batches=(2048, 64),
        floor=0.75,
        tiny=Size(build=clipping_mnist_cnn, data=_GREY, batch_size=5),
    ),
    _classifier(
        "dpcnn",
        "tanh CNN of six convolutions for 32x32 images, 550,570 parameters",
        dp_cnn,
        _COLOUR,
        batches=(1024, 32),
        floor=0.9,
        tiny=Size(build=lambda: dp_cnn((3, 8, 8)), data=Images(channels=3, side=8), batch_size=5),
    ),
    _classifier(
        "mlp",
        "784-1000-10 perceptron, 0.80M parameters",
        mlp_1000,
        _GREY,
        batches=(4096, 256),
        floor=0.75,
        tiny=Size(build=mlp_1000, data=_GREY, batch_size=5),
    ),
    Workload(
        name="lstm",
        description="embedding 10000x100, LSTM 128, 1.12M parameters",
        floor=0.88,
        sizes=MappingProxyType(
            {
                Scale.ACCELERATOR: Size(
                    build=SequenceClassifier,
                    data=Tokens(length=128, vocabulary=10_000, num_classes=2),
                    batch_size=256,
                ),
                Scale.PROCESSOR: Size(
                    build=SequenceClassifier,
                    data=Tokens(length=64, vocabulary=10_000, num_classes=2),
                    batch_size=32,
                ),
                Scale.TINY: Size(
                    build=lambda: SequenceClassifier(vocabulary=50, embedding_width=10, width=12),
                    data=Tokens(length=9, vocabulary=50, num_classes=2),
                    batch_size=5,
                ),
            }
        ),
    ),
    _classifier(
        "wrn16_4",
        "WRN-16-4 with group norm for 32x32 images, 2.75M parameters",
        WideResNet16,
        _COLOUR,
        batches=(512, 8),
        floor=0.75,
        tiny=Size(build=lambda: WideResNet16(widening=2, base=8), data=_SMALL_COLOUR, batch_size=5),
    ),
    _classifier(
        "resnet18",
        "ResNet-18 with group norm and in-place ReLU for 32x32 images, 11.17M parameters",
        ResNet18,
        _COLOUR,
        batches=(512, 8),
        floor=0.75,
        tiny=Size(build=lambda: ResNet18(width=16), data=_SMALL_COLOUR, batch_size=5),
    ),
    _classifier(
        "vit_s",
        "ViT-S/16 for 224x224 images, 22.05M parameters",
        VisionTransformer,
        Images(channels=3, side=224, num_classes=1000),
        batches=(96, 4),
        floor=0.88,
        tiny=Size(
            build=lambda: VisionTransformer(width=24, num_heads=3, num_blocks=2, side=32, patch=8, num_classes=10),
            data=_COLOUR,
            batch_size=5,
        ),
    ),
    Workload(
        name="gpt2",
        description="GPT-2 small with an untied head, 512 tokens, 162.64M parameters (processor: 4 blocks, 256 tokens)",
        floor=0.9,
        sizes=MappingProxyType(
            {
                Scale.ACCELERATOR: Size(build=LanguageModel, data=Tokens(length=512, vocabulary=50257), batch_size=16),
                Scale.PROCESSOR: Size(
                    build=lambda: LanguageModel(num_blocks=4, vocabulary=8192, max_length=256),
                    data=Tokens(length=256, vocabulary=8192),
                    batch_size=2,
                ),
                Scale.TINY: Size(
                    build=lambda: LanguageModel(width=24, num_heads=3, num_blocks=2, vocabulary=37, max_length=12),
                    data=Tokens(length=12, vocabulary=37),
                    batch_size=5,
                ),
            }
        ),
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType({workload.name: workload for workload in _WORKLOADS})
