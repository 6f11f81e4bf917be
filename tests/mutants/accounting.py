"""Mutants of the accountants: relation, rate, steps, delta, and every term that is added for safety."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

_ACCOUNTANTS = "accounting/accountants.py"
_RELEASES = "accounting/releases.py"
_RENYI = "accounting/renyi.py"
_LOSSES = "accounting/loss_distribution.py"
_EVENTS = "mechanism/events.py"
_TESTS = "tests/accounting/test_accountants.py"
_REFERENCE = _TESTS + "::test_many_steps_agree_with_the_reference_in_every_direction"
_ONE_STEP = _TESTS + "::test_one_step_has_its_closed_form"
_TWICE = _TESTS + "::test_replacing_one_unit_is_twice_the_signal_in_every_accountant"


def _releases(name: str, breaks: str, old: str, new: str, *killed_by: str) -> Mutant:
    return one(name, breaks, _RELEASES, old, new, *killed_by)


ACCOUNTING = (
    one(
        "replacing-charged-as-removing",
        "the factor two of replacing a record is missing",
        _ACCOUNTANTS,
        "return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0",
        "return 1.0 if adjacency is Adjacency.REPLACE_ONE else 1.0",
        _TWICE,
    ),
    one(
        "sampled-replacing-charged-as-removing",
        "replacing a record in a sampled release is accounted as removing it",
        _ACCOUNTANTS,
        "        if adjacency is Adjacency.REPLACE_ONE:\n            removed.append",
        "        if adjacency is None:\n            removed.append",
        _REFERENCE,
    ),
    one(
        "only-one-direction",
        "the order of the two data sets that reveals more is left out",
        _ACCOUNTANTS,
        "return [removed] if removed == added else [removed, added]",
        "return [added]",
        _REFERENCE,
    ),
    one(
        "renyi-replacing-charged-as-removing",
        "the Renyi divergence of replacing is that of removing",
        _RENYI,
        "    reach = 2.0 if replace else 1.0",
        "    replace, reach = False, 1.0",
        "tests/accounting/test_renyi.py",
        _TWICE,
    ),
    one(
        "renyi-divided-by-the-order",
        "Renyi divergences come out too small",
        _RENYI,
        "(max(0.0, forward, backward) + _ROUNDING) / (order - 1))",
        "(max(0.0, forward, backward) + _ROUNDING) / order)",
        "tests/accounting/test_renyi.py",
    ),
    one(
        "renyi-one-direction",
        "only the smaller of the two Renyi divergences counts",
        _RENYI,
        "(max(0.0, forward, backward) + _ROUNDING) / (order - 1))",
        "(max(0.0, min(forward, backward) if not replace else forward) + _ROUNDING) / (order - 1))",
        "tests/accounting/test_renyi.py",
    ),
    _releases(
        "half-the-rate-accounted",
        "the accountant reads half of the sampling probability",
        "rate, inner = float(part.sampling_probability), list(flatten(part.event))",
        "rate, inner = float(part.sampling_probability) / 2, list(flatten(part.event))",
        _REFERENCE,
    ),
    _releases(
        "one-step-fewer-accounted",
        "the last step is free",
        "self.sampled[rate, multiplier] = self.sampled.get((rate, multiplier), 0) + count",
        "self.sampled[rate, multiplier] = self.sampled.get((rate, multiplier), 0) + max(1, count - 1)",
        _TESTS + "::test_two_steps_agree_with_quadrature",
    ),
    _releases(
        "whole-data-releases-counted-once",
        "repeated releases on the whole data set are charged once",
        "self.precision += count / multiplier / multiplier",
        "self.precision += 1 / multiplier / multiplier",
        _TESTS + "::test_nine_releases_on_all_data_cost_what_one_with_a_third_of_their_noise_does",
    ),
    _releases(
        "no-noise-costs-nothing",
        "a release without noise vanishes from the account",
        "self.nothing_hidden = self.nothing_hidden or not is_some",
        "self.nothing_hidden = bool(self.nothing_hidden)",
        _TESTS + "::test_what_hides_nothing_costs_infinity",
    ),
    _releases(
        "overflow-charged-once-for-all-steps",
        "the surcharge of truncation is counted for one step only",
        "self.total_variation += count * part.distance",
        "self.total_variation += part.distance",
        "tests/accounting/test_truncation.py::test_surcharges_of_all_steps_add_up",
    ),
    one(
        "overflow-surcharge-without-its-factor",
        "a difference in total variation is added without its factor 1 + exp(epsilon)",
        "accounting/surcharge.py",
        "extra = self.total_variation * (1 + np.exp(np.minimum(epsilons, 700.0)))",
        "extra = self.total_variation * np.ones_like(epsilons)",
        "tests/accounting/test_truncation.py::test_the_charge_by_total_variation_has_its_reference_value",
    ),
    one(
        "full-batches-of-truncation-free",
        "the case of a full batch, which reveals more, is charged like any other",
        "accounting/mechanisms.py",
        "full, _ = _sampled_pairs(self.full_rate, self.noise_multiplier / 2, Adjacency.REPLACE_ONE)",
        "full, _ = _sampled_pairs(self.full_rate, self.noise_multiplier, adjacency)",
        "tests/accounting/test_mechanisms.py",
    ),
    one(
        "repeats-not-composed",
        "nested repetitions are charged once",
        _EVENTS,
        "counts[key] = counts.get(key, 0) + repeats * checks.count",
        "counts[key] = counts.get(key, 0) + checks.count",
        "tests/mechanism/test_events.py",
    ),
    one(
        "equal-events-overwrite-each-other",
        "of two equal stretches of a run one is charged",
        _EVENTS,
        "counts[key] = counts.get(key, 0) + repeats",
        "counts[key] = repeats",
        "tests/mechanism/test_events.py",
    ),
    one(
        "joint-releases-cost-the-dearest",
        "several releases on one sample cost as much as the dearest of them",
        _EVENTS,
        "return 1 / math.hypot(*(1 / z for z in informative))",
        "return min(informative)",
        "tests/mechanism/test_events.py",
    ),
    one(
        "larger-delta-accounted",
        "epsilon is computed at ten times the promised delta",
        "accounting/guarantee.py",
        "    epsilon = curve.epsilon(delta)",
        "    epsilon = curve.epsilon(min(0.5, 10 * delta))",
        "tests/accounting/test_guarantee.py",
    ),
    one(
        "lost-mass-not-added",
        "outcomes beyond the grid are taken to be impossible",
        _LOSSES,
        "deltas = finite + at_infinity + _TRUNCATED_MASS + rounding * factor",
        "deltas = finite",
        _TESTS + "::test_beyond_its_grid_a_curve_admits_what_it_left_out",
    ),
    one(
        "losses-rounded-down",
        "privacy losses between two grid points are put on the lower one",
        _LOSSES,
        "    masses[:-1] += upper - to_right\n    masses[1:] += to_right",
        "    masses[:-1] += upper",
        _ONE_STEP,
    ),
    one(
        "renyi-conversion-without-its-order",
        "the conversion to epsilon forgets a term that depends on delta",
        "accounting/curves.py",
        "bounds = r + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)",
        "bounds = r + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / a",
        "tests/accounting/test_renyi.py::test_the_conversion_is_the_published_one",
    ),
    one(
        "calibration-overshoots",
        "the calibrated noise is a little less than the budget needs",
        "accounting/calibration.py",
        "return math.exp(_refine(spent, target, low, nearby, tolerance))",
        "return math.exp(_refine(spent, target, low, nearby, tolerance)) * 0.995",
        "tests/accounting/test_calibration.py",
    ),
    one(
        "last-iterate-of-an-unfinished-run",
        "a run that stopped early is promised what only its planned end earns",
        "plan.py",
        "if self._last_iterate is None or not ledger.is_complete or len(ledger.charged) != 1:",
        "if self._last_iterate is None or len(ledger.charged) != 1:",
        "tests/accounting/test_last_iterate.py",
        "tests/training/test_last_iterate.py",
    ),
    one(
        "last-iterate-without-a-word-of-its-end",
        "a run that broke off in its last epoch is recorded as one that came to its end",
        "training/session.py",
        "if self.plan.release is Release.LAST_ITERATE and self._iterates.is_complete:",
        "if self.plan.release is Release.LAST_ITERATE:",
        "tests/training/test_last_iterate.py::test_a_second_walk_from_inside_an_epoch_is_another_chain",
    ),
    one(
        "an-end-that-later-rounds-do-not-take-back",
        "rounds charged after the end of a plan leave its last iterate as private as before",
        "accounting/ledger_tally.py",
        "self.is_complete = False  # whatever is charged afterwards",
        "pass  # whatever is charged afterwards",
        "tests/accounting/test_ledger.py::test_whatever_follows_the_end_of_a_plan_takes_it_back",
    ),
    one(
        "account-guesses-the-end-of-a-run",
        "a ledger with all rounds charged counts as that of a run that came to its end",
        "plan.py",
        "return is_used_up and (ledger.is_complete or self.release is Release.EVERY_ITERATE)",
        "return is_used_up",
        "tests/reports/test_one_answer.py",
    ),
    one(
        "guarantee-without-what-it-rests-on",
        "a guarantee does not say that choices, weights and records are taken on trust",
        "plan.py",
        "            *rests_on(self.unit),\n",
        "",
        "tests/test_plan.py::test_every_guarantee_says_what_it_rests_on",
    ),
    one(
        "search-of-one-run-divides-by-zero",
        "a search of mean one cannot be drawn",
        "accounting/search.py",
        "if self.mean == 1:",
        "if self.mean == 0:",
        "tests/accounting/test_search.py::test_a_search_of_mean_one_is_one_run",
    ),
    one(
        "certificate-of-a-broken-run-says-complete",
        "a run that broke off is certified as one that came to its end",
        "reports/certificate.py",
        "return Standing.COMPLETE if self.check.is_finished else Standing.UNFINISHED",
        "return Standing.COMPLETE",
        "tests/reports/test_certificate.py::test_an_unfinished_run_is_certified_for_what_it_used",
        "tests/scripts/test_verify_certificate.py",
    ),
    one(
        "certificate-says-more-than-can-be-checked",
        "a certificate has an entry that the independent program cannot work out",
        "reports/certificate.py",
        '"standing": self.standing.value,',
        '"standing": self.standing.value,\n            "tuning": "none",',
        "tests/scripts/test_verify_certificate.py::test_an_honest_certificate_holds",
    ),
    one(
        "total-of-a-last-iterate-is-exact",
        "the release that a last iterate comes to is reported as a lower bound on what it costs",
        "experiments/project.py",
        "return replace(found, accountant=ACCOUNTANT, lower=None) if hides_iterates else found",
        "return found",
        "tests/reports/test_one_answer.py",
    ),
    one(
        "last-iterate-after-extra-rounds",
        "rounds repeated after a crash do not count against the last iterate",
        "plan.py",
        "return rounds == self.num_rounds and same_event(event, self.round_event)",
        "return same_event(event, self.round_event)",
        "tests/accounting/test_last_iterate.py",
        "tests/training/test_last_iterate.py",
    ),
    one(
        "total-of-runs-is-their-first",
        "several runs on the same data cost as much as one",
        "experiments/project.py",
        "compose([(check.event, 1) for check in checks]),",
        "compose([(check.event, 1) for check in checks[:1]]),",
        "tests/experiments/test_project.py",
    ),
)
