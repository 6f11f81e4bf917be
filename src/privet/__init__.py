"""privet: training neural networks with differential privacy, with a guarantee that is known before any data is read.

Names are looked up on first use, so ``import privet`` is quick and the accounting half never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Adjacency": "privet.mechanism.terms",
    "Unit": "privet.mechanism.terms",
    "Release": "privet.mechanism.terms",
    "Poisson": "privet.mechanism.sampling",
    "FullBatch": "privet.mechanism.sampling",
    "Shuffle": "privet.mechanism.sampling",
    "OneGroup": "privet.mechanism.grouping",
    "PerLayer": "privet.mechanism.grouping",
    "PerParameter": "privet.mechanism.grouping",
    "ByName": "privet.mechanism.grouping",
    "Threshold": "privet.mechanism.clipping",
    "Gaussian": "privet.mechanism.noise",
    "NoMask": "privet.mechanism.masking",
    "Guarantee": "privet.accounting.guarantee",
    "Ledger": "privet.accounting.ledger",
    "Plan": "privet.plan",
    "BookKeeping": "privet.gradients.bookkeeping",
    "Functional": "privet.gradients.functional",
    "replace_batchnorm": "privet.gradients.support",
    "privatize": "privet.training.session",
    "Session": "privet.training.session",
    "Step": "privet.training.session",
    "Unprotected": "privet.training.telemetry",
    "PrivateClassifier": "privet.training.estimator",
    "PrivateRegressor": "privet.training.estimator",
    "sgd": "privet.training.estimator",
    "PrivetError": "privet.errors",
}

__all__ = sorted([*_WHERE, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'privet' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from privet.accounting.guarantee import Guarantee as Guarantee
    from privet.accounting.ledger import Ledger as Ledger
    from privet.errors import PrivetError as PrivetError
    from privet.gradients.bookkeeping import BookKeeping as BookKeeping
    from privet.gradients.functional import Functional as Functional
    from privet.gradients.support import replace_batchnorm as replace_batchnorm
    from privet.mechanism.clipping import Threshold as Threshold
    from privet.mechanism.grouping import ByName as ByName
    from privet.mechanism.grouping import OneGroup as OneGroup
    from privet.mechanism.grouping import PerLayer as PerLayer
    from privet.mechanism.grouping import PerParameter as PerParameter
    from privet.mechanism.masking import NoMask as NoMask
    from privet.mechanism.noise import Gaussian as Gaussian
    from privet.mechanism.sampling import FullBatch as FullBatch
    from privet.mechanism.sampling import Poisson as Poisson
    from privet.mechanism.sampling import Shuffle as Shuffle
    from privet.mechanism.terms import Adjacency as Adjacency
    from privet.mechanism.terms import Release as Release
    from privet.mechanism.terms import Unit as Unit
    from privet.plan import Plan as Plan
    from privet.training.estimator import PrivateClassifier as PrivateClassifier
    from privet.training.estimator import PrivateRegressor as PrivateRegressor
    from privet.training.estimator import sgd as sgd
    from privet.training.session import Session as Session
    from privet.training.session import Step as Step
    from privet.training.session import privatize as privatize
    from privet.training.telemetry import Unprotected as Unprotected
