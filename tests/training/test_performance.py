"""How a step is computed is one value, which plan, noise and ledger cannot reach."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from torch.nn import functional

import privet as pv
from privet.errors import ArgumentError
from privet.training.fitting import fit_privately
from tests.training.tools import examples, flat, full_batch, network, plain_sgd, run

LOSSES = functools.partial(functional.cross_entropy, reduction="none")
BELOW = ("privet.plan", "privet.mechanism.noise", "privet.mechanism.sampling", "privet.accounting.ledger")


@pytest.mark.parametrize("module", BELOW)
def test_plan_noise_and_ledger_do_not_reach_it(module: str) -> None:
    code = f"import sys, {module}; print(sorted(name for name in sys.modules if name.startswith('privet.training')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_it_is_a_frozen_value_of_keywords() -> None:
    chosen = pv.Performance(physical_batch_size=3)
    assert chosen == pv.Performance(physical_batch_size=3) != pv.Performance()
    with pytest.raises(FrozenInstanceError):
        chosen.physical_batch_size = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        pv.Performance(pv.engines.Functional())  # type: ignore[misc]
    with pytest.raises(ArgumentError, match="physical_batch_size"):
        pv.Performance(physical_batch_size=0)


def test_the_former_keywords_work_and_name_the_new_form() -> None:
    model, other = network(), network()
    with pytest.warns(DeprecationWarning, match=r"performance=privet\.Performance\(engine=\.\.\., physical_batch_size"):
        session = pv.privatize(
            model, plain_sgd(model), examples(), full_batch(2), seed=1,
            engine=pv.engines.Functional(), physical_batch_size=3,
        )  # fmt: skip
    assert session.physical_batch_size == 3
    with session:
        run(session, model)
    performance = pv.Performance(engine=pv.engines.Functional(), physical_batch_size=3)
    with pv.privatize(other, plain_sgd(other), examples(), full_batch(2), seed=1, performance=performance) as session:
        run(session, other)
    assert bool((flat(model) == flat(other)).all())


def test_the_former_keywords_are_refused_beside_the_value() -> None:
    model = network()
    with pytest.raises(ArgumentError, match=r"launch=\.\.\."):
        pv.privatize(
            model, plain_sgd(model), examples(), full_batch(), performance=pv.Performance(), launch=pv.launch.Eager()
        )


@pytest.mark.parametrize("kind", [pv.PrivateClassifier, pv.PrivateRegressor])
def test_estimators_take_the_value_and_warn_of_the_former_keywords(kind: type[Any]) -> None:
    settings = {
        "epsilon": 2.0,
        "delta": 1e-3,
        "dataset_size": 40,
        "epochs": 1,
        "batch_size": 8,
        "adjacency": pv.Adjacency.ADD_REMOVE,
        "unit": pv.Unit.RECORD,
    }
    with pytest.warns(
        DeprecationWarning, match=rf"{kind.__name__}\(performance=privet\.Performance\(physical_batch_size"
    ):
        former = kind(network(), **settings, physical_batch_size=3)
    performance = pv.Performance(physical_batch_size=3)
    assert former.performance == kind(network(), **settings, performance=performance).performance == performance
    with pytest.raises(ArgumentError, match="physical_batch_size"):
        kind(network(), **settings, performance=performance, physical_batch_size=3)


def test_a_whole_fit_takes_the_value_and_warns_of_the_former_keywords() -> None:
    weights = []
    for former in (False, True):
        model = network()
        arguments = (model, plain_sgd(model), examples(), full_batch(2), LOSSES)
        if former:
            with pytest.warns(DeprecationWarning, match=r"fit_privately\(performance="):
                fit_privately(*arguments, physical_batch_size=3, seed=1)
        else:
            fit_privately(*arguments, performance=pv.Performance(physical_batch_size=3), seed=1)
        weights.append(flat(model))
    assert bool((weights[0] == weights[1]).all())
