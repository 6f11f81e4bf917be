"""A made-up task that no classifier solves and every classifier can be over-confident about.

Clusters lie around corners of a cube, each stretched its own way, several to a class, and some labels are wrong (after
Guyon, 2003, "Design of experiments for the NIPS 2003 variable selection benchmark").
"""

from __future__ import annotations

import numpy as np
import torch

from privet import checks
from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.info import DatasetInfo
from privet.errors import ArgumentError


def clustered_classes(
    *,
    num_train: int = 4_500,
    num_test: int = 1_500,
    num_features: int = 20,
    num_informative: int = 10,
    num_redundant: int = 5,
    num_classes: int = 5,
    clusters_per_class: int = 2,
    separation: float = 1.2,
    flipped_share: float = 0.1,
    seed: int = 0,
) -> Split:
    """Make a classification task with wrong labels, every feature divided by its standard deviation.

    Args:
        num_train: training examples.
        num_test: test examples, from the same clusters and with as many wrong labels.
        num_features: dimensions; those neither informative nor redundant are noise.
        num_informative: dimensions in which the clusters lie.
        num_redundant: random mixtures of the informative ones.
        num_classes: number of classes.
        clusters_per_class: clusters that share a class.
        separation: half the side of the cube.
        flipped_share: share of examples whose label is drawn at random.
        seed: the same arguments and seed always give the same numbers.
    """
    informative = checks.count("num_informative", num_informative)
    redundant = checks.count("num_redundant", num_redundant, minimum=0)
    classes = checks.count("num_classes", num_classes, minimum=2)
    clusters = classes * checks.count("clusters_per_class", clusters_per_class)
    noisy = checks.count("num_features", num_features) - informative - redundant
    if noisy < 0 or clusters > 2**informative:
        raise ArgumentError(
            f"{num_features} features cannot hold {informative} informative and {redundant} redundant ones, or a cube "
            f"of {informative} dimensions has fewer corners than {clusters} clusters. Ask for more features."
        )
    generator = np.random.default_rng(checks.count("seed", seed, minimum=0))
    size = checks.count("num_train", num_train) + checks.count("num_test", num_test)
    corners = generator.choice(2**informative, size=clusters, replace=False)
    bits = (corners[:, None] >> np.arange(informative)) & 1
    centres = (2.0 * bits - 1) * checks.non_negative("separation", separation)
    mixers = generator.uniform(-1, 1, size=(clusters, informative, informative))
    cluster = generator.integers(clusters, size=size)
    useful = np.einsum("ni,nij->nj", generator.normal(size=(size, informative)), mixers[cluster]) + centres[cluster]
    copies = useful @ generator.uniform(-1, 1, size=(informative, redundant))
    features = np.concatenate([useful, copies, generator.normal(size=(size, noisy))], axis=1)
    labels = cluster % classes
    flipped = generator.random(size) < checks.probability("flipped_share", flipped_share, allow_zero=True)
    labels = np.where(flipped, generator.integers(classes, size=size), labels)
    rows = torch.from_numpy((features / features.std(0)).astype(np.float32))
    return _split(rows, torch.from_numpy(labels), num_train, classes)


def _split(features: torch.Tensor, labels: torch.Tensor, num_train: int, classes: int) -> Split:
    return Split(
        train=ArrayDataset(features=features[:num_train], labels=labels[:num_train]),
        test=ArrayDataset(features=features[num_train:], labels=labels[num_train:]),
        info=DatasetInfo(
            name="clustered_classes",
            num_classes=classes,
            input_shape=(features.shape[1],),
            class_names=tuple(str(number) for number in range(classes)),
            train_size=num_train,
            test_size=len(features) - num_train,
            licence="made up by this library",
            source="made up by this library",
            public=True,
        ),
    )
