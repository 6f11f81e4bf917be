"""A search for settings whose whole cost is accounted: random runs, of which the best one is released."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from privet.accounting.calibration import calibrate_noise
from privet.accounting.guarantee import Guarantee
from privet.accounting.private_selection import RandomSearch
from privet.errors import ArgumentError, LoopError
from privet.mechanism.events import matches
from privet.plan import Plan
from privet.training.classifier import PrivateClassifier, PrivateRegressor
from privet.training.estimator import Repeats
from privet.training.estimator_data import Array, Inputs, Targets
from privet.training.fitted import Fitted

Estimator = PrivateClassifier | PrivateRegressor


@dataclass
class PrivateSearch(Fitted):
    """Tries settings of an estimator on private records and releases the best model, at an accounted cost.

    A secret number of runs is drawn; each run draws one of the candidates and trains it on all records; the one with
    the best score is kept, and the others are forgotten (Papernot and Steinke 2022). The scores are those of ``score``,
    which must not read private records: a search by exact scores on private records, as ``GridSearchCV`` does, has no
    guarantee.

    Args:
        estimator: With a function that makes the model. Its epsilon is that of the whole search.
        candidates: The settings to try, such as ``[{"clipping_norm": 0.1}, {"clipping_norm": 1.0}]``. They must not
            change the cost of a run.
        mean_runs: Expected number of runs, whose true number is geometric and secret.
        score: From a fitted estimator to a number, larger for better, computed from public records alone.

    Attributes:
        best_estimator_: The released model.
        best_params_: Its settings.
        best_score_: Its score.
    """

    estimator: Estimator
    candidates: Sequence[Mapping[str, Any]]
    _: KW_ONLY
    mean_runs: float
    score: Callable[[Any], float]
    _has_begun: bool = field(default=False, init=False, repr=False)

    def plan(self) -> Plan:
        """Return the plan of one run, calibrated so that the whole search keeps to the estimator's epsilon.

        Raises:
            ArgumentError: the candidates differ in what a run costs.
        """
        if not self.candidates:
            raise ArgumentError("candidates is empty. Give the settings to try, such as [{'clipping_norm': 1.0}].")
        (first, *others) = [self._candidate(settings).uncalibrated_plan() for settings in self.candidates]
        estimator = self.estimator

        def event(multiplier: float) -> Any:
            return self._search.event(replace(first, noise=first.noise.with_multiplier(multiplier)).event)

        found = calibrate_noise(event, epsilon=estimator.epsilon, delta=estimator.delta, adjacency=estimator.adjacency)
        plan = replace(first, noise=first.noise.with_multiplier(found))
        for other in others:
            same = replace(other, noise=plan.noise)
            if not matches(plan.event, same.event) or (other.delta, other.adjacency, other.unit) != (
                plan.delta,
                plan.adjacency,
                plan.unit,
            ):
                raise ArgumentError(
                    "The candidates differ in what a run costs: epochs, batch_size, dataset_size, delta, adjacency, "
                    "unit and rules of clipping that are charged belong into the estimator, the same for all."
                )
        return plan

    @cached_property
    def _search(self) -> RandomSearch:
        return RandomSearch(mean=self.mean_runs)

    def fit(self, inputs: Inputs, y: Targets | None = None) -> Self:
        """Run the search on private records.

        Guarantee:
            What is released is the best run and its score; the number of runs and all others stay secret. The runs are
            drawn independently, and each of them keeps to the plan whose repetition and selection is accounted.
        """
        if self._has_begun:
            raise LoopError(
                "This search has begun, and another one costs as much again. Make a new search and add both up."
            )
        if self.estimator.folder is not None or self.estimator.progress is not None:
            raise LoopError(
                "folder= and progress= would show runs that are not released, and their number. Leave them out."
            )
        plan, seed = self.plan(), self.estimator.seed
        rng = np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256) if seed is None else seed))
        best: tuple[float, int, Estimator] | None = None
        self._has_begun = True
        for _ in range(self._search.draw_num_runs(rng)):
            choice = int(rng.integers(len(self.candidates)))
            run = self._candidate(self.candidates[choice])
            run.seed = None if seed is None else int(rng.integers(2**31))
            run._fit(inputs, y, plan=self._plan_of(run, plan))
            scored = float(self.score(run))
            if best is None or scored > best[0]:
                best = (scored, choice, run)
        assert best is not None  # a geometric number is at least one
        self.best_score_, choice, self.best_estimator_ = best
        self.best_params_ = dict(self.candidates[choice])
        self._guarantee = self._accounted(plan, self.best_estimator_.guarantee_)
        return self

    def _plan_of(self, run: Estimator, plan: Plan) -> Plan:
        return replace(run.uncalibrated_plan(), noise=plan.noise)

    def _candidate(self, settings: Mapping[str, Any]) -> Estimator:
        return self.estimator.__sklearn_clone__().set_params(**settings, repeats=Repeats.APART)

    def _accounted(self, plan: Plan, of_run: Guarantee) -> Guarantee:
        words = (*self._search.assumptions, "the scores of runs were computed without private records")
        of_process = tuple(reason for reason in of_run.not_private_because if reason not in plan.not_private_because)
        event = self._search.event(plan.event)
        found = plan.account_event(event, assumptions=words, not_private_because=of_process)
        return replace(found, tried=of_run.tried)

    def predict(self, inputs: Inputs) -> Array:
        """Return the predictions of the best model."""
        _ = self.guarantee_
        return self.best_estimator_.predict(inputs)
