"""Mutants of tuning: what a search is charged, and when."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

_JOB = "runs/tuning.py"
_TESTS = "tests/runs/test_tuning.py"

TUNING: tuple[Mutant, ...] = (
    one(
        "search-charged-after-its-trials",
        "a search is not charged before its first trial",
        _JOB,
        "            self._charge_start(ledger)\n            done = self._finished()\n",
        "            done = self._finished()\n",
        f"{_TESTS}::test_the_whole_search_is_charged_before_its_first_trial",
    ),
    one(
        "broken-off-trials-for-free",
        "a trial that was broken off costs nothing",
        _JOB,
        "owed = len(self._files.broken_off()) - paid",
        "owed = 0 - paid",
        f"{_TESTS}::test_a_trial_that_was_broken_off_stays_charged_and_another_takes_its_place",
    ),
    one(
        "adaptive-sampler-charged-as-independent",
        "a sampler that learns from results is charged as if it did not",
        _JOB,
        "if sampler.adapts and not charges.may_adapt:",
        "if sampler.adapts and charges is None:",
        f"{_TESTS}::test_a_sampler_that_learns_is_refused_where_trials_must_be_independent",
    ),
    one(
        "length-drawn-again",
        "the number of trials is drawn anew by every process",
        _JOB,
        "        if self._files.secret.exists():\n            return read_json(self._files.secret)\n",
        "",
        f"{_TESTS}::test_a_search_that_was_stopped_goes_on_with_the_same_trials_and_no_further_charge",
    ),
    one(
        "compared-on-private-data",
        "trials are compared by exact figures of private data",
        _JOB,
        "if public is None and not recipe.is_public:",
        "if public is None and recipe is None:",
        f"{_TESTS}::test_trials_are_compared_on_public_data_only",
    ),
    one(
        "cost-may-vary",
        "settings that change the charge vary between trials",
        _JOB,
        "same = same_event(plan.event, self._one_run) and plan.delta",
        "same = plan.delta",
        f"{_TESTS}::test_settings_that_change_the_cost_of_a_run_do_not_vary",
    ),
    one(
        "worst-of-several-targets-chosen",
        "with several targets the model with the fewest correct decisions is chosen",
        _JOB,
        '    return measure.rpartition(": ")[2] == "accuracy"',
        '    return measure == "accuracy"',
        f"{_TESTS}::test_models_of_several_targets_are_compared_by_the_first_figure_of_the_first_of_them",
    ),
)
