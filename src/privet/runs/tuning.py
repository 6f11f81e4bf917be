"""Tuning as a job: trials of a recipe, charged in one ledger, of which the best is released.

A trial that was broken off is not taken up again. It is charged in full, beside the search, and another is run in its
place: what its process may have left behind is covered, and all trials that are compared are whole runs.
"""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privet.accounting.calibration import calibrate_noise
from privet.accounting.guarantee import SEEDED, Guarantee
from privet.accounting.ledger import Ledger, LedgerView
from privet.accounting.ledger.heads import UserHeads
from privet.datasets.arrays import ArrayDataset
from privet.datasets.tasks import Task
from privet.errors import CheckpointError, LedgerMismatch, RecipeError
from privet.mechanism.events import DpEvent, encode_event, same_event
from privet.mechanism.executed import ExecutedRound
from privet.runs.building import load_tested
from privet.runs.ledger_check import check_ledger
from privet.runs.measures import Measure
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import recipe_from_values
from privet.runs.run_files import RunFiles, read_json, write_json, write_whole
from privet.runs.runner import evaluate, train
from privet.runs.search_files import SearchFiles
from privet.runs.search_law import SearchLaw, overrides_of
from privet.runs.trial_charges import TrialCharges
from privet.runs.trial_samplers import Trial, TrialSampler
from privet.vocabulary import Release

