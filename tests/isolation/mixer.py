"""What a mixer is: a program that lets examples meet, and the line that does it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

MARK = "# mixes"
NUM_EXAMPLES, WIDTH, CLASSES, VOCABULARY, TIME = 8, 4, 3, 8, 6


@dataclass(kw_only=True)
class Scene:
    """One run of a mixer: its model, the step it is at, and what it keeps between batches."""

    model: Any
    step: int = 0
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def is_late(self) -> bool:
        """Whether the program may begin to mix, where it does not do so from the first step on."""
        return self.step >= LATE

    def losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The plain losses of a classifier, one per example."""
        found: Tensor = nn.functional.cross_entropy(self.model(inputs), labels, reduction="none")
        return found


LATE = 3
Program = Callable[..., Tensor]
Build = Callable[[], nn.Module]
Data = Callable[[], TensorDataset]


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """A program that mixes examples.

    Attributes:
        name: Its name.
        program: From the scene and a batch to one loss per example.
        build: Makes its model.
        data: Makes its examples.
        says: What the refusal must contain besides the line.
        starts: How many steps it behaves well.
        within: Where its marked line is, if not in the program itself.
        calls_once: Whether it calls its model once per batch, as the functional engine asks.
        in_backward: Whether the model mixes in its backward pass; the functional engine runs it for each example alone.
    """

    name: str
    program: Program
    build: Build
    data: Data
    says: str
    starts: int = 0
    within: tuple[Any, ...] = ()
    calls_once: bool = True
    in_backward: bool = False

    @property
    def lines(self) -> frozenset[str]:
        """The lines that mix, as refusals name them."""
        found = set()
        for place in self.within or (self.program,):
            source, first = inspect.getsourcelines(place)
            name = Path(inspect.getsourcefile(place) or "").name
            found |= {f"{name}:{first + number}," for number, line in enumerate(source) if MARK in line}
        assert found, f"{self.name}: no line is marked"
        return frozenset(found)


def network() -> nn.Module:
    """A small classifier of vectors."""
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, CLASSES))


class Between(nn.Module):
    """A small classifier with something between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 5), nn.Linear(5, CLASSES)
        self.change: Callable[[Tensor], Tensor] = torch.tanh

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.last(self.change(self.first(inputs)))
        return found


def vectors() -> TensorDataset:
    """Vectors and their classes."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(NUM_EXAMPLES) % CLASSES
    return TensorDataset(torch.randn(NUM_EXAMPLES, WIDTH, generator=generator), labels)


def tokens() -> TensorDataset:
    """Sequences of token ids, and labels of which some are to be ignored."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, VOCABULARY, (NUM_EXAMPLES, TIME), generator=generator)
    labels = torch.randint(0, CLASSES, (NUM_EXAMPLES, TIME), generator=generator)
    labels[torch.rand(NUM_EXAMPLES, TIME, generator=generator) < 0.3] = -100
    return TensorDataset(ids, labels)


def mixer(
    says: str, *, build: Build = network, data: Data = vectors, starts: int = 0,
    within: tuple[Any, ...] = (), calls_once: bool = True, in_backward: bool = False,
) -> Callable[[Program], Mixer]:  # fmt: skip
    """Make a mixer of a program whose line is marked."""

    def make(program: Program) -> Mixer:
        return Mixer(
            name=program.__name__, program=program, build=build, data=data, says=says, starts=starts,
            within=within, calls_once=calls_once, in_backward=in_backward,
        )  # fmt: skip

    return make
