"""A search costs what it states, releases one run, and hides the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import privet as pv
from privet.accounting.private_selection import RandomSearch
from privet.errors import ArgumentError, LoopError

SETTINGS: dict[str, Any] = {
    "epsilon": 8.0,
    "delta": 1e-3,
    "dataset_size": 200,
    "epochs": 2,
    "batch_size": 50,
    "adjacency": pv.Adjacency.ADD_REMOVE,
    "unit": pv.Unit.RECORD,
    "classes": ["no", "yes"],
}
CANDIDATES = [{"clipping_norm": 0.1}, {"clipping_norm": 1.0}]


def data(num: int = 200) -> tuple[Any, Any]:
    inputs = torch.randn(num, 3, generator=torch.Generator().manual_seed(0)).numpy()
    return inputs, ["yes" if row[0] > 0 else "no" for row in inputs]


def search(**changes: Any) -> pv.estimators.PrivateSearch:
    estimator = pv.PrivateClassifier(nn.Linear, **(SETTINGS | changes.pop("settings", {})))
    candidates, public = changes.pop("candidates", CANDIDATES), data(50)
    given = {"mean_runs": 3.0, "score": lambda fitted: fitted.score(*public)} | changes
    return pv.estimators.PrivateSearch(estimator, candidates, **given)


def test_a_search_keeps_to_the_epsilon_of_its_estimator_and_accounts_all_its_runs() -> None:
    found = search().fit(*data())
    assert 7.9 < found.guarantee_.epsilon <= 8.0
    plan = found.plan()
    event = RandomSearch(mean=3.0).event(plan.event)
    assert (
        found.guarantee_.epsilon
        == pv.accounting.guarantee_of(event, delta=1e-3, adjacency=plan.adjacency, unit=plan.unit).epsilon
    )
    assert found.best_estimator_.guarantee_.epsilon < found.guarantee_.epsilon
    assert found.best_params_ in CANDIDATES
    assert set(found.predict(data(20)[0])) <= {"no", "yes"}
    assert found.best_score_ == found.best_estimator_.score(*data(50))


def test_the_best_of_the_runs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomSearch, "draw_num_runs", lambda self, rng: 5)
    told: list[float] = []

    def score(fitted: Any) -> float:
        told.append(float([2, 7, 1, 7, 3][len(told)]))
        return told[-1]

    found = search(score=score).fit(*data())
    assert len(told) == 5
    assert found.best_score_ == 7.0


def test_a_seeded_search_says_that_it_is_not_private() -> None:
    found = search(settings={"seed": 0}).fit(*data())
    assert str(found.guarantee_).startswith("NOT PRIVATE")


def test_candidates_that_change_the_cost_are_refused_before_any_run() -> None:
    with pytest.raises(ArgumentError, match="differ in what a run costs"):
        search(candidates=[{"epochs": 2}, {"epochs": 3}]).plan()
    with pytest.raises(ArgumentError, match="empty"):
        search(candidates=[]).plan()


def test_a_search_runs_once_and_shows_no_run_but_the_best(tmp_path: Any) -> None:
    with pytest.raises(LoopError, match=r"fit\("):
        _ = search().guarantee_
    for hidden in ({"folder": tmp_path}, {"progress": pv.tracking.Several(receivers=())}):
        with pytest.raises(LoopError, match="not released"):
            search(settings=hidden).fit(*data())

    def failing(fitted: Any) -> float:
        raise OSError("no score")

    broken = search(score=failing)
    with pytest.raises(OSError, match="no score"):
        broken.fit(*data())
    with pytest.raises(LoopError, match="has begun"):
        broken.fit(*data())
