"""The networks and data on which the effects of random masks are measured, and a private run on them.

DP-CNN on CIFAR-10 is that of Zhu and Blaschko (2023): batches of 1,000, 100 epochs at learning rate 1. The digits of
scikit-learn with a network of two layers stand for it where there is no device: 20 epochs at learning rate 4, at which
the noise matters as much. Streams are seeded and some arms have no guarantee: nothing here is private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.errors import DependencyError
from privet.mechanism.clipping import Clipping
from privet.mechanism.masking import Mask
from privet.mechanism.noise import Noise
from privet.mechanism.sampling import Poisson
from privet.models import dp_cnn
from privet.plan import Plan
from privet.runs.building import on_device
from privet.training.performance import Performance
from privet.training.session import Step
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

Parts = tuple[ArrayDataset, ArrayDataset]
_CHUNK = 5_000


@dataclass(frozen=True, kw_only=True)
class MaskTask:
    """One network on one data set.

    Attributes:
        name: What rows call it.
        load: From a device to what is trained and tested on.
        build: Makes the network.
        dataset_size: Public number of training examples.
        batch_size: Expected logical batch size.
        physical_batch_size: Examples that go through the network at once.
        epochs: Of a run.
        learning_rate: Of plain descent, where gradients are clipped.
        unclipped_rate: Of plain descent without clipping: such gradients are long.
        statistics_rate: Of plain descent in runs in which gradients and masks are looked at.
        momentum_rate: Of descent with momentum, large enough that noise matters.
        momentum_noise: Noise multiplier of runs with momentum.
        adam_rate: Of Adam.
        short_epochs: Of the runs with momentum.
        delta: Of the plans.
    """

    name: str
    load: Callable[[torch.device], Parts]
    build: Callable[[], nn.Module]
    dataset_size: int
    batch_size: int
    physical_batch_size: int
    epochs: int
    learning_rate: float
    unclipped_rate: float
    statistics_rate: float
    momentum_rate: float
    momentum_noise: float
    adam_rate: float
    short_epochs: int
    delta: float = 1e-5

    def plan(self, *, clipping: Clipping, noise: Noise, mask: Mask, epochs: int | None = None) -> Plan:
        """Return the plan of a run; of the task's own length unless told otherwise."""
        return Plan(
            sampling=Poisson.for_dataset(
                dataset_size=self.dataset_size, batch_size=self.batch_size, epochs=epochs or self.epochs
            ),
            clipping=clipping,
            noise=noise,
            mask=mask,
            delta=self.delta,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.RECORD,
        )

    def model(self, seed: int, device: torch.device) -> nn.Module:
        """Return the network with the weights of this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build().to(device)

    def steps(
        self,
        model: nn.Module,
        train: ArrayDataset,
        plan: Plan,
        *,
        seed: int,
        learning_rate: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> Iterator[Step]:
        """Train; yield every step after its update, to look at the model and the mask."""
        chosen = optimizer or SGD(model.parameters(), lr=learning_rate or self.learning_rate)

        def loss_of(features: Tensor, labels: Tensor) -> Tensor:
            return losses(model(features), labels)

        performance = Performance(physical_batch_size=self.physical_batch_size)
        with privatize(model, chosen, train, plan, performance=performance, seed=seed) as session:
            for step in session.steps():
                step.accumulate(loss_of)
                step.update()
                yield step

    def train(self, model: nn.Module, train: ArrayDataset, plan: Plan, **how: float | Optimizer) -> None:
        """Train to the end."""
        for _ in self.steps(model, train, plan, **how):  # type: ignore[arg-type]
            pass

    def shortened(self, epochs: int) -> MaskTask:
        """Return the same with runs of so many epochs."""
        return replace(self, epochs=epochs, short_epochs=epochs)


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return one loss per example."""
    return functional.cross_entropy(outputs, labels, reduction="none")


@torch.no_grad()
def accuracy(model: nn.Module, part: ArrayDataset) -> float:
    """Return the share of right answers."""
    pieces = zip(torch.split(part.features, _CHUNK), torch.split(part.labels, _CHUNK), strict=True)
    return sum(float((model(images).argmax(1) == labels).double().sum()) for images, labels in pieces) / len(part)


_NUM_DIGITS = 1437


def _digits(device: torch.device) -> Parts:
    """Return the 8x8 digits of scikit-learn, four fifths to train on and one to test on."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DependencyError(
            "The digits of this study come with scikit-learn, which is not installed. "
            "Run: pip install 'privet[effects]'"
        ) from None
    found = load_digits()
    features = torch.tensor(found.data, dtype=torch.float32) / 16
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
    whole = ArrayDataset(features=features[order], labels=torch.tensor(found.target, dtype=torch.int64)[order])
    train, test = (
        on_device(ArrayDataset(features=whole.features[rows], labels=whole.labels[rows]), device)
        for rows in (slice(_NUM_DIGITS), slice(_NUM_DIGITS, None))
    )
    return train, test


def _two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10))


def _cifar10(device: torch.device) -> Parts:
    split = load("cifar10", normalisation="per_image_std")
    return on_device(split.train, device), on_device(split.test, device)


DIGITS = MaskTask(
    name="digits",
    load=_digits,
    build=_two_layers,
    dataset_size=_NUM_DIGITS,
    batch_size=256,
    physical_batch_size=512,
    epochs=20,
    learning_rate=4.0,
    unclipped_rate=0.5,
    statistics_rate=1.0,
    momentum_rate=4.0,
    momentum_noise=2.0,
    adam_rate=0.01,
    short_epochs=20,
    delta=1e-4,
)
CIFAR10 = MaskTask(
    name="CIFAR-10, DP-CNN",
    load=_cifar10,
    build=dp_cnn,
    dataset_size=50_000,
    batch_size=1_000,
    physical_batch_size=1_126,
    epochs=100,
    learning_rate=1.0,
    unclipped_rate=0.1,
    statistics_rate=1.0,
    momentum_rate=1.0,
    momentum_noise=1.452,  # epsilon 3.0 after 40 epochs
    adam_rate=0.001,
    short_epochs=40,
)