OF_A_TRIAL = "this run is one trial of a search, whose own ledger states what the released model costs"
# Draws from the law that are tried before anything is charged.
_TRIED_DRAWS = 32


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A finished search.

    Attributes:
        guarantee: Of the chosen model, the search included.
        values: The settings of the chosen trial.
        score: Its figure on public data.
        measure: The name of that figure.
        folder: The folder with the chosen model.
    """

    guarantee: Guarantee
    values: dict[str, Any]
    score: float
    measure: str
    folder: Path


class Tuning:
    """One search, new or taken up again.

    Guarantee:
        Whatever fails wherever, the ledger of the search charges at least what was released: the whole search is
        charged before its first trial, or every trial before it begins. A trial that was broken off stays charged.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: str | Path,
        *,
        law: SearchLaw,
        charges: TrialCharges,
        sampler: TrialSampler,
        public: ArrayDataset | None = None,
    ) -> None:
        """Check everything that can be checked without data.

        Args:
            recipe: What all trials share. Its epsilon is that of the whole search.
            folder: The folder of the search; one that holds this search is taken up again.
            law: What varies, and how it is drawn.
            charges: How trials are charged.
            sampler: Who proposes settings.
            public: Public data to compare trials on; None for the test data of a recipe whose data are public.

        Raises:
            RecipeError: the sampler needs other charges, trials cannot be compared, or settings change the charge.
        """
        if sampler.adapts and not charges.may_adapt:
            raise RecipeError(
                f"{type(sampler).__name__} learns from results, and {type(charges).__name__} is proven for independent "
                "trials only. Charge every trial: EveryTrial(count=...)."
            )
        if public is None and not recipe.is_public:
            raise RecipeError(
                "Trials are compared on public data: a figure of private data would be a release that nothing charges. "
                "Give public records of this kind (--compare-on FILE), or set data_is_public = true if the data are."
            )
        own = recipe.own_data
        if public is None and own is not None and own.test is None:
            raise RecipeError(
                "Trials are compared on public data, and the recipe names no test data. Name some (test = FILE in its "
                "[table] or [images]), or give public records of this kind (--compare-on FILE)."
            )
        self._files = SearchFiles(folder=Path(folder))
        self._law, self._charges, self._sampler, self._public = law, charges, sampler, public
        asked = self._asked(recipe)
        stored = self._stored(asked)
        self._recipe = self._calibrated(recipe) if stored is None else stored
        self._plan = self._recipe.plan()
        if self._plan.release is not Release.EVERY_ITERATE:
            raise RecipeError("A search releases one of several runs, which the proof of LAST_ITERATE does not cover.")
        self._one_run: DpEvent = self._plan.event
        self._check_law()
        self._measure = _first_measure(self._recipe.info.task)
        if stored is None:
            self._files.folder.mkdir(parents=True, exist_ok=True)
            write_json(self._files.asked, {"asked": asked, "trial": self._recipe.to_dict()})
        secret = self._secret()
        self._num_trials, self._key = int(secret["num_trials"]), int(secret["key"], 16)

    @property
    def planned(self) -> Guarantee:
        """The guarantee of the chosen model if nothing is broken off; known before any data is read."""
        return self._stated(self._charges.total(self._one_run))

    def spent(self) -> Guarantee:
        """Return the guarantee from the ledger of the search."""
        return self._stated(self._view().event)

    def _stated(self, event: DpEvent) -> Guarantee:
        reasons = (SEEDED,) if self._recipe.training.seed is not None else ()
        words = (*self._charges.assumptions, *self._recipe.assumptions)
        return self._plan.account_event(event, assumptions=words, not_private_because=reasons)

    def _asked(self, recipe: Recipe) -> dict[str, Any]:
        asked = {"recipe": recipe.to_dict(), "law": self._law.words(), "charges": self._charges.to_dict()}
        return {**asked, "sampler": type(self._sampler).__name__}

    def _stored(self, asked: dict[str, Any]) -> Recipe | None:
        """Return the recipe of a trial of the search that the folder holds; None if it holds nothing."""
        if self._files.asked.exists():
            stored = read_json(self._files.asked)
            if stored.get("asked") != asked:
                raise LedgerMismatch(
                    f"{self._files.folder} holds another search, and a search cannot change once data were used. Use "
                    "the same command to take it up again, or a new folder; both guarantees then add up."
                )
            return Recipe.from_dict(stored["trial"])
        if self._files.folder.exists() and any(self._files.folder.iterdir()):
            raise CheckpointError(f"{self._files.folder} holds files that are not a search's. Name a new folder.")
        return None

    def _calibrated(self, recipe: Recipe) -> Recipe:
        """Return the recipe of a trial, with the noise for which the whole search meets the recipe's epsilon."""
        if recipe.privacy.epsilon is None:
            return recipe
        plan = recipe.plan()

        def whole(multiplier: float) -> DpEvent:
            return self._charges.total(replace(plan, noise=plan.noise.with_multiplier(multiplier)).event)

        found = calibrate_noise(whole, epsilon=recipe.privacy.epsilon, delta=plan.delta, adjacency=plan.adjacency)
        values = recipe.to_dict()
        values["privacy"].pop("epsilon")
        values["privacy"]["noise"]["noise_multiplier"] = found
        return Recipe.from_dict(values)

    def _check_law(self) -> None:
        rng = np.random.default_rng(0)  # public draws, which no trial uses
        for _ in range(_TRIED_DRAWS):
            self._trial_recipe(self._law.draw(rng))

    def _trial_recipe(self, values: dict[str, Any]) -> Recipe:
        """Return the recipe of a trial; refuse settings that change what a run costs."""
        found = recipe_from_values(self._recipe.to_dict(), overrides_of(values), folder=None)
        plan = found.plan()
        same = same_event(plan.event, self._one_run) and plan.delta == self._plan.delta
        if not same or (plan.adjacency, plan.unit) != (self._plan.adjacency, self._plan.unit):
            raise RecipeError(
                f"The settings {', '.join(values)} change what a run costs, and all trials of a search must cost the "
                "same. Vary something else."
            )
        return found

    def _secret(self) -> dict[str, Any]:
        """Return the number of trials and the key, drawn once."""
        if self._files.secret.exists():
            return read_json(self._files.secret)
        seed = self._recipe.training.seed
        key = secrets.randbits(128) if seed is None else seed
        count = self._charges.num_trials(np.random.default_rng(np.random.SeedSequence((key, 0x6C656E))))
        found = {"num_trials": count, "key": f"{key:x}"}
        write_json(self._files.secret, found)
        return found

    def run(
        self,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        after_trial: Callable[[Trial], None] = lambda trial: None,
    ) -> Tuned | None:
        """Run the trials that are left, and write the chosen model; None if it was stopped between two trials.

        Raises:
            RecipeError: there is no model to release: the search was drawn to have no trial, which a Poisson number may
                be, or no trial has a finite figure.
        """
        public = load_tested(self._recipe).test if self._public is None else self._public
        ledger = self._open()
        try:
            self._charge_start(ledger)
            done = self._finished()
            while len(done) < self._num_trials:
                if should_stop():
                    return None
                done.append(self._run_trial(ledger, done, public))
                after_trial(done[-1])
            self._confirm(ledger, done)
        finally:
            # What was reserved stays charged: nothing of a search is given back.
            ledger.abandon()
        if not done:
            raise RecipeError("The number of trials was drawn to be zero, so there is no model. The charge stays.")
        return self._release(max(done, key=lambda trial: trial.score), public)

    def _open(self) -> Ledger:
        if self._files.ledger.exists():
            return Ledger.open(self._files.ledger, plan_hash=self._plan.hash, heads=UserHeads())
        return Ledger.create(
            self._files.ledger,
            plan=self._plan.to_dict(),
            plan_hash=self._plan.hash,
            is_seeded=self._recipe.training.seed is not None,
            assumptions=(*self._charges.assumptions, *self._recipe.assumptions),
            heads=UserHeads(),
        )

    def _view(self) -> LedgerView:
        return Ledger.read(self._files.ledger)

    def _charge_start(self, ledger: Ledger) -> None:
        """Charge the search, and every trial that was broken off, unless an earlier process did."""
        whole = self._charges.at_start(self._one_run)
        if whole is None:
            return
        charged = list(ledger.charged)
        if not any(same_event(event, whole) for event, _ in charged):
            ledger.reserve(whole, 1)
        paid = sum(count for event, count in charged if same_event(event, self._one_run))
        owed = len(self._files.broken_off()) - paid
        if owed > 0:
            ledger.reserve(self._one_run, owed)

    def _finished(self) -> list[Trial]:
        found = []
        for number in self._files.begun():
            if self._files.score(number).exists():
                stored = read_json(self._files.score(number))
                score = -math.inf if stored["score"] is None else float(stored["score"])
                found.append(Trial(number=number, values=dict(stored["values"]), score=score))
        return found

    def _run_trial(self, ledger: Ledger, done: list[Trial], public: ArrayDataset) -> Trial:
        number = max(self._files.begun(), default=0) + 1
        values = self._sampler.propose(self._law, number, done, self._key)
        recipe = self._trial_recipe(values)
        seed = recipe.training.seed
        if seed is not None:
            recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"seed": seed + number})})
        if self._charges.at_start(self._one_run) is None:
            ledger.reserve(self._one_run, 1)
        folder = self._files.trial(number)
        folder.parent.mkdir(exist_ok=True)
        outcome = train(recipe, folder, assumptions=(OF_A_TRIAL,))
        if not outcome.is_finished:
            raise CheckpointError("A trial was broken off. It stays charged; the same command goes on with another.")
        score = self._scored(folder, public)
        write_json(self._files.score(number), {"values": values, "score": score if math.isfinite(score) else None})
        return Trial(number=number, values=values, score=score)

    def _figure(self, folder: Path, public: ArrayDataset) -> Measure | None:
        """Return the figure that trials are compared by; None if it is not finite."""
        return next((one for one in evaluate(folder, test=public).measures if one.name == self._measure), None)

    def _scored(self, folder: Path, public: ArrayDataset) -> float:
        """Return how good a trial is; minus infinity if its figure is not finite, since its training diverged."""
        figure = self._figure(folder, public)
        if figure is None:
            return -math.inf
        return figure.value if _is_share(figure.name) else -figure.value

    def _confirm(self, ledger: Ledger, done: list[Trial]) -> None:
        """Compare what the ledgers of the trials charged with what the search was charged for."""
        for trial in done:
            found = check_ledger(self._files.trial(trial.number))
            whole = found.event if self._charges.at_start(found.event) is None else self._charges.at_start(found.event)
            assert whole is not None
            ledger.check_within(ExecutedRound.read(encode_event(whole)))

    def _release(self, best: Trial, public: ArrayDataset) -> Tuned:
        """Write the chosen model with the guarantee of the whole search."""
        source, chosen = RunFiles(folder=self._files.trial(best.number)), self._files.chosen
        measure = self._figure(source.folder, public)
        if measure is None:
            raise RecipeError(
                f"No trial has a finite figure ({self._measure}) on the public data, so there is no model. The charge "
                "stays. Begin another search in a new folder, with smaller learning rates."
            )
        chosen.mkdir(exist_ok=True)
        spent = self.spent()
        shutil.copyfile(source.model, chosen / "model.safetensors")
        write_whole(chosen / "recipe.toml", self._trial_recipe(best.values).to_toml())
        write_whole(chosen / "statement.txt", spent.statement() + "\n")
        record = {
            "guarantee": spent.to_dict(),
            "settings": best.values,
            "measure": measure.name,
            "value": measure.value,
        }
        write_json(chosen / "guarantee.json", record)
        return Tuned(guarantee=spent, values=best.values, score=measure.value, measure=measure.name, folder=chosen)


def _first_measure(task: Task) -> str:
    """Return the name of the figure that models of a task are compared by: the first one, of the first target."""
    return next(iter(task.scores(torch.zeros(1, task.num_outputs), task.made_up(1, torch.Generator()))))


def _is_share(measure: str) -> bool:
    """Whether more is better, as for a share of correct decisions; all other figures are errors."""
    return measure.rpartition(": ")[2] == "accuracy"
