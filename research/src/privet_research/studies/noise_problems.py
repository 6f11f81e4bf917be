"""The problems of the noise tables: small digits, Fashion-MNIST and Adult."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from privet.datasets import load
from privet.errors import DependencyError
from privet_research.studies.noise_grid import Problem
from privet_research.studies.noise_runs import Examples
from privet_research.studies.noise_terms import Terms

SOFTMAX, SCALED, LAYERS = "softmax", "softmax, pixels badly scaled", "two layers"
MNIST = "MNIST, two layers"
FASHION = "Fashion-MNIST, softmax"
ADULT, ADULT_NATURAL = "Adult, unit interval", "Adult, natural units"

# Badly scaled pixels depend on the draw of the factors more than on the noise; how this one was chosen, the table says.
FACTOR_SEED = 8
_DIGIT_SIZES = (1257, 180, 360)
# Adult's numbers as people write them: years, hours, thousands of dollars, hundreds of thousands of persons.
_NATURAL = {
    "age": 100.0,
    "fnlwgt": 15.0,
    "education_num": 15.0,
    "capital_gain": 100.0,
    "capital_loss": 5.0,
    "hours_per_week": 100.0,
}


def read_digits() -> tuple[Tensor, Tensor]:
    """Return the 1,797 digits of 8 by 8 pixels (Alpaydin and Kaynak 1998), in the unit interval, and their labels.

    Raises:
        DependencyError: if scikit-learn, with which the images come, is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DependencyError(
            "The digits of this study come with scikit-learn, which is not installed. "
            "Run: pip install 'privet[effects]'"
        ) from None
    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target, dtype=torch.int64)


def bad_factors(seed: int = FACTOR_SEED) -> Tensor:
    """Return one log-normal factor of spread 1.5 per pixel."""
    return torch.tensor(np.random.default_rng(seed).lognormal(0.0, 1.5, 64), dtype=torch.float32)


def digits_problems(*, split_seed: int = 0, factor_seed: int = FACTOR_SEED, steps: int = 300) -> list[Problem]:
    """Return the three tasks on digits; the 180 validation images also play the public ones."""
    features, labels = read_digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(split_seed))
    terms = Terms(rate=0.1, steps=steps, delta=1e-4)

    def problem(name: str, values: Tensor, widths: tuple[int, ...]) -> Problem:
        train, public, test = (
            Examples.of(values[rows], labels[rows]) for rows in torch.split(order, list(_DIGIT_SIZES))
        )
        return Problem(
            name=name,
            train=train,
            public=public,
            validation=public,
            test=test,
            widths=widths,
            terms=terms,
            norms=(0.25, 1.0, 4.0),
            reaches=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
            num_tuning_seeds=2,
        )

    return [
        problem(SOFTMAX, features, (64, 10)),
        problem(SCALED, features * bad_factors(factor_seed), (64, 10)),
        problem(LAYERS, features, (64, 32, 10)),
    ]


def fashion_problems(*, steps: int = 300) -> list[Problem]:
    """Return the Fashion-MNIST images that come with the package: 8,500 private, 500 public, 1,000 to choose by."""
    split = load("fashion_mnist_small")
    train, public, validation = _parted(split.train.features.flatten(1), split.train.labels, (8500, 500, 1000))
    return [
        Problem(
            name=FASHION,
            train=train,
            public=public,
            validation=validation,
            test=Examples.of(split.test.features.flatten(1), split.test.labels),
            widths=(784, 10),
            terms=Terms(rate=0.05, steps=steps, delta=1e-5),
            norms=(0.25, 1.0, 4.0),
            reaches=(0.5, 1.0, 2.0, 4.0),
            num_tuning_seeds=1,
        )
    ]


def mnist_problems(*, steps: int = 1_000) -> list[Problem]:
    """Return MNIST with a network of one hidden layer; 1,000 of its training images play the public ones."""
    split = load("mnist")
    train, public, validation = _parted(split.train.features.flatten(1), split.train.labels, (55_000, 1_000, 4_000))
    return [
        Problem(
            name=MNIST,
            train=train,
            public=public,
            validation=validation,
            test=Examples.of(split.test.features.flatten(1), split.test.labels),
            widths=(784, 32, 10),
            terms=Terms(rate=0.01, steps=steps, delta=1e-5),
            norms=(1.0,),
            reaches=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
            num_tuning_seeds=1,
        )
    ]


def adult_problems(*, steps: int = 300) -> list[Problem]:
    """Return Adult twice: numbers in the unit interval, and numbers in the units in which people write them."""
    split = load("adult")
    names = list(split.info.feature_names)
    factors = torch.ones(len(names))
    for name, factor in _NATURAL.items():
        factors[names.index(name)] = factor
    found = []
    for title, scale in ((ADULT, torch.ones(len(names))), (ADULT_NATURAL, factors)):
        parts = _parted(split.train.features * scale, split.train.labels, (28561, 1000, 3000))
        found.append(
            Problem(
                name=title,
                train=parts[0],
                public=parts[1],
                validation=parts[2],
                test=Examples.of(split.test.features * scale, split.test.labels),
                widths=(len(names), 2),
                terms=Terms(rate=0.02, steps=steps, delta=1e-5),
                norms=(1.0, 4.0, 16.0),
                reaches=(0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
                num_tuning_seeds=1,
            )
        )
    return found


def _parted(features: Tensor, labels: Tensor, sizes: Sequence[int]) -> list[Examples]:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return [Examples.of(features[rows], labels[rows]) for rows in torch.split(order, list(sizes))]
