"""The cells of table 2 of Zhu and Blaschko (2023) that are repeated: two networks on three data sets at two epsilons.

Batches, epochs and thresholds are the published ones (Tramer and Boneh 2021 for the networks on scattering features;
none are printed for SVHN, which has those of CIFAR-10, and the training set without the extra digits),
with the threshold 1 and no momentum, which their scaling rule ``C / (1 - momentum) = constant`` makes of 0.1 and 0.9.
Scattering features are normalised in groups, at no cost, or by noisy means that a share of the budget pays for. Of each
arm as many learning rates are tried: the published one and its neighbours by factors of two, lower ones for the smaller
epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from torch import nn

from privet.datasets.scattering import Scattering
from privet.models import dp_cnn, dp_cnn_small, h_cnn, h_cnn_small
from privet_research.studies.sparsification import BASELINE, MASKED, SparsificationSettings


@dataclass(frozen=True, kw_only=True)
class Network:
    """What the cells of one network have in common.

    Attributes:
        title: What the rows call it.
        dataset: Whose images it sees.
        build: Makes it; a network on scattering features without its own normalisation if told ``num_groups=None``.
        batch_size: Expected logical batch size.
        epochs: Of the baseline.
        learning_rates: Tried for every arm, by epsilon.
        published: Test accuracies in percent, by epsilon: without and with masks, each with its standard error.
        normalisation: Of the images.
        scattering: What it reads in place of the images.
        pixel_size: Public guess at the root mean square of its images' pixels.
    """

    title: str
    dataset: str
    build: Callable[..., nn.Module]
    batch_size: int
    epochs: int
    learning_rates: Mapping[float, tuple[float, ...]]
    published: Mapping[float, tuple[tuple[float, float], tuple[float, float]]]
    normalisation: str | None = None
    scattering: Scattering | None = None
    pixel_size: float = 1.0

    def at(self, epsilon: float, *, normalisation_share: float = 0.0) -> SparsificationSettings:
        """Return the cell at an epsilon, at delta 1e-5; with a share of it spent on normalising features, if any."""
        (plain, plain_error), (masked, masked_error) = self.published[epsilon]
        return SparsificationSettings(
            name=f"{self.title}, epsilon {epsilon:g}"
            + (f", {normalisation_share:.0%} of it for normalisation" if normalisation_share else ""),
            dataset=self.dataset,
            build=partial(self.build, num_groups=None) if normalisation_share else self.build,
            batch_size=self.batch_size,
            epochs=self.epochs,
            norm=1.0,
            learning_rates=self.learning_rates[epsilon],
            epsilon=epsilon,
            published={BASELINE: plain, MASKED: masked},
            published_errors={BASELINE: plain_error, MASKED: masked_error},
            normalisation=self.normalisation,
            scattering=self.scattering,
            normalisation_share=normalisation_share,
            pixel_size=self.pixel_size,
        )


_NETWORKS = {
    "cifar10": Network(
        title="CIFAR-10, DP-CNN",
        dataset="cifar10",
        build=dp_cnn,
        batch_size=1000,
        epochs=40,
        learning_rates={3.0: (2.0, 1.0, 0.5), 1.0: (1.0, 0.5, 0.25)},
        published={3.0: ((62.8, 0.10), (64.3, 0.17)), 1.0: ((52.5, 0.25), (55.1, 0.11))},
        normalisation="per_image_std",
    ),
    "cifar10-scattering": Network(
        title="CIFAR-10, H-CNN",
        dataset="cifar10",
        build=h_cnn,
        batch_size=8192,
        epochs=60,
        learning_rates={3.0: (8.0, 4.0, 2.0), 1.0: (4.0, 2.0, 1.0)},
        published={3.0: ((69.7, 0.19), (70.0, 0.11)), 1.0: ((62.4, 0.13), (63.2, 0.10))},
        normalisation="imagenet",
        scattering=Scattering(),
    ),
    "svhn": Network(
        title="SVHN, DP-CNN",
        dataset="svhn",
        build=dp_cnn,
        batch_size=1000,
        epochs=40,
        learning_rates={3.0: (2.0, 1.0, 0.5), 1.0: (1.0, 0.5, 0.25)},
        published={3.0: ((83.4, 0.11), (84.5, 0.14)), 1.0: ((76.0, 0.05), (79.1, 0.13))},
        normalisation="standardized",
    ),
    "svhn-scattering": Network(
        title="SVHN, H-CNN",
        dataset="svhn",
        build=h_cnn,
        batch_size=8192,
        epochs=60,
        learning_rates={3.0: (8.0, 4.0, 2.0), 1.0: (4.0, 2.0, 1.0)},
        published={3.0: ((85.9, 0.06), (86.8, 0.13)), 1.0: ((80.7, 0.15), (82.2, 0.19))},
        normalisation="imagenet",
        scattering=Scattering(),
    ),
    "fashion": Network(
        title="Fashion-MNIST, DP-CNN/S",
        dataset="fashion_mnist",
        build=dp_cnn_small,
        batch_size=2048,
        epochs=40,
        learning_rates={3.0: (8.0, 4.0, 2.0), 1.0: (4.0, 2.0, 1.0)},
        published={3.0: ((86.6, 0.09), (87.4, 0.10)), 1.0: ((83.2, 0.10), (84.5, 0.16))},
    ),
    "fashion-scattering": Network(
        title="Fashion-MNIST, H-CNN/S",
        dataset="fashion_mnist",
        build=h_cnn_small,
        batch_size=2048,
        epochs=40,
        learning_rates={3.0: (8.0, 4.0, 2.0), 1.0: (4.0, 2.0, 1.0)},
        published={3.0: ((88.9, 0.09), (89.2, 0.07)), 1.0: ((85.8, 0.17), (87.0, 0.08))},
        scattering=Scattering(),
        pixel_size=0.5,
    ),
}
NETWORKS: Mapping[str, Network] = MappingProxyType(_NETWORKS)


def quick(settings: SparsificationSettings) -> SparsificationSettings:
    """Return a version for two processor cores; Fashion-MNIST is then the part that comes with the package."""
    if settings.dataset in ("cifar10", "svhn"):
        size, batch = (1000, 200) if settings.scattering is None else (500, 100)
        return settings.shortened(dataset=settings.dataset, epochs=2, num_examples=size, batch_size=batch)
    return settings.shortened(dataset="fashion_mnist_small", epochs=5, num_examples=4000, batch_size=512)
