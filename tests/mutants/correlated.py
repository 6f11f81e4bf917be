"""Mutants of noise that is correlated between steps: its size, its memory, its charge and its groups."""

from __future__ import annotations

from tests.mutants.mutant import one

_NOISE = "mechanism/correlated_noise.py"
_SERIES = "mechanism/factorisation.py"
_GROUPS = "mechanism/cyclic_poisson.py"
_COVARIANCE = "tests/mechanism/test_correlated_noise.py::test_the_covariance_of_many_draws_is_that_of_the_factorisation"
_ATTACKER = (
    "tests/accounting/test_correlated_charge.py::test_the_best_attacker_gets_at_most_what_is_charged_and_nearly_as_much"
)
_REFUSES = "tests/mechanism/test_correlated_noise.py::test_a_plan_refuses_noise_whose_rounds_have_no_proven_cost"
_RESTARTS = (
    "tests/mechanism/test_correlated_noise.py::test_a_restart_begins_a_mechanism_that_shares_no_noise_with_the_last_one"
)

CORRELATED = (
    one(
        "bands-cost-nothing",
        "the draws ignore that a contribution reaches several releases",
        _NOISE,
        "        return math.sqrt(math.fsum(value * value for value in self.coefficients))",
        "        return 1.0",
        _ATTACKER,
    ),
    one(
        "bands-closer-than-uses",
        "records may come again within the bands",
        _NOISE,
        "        if self.bands <= sampling.separation:",
        "        if self.bands <= sampling.steps_per_epoch:",
        _REFUSES,
    ),
    one(
        "noise-not-taken-back",
        "each step has a fresh draw only, so the released noise has another covariance",
        _NOISE,
        "        fresh.addmv_(past.T, turning[size - place : 2 * size - place], alpha=-1.0)\n",
        "",
        _COVARIANCE,
    ),
    one(
        "bands-in-the-wrong-order",
        "old noise is taken back with the coefficients of new noise",
        _NOISE,
        "turning[size - place : 2 * size - place]",
        "turning[:size]",
        _COVARIANCE,
    ),
    one(
        "restart-keeps-noise",
        "a new mechanism takes back noise of the one before it, while records come again sooner",
        _NOISE,
        "        if self._past is not None:\n            self._past.zero_()",
        "        if self._past is not None:\n            pass",
        _RESTARTS,
    ),
    one(
        "walk-without-restart",
        "a walk after a break goes on with the old mechanism",
        "training/session.py",
        "        run.state.noise.restart()",
        "        pass",
        "tests/training/test_correlated_runs.py::test_a_new_walk_is_a_new_mechanism_and_a_new_cycle",
    ),
    one(
        "walks-alternate",
        "the steps of two walks mix, so a record comes again within the bands",
        "training/session.py",
        "                if walk != self._num_walks:",
        "                if walk > self._num_walks:",
        "tests/training/test_correlated_runs.py::test_the_steps_of_two_walks_never_alternate",
    ),
    one(
        "inverse-bands-charged-once",
        "the draws ignore that the uses of several epochs add up",
        _SERIES,
        "    return float(np.square(np.cumsum(parts, axis=0)).sum()) / epochs",
        "    return float(np.square(parts).sum()) / epochs",
        "tests/mechanism/test_factorisation.py::test_a_run_of_some_epochs_moves_by_at_most_its_share_of_the_bound",
    ),
    one(
        "inverse-bands-under-coins",
        "noise without a proven amplification is taken with random batches",
        _NOISE,
        "        if sampling.fixed_batches is None:\n            return (",
        "        if sampling.fixed_batches is None:\n            return None and (",
        _REFUSES,
    ),
    one(
        "inverse-bands-for-more-epochs",
        "a run is longer than the one its noise was made for",
        _NOISE,
        " or sampling.num_rounds > self.epochs:",
        ":",
        _REFUSES,
    ),
    one(
        "masks-with-bands",
        "a mask leaves coordinates without noise, which no proof covers",
        "plan.py",
        "        if not self.noise.is_independent and not self.mask.is_whole:",
        "        if False:",
        "tests/mechanism/test_correlated_noise.py::test_masks_and_hidden_iterates_are_refused_with_correlated_noise",
    ),
    one(
        "hidden-iterates-with-bands",
        "the last iterate is charged as if noise were independent",
        "accounting/hidden_state.py",
        "    if not noise.is_independent:",
        "    if False:",
        "tests/mechanism/test_correlated_noise.py::test_masks_and_hidden_iterates_are_refused_with_correlated_noise",
    ),
    one(
        "groups-dealt-every-cycle",
        "a record changes its group between cycles and comes again too soon",
        _GROUPS,
        "return partition_generator(rng).integers(self.groups, size=num_examples)",
        "return rng.integers(self.groups, size=num_examples)",
        "tests/mechanism/test_cyclic_poisson.py::test_two_uses_of_a_record_are_whole_cycles_apart",
    ),
    one(
        "groups-of-equal-size",
        "one more record moves others to another group",
        _GROUPS,
        "return partition_generator(rng).integers(self.groups, size=num_examples)",
        "return partition_generator(rng).permutation(num_examples) % self.groups",
        "tests/mechanism/test_cyclic_poisson.py::test_one_more_record_moves_no_other_one",
    ),
    one(
        "cycles-charged-as-steps",
        "a cycle is charged with the rate of one step",
        _GROUPS,
        "return event if self.rate == 1 else PoissonSampledDpEvent(self.rate, event)",
        "return event if self.rate == 1 else PoissonSampledDpEvent(self.inclusion, event)",
        "tests/contract/test_samplers.py::test_a_round_is_charged_as_declared",
    ),
    one(
        "numbers-given-twice",
        "two runs of one source share their draws",
        "training/randomness.py",
        "        return next(self._numbers)",
        "        return 0",
        "tests/mechanism/test_correlated_noise.py::test_two_runs_of_one_source_never_share_a_draw",
    ),
    one(
        "rows-told-as-draws",
        "an optimizer that subtracts the variance of the noise subtracts that of the draws",
        _NOISE,
        "noise_std=size * row)",
        "noise_std=size)",
        "tests/mechanism/test_correlated_noise.py::test_the_noise_of_each_step_is_told_with_the_length_of_its_row",
    ),
)
