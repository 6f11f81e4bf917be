"""Who proposes the settings of trials: the fixed law itself, or a sampler that learns from results."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from privet.errors import RecipeError
from privet.runs.search_law import Choice, Range, SearchLaw


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A finished trial.

    Attributes:
        number: Its number.
        values: Its settings.
        score: Its figure on public data; larger is better.
    """

    number: int
    values: dict[str, Any]
    score: float


class TrialSampler(Protocol):
    """Proposes settings.

    Attributes:
        adapts: Whether proposals depend on earlier results. Such trials are charged one by one.
    """

    adapts: ClassVar[bool]

    def propose(self, law: SearchLaw, number: int, done: Sequence[Trial], key: int) -> dict[str, Any]:
        """Return the settings of a trial.

        Args:
            law: What varies.
            number: Number of the trial.
            done: The finished trials.
            key: The secret key of the search.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class FromLaw:
    """Draws from the law, each trial from a stream of its own.

    Guarantee: a trial's settings depend on its number and on the key only, so trials are independent, and a search that
    is taken up again has the same ones.
    """

    adapts: ClassVar[bool] = False

    def propose(self, law: SearchLaw, number: int, done: Sequence[Trial], key: int) -> dict[str, Any]:
        return law.draw(np.random.default_rng(np.random.SeedSequence((key, number))))


@dataclass(frozen=True, kw_only=True)
class FromOptuna:
    """Optuna's tree-structured Parzen estimator, which learns from the finished trials; an optional package."""

    adapts: ClassVar[bool] = True

    def propose(self, law: SearchLaw, number: int, done: Sequence[Trial], key: int) -> dict[str, Any]:
        try:
            optuna: Any = importlib.import_module("optuna")
        except ImportError:
            raise RecipeError(
                "The sampler 'optuna' needs the package optuna: pip install optuna. Without it leave --sampler out: "
                "trials drawn from the law cost less."
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        spaces = {setting.path: _distribution(optuna, setting) for setting in law.settings}
        sampler = optuna.samplers.TPESampler(seed=int(np.random.SeedSequence((key, number)).generate_state(1)[0]))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in done:
            study.add_trial(optuna.trial.create_trial(params=trial.values, distributions=spaces, value=trial.score))
        return dict(study.ask(spaces).params)


def _distribution(optuna: Any, setting: Any) -> Any:
    if isinstance(setting, Range):
        return optuna.distributions.FloatDistribution(setting.low, setting.high, log=setting.is_log)
    assert isinstance(setting, Choice)
    return optuna.distributions.CategoricalDistribution(setting.values)
