"""Mutants of random allocation: its bound and its draws."""

from __future__ import annotations

from tests.mutants.mutant import one

_BOUND = "accounting/random_allocation.py"
_DRAWS = "mechanism/balls_in_bins.py"
_EXACT = "tests/accounting/test_random_allocation.py::test_two_steps_cost_what_integration_says"
_MASSES = "tests/accounting/test_random_allocation.py::test_the_pair_has_the_masses_and_the_variance_of_the_sum"
_CONTRACT = "tests/contract/test_samplers.py"

ALLOCATION = (
    one(
        "terms-rounded-to-the-nearest",
        "rounding makes the likelihood ratio vary less than it does",
        _BOUND,
        "    found[:last] += mass[:last] - to_right\n    found[1 : last + 1] += to_right\n",
        "    found[:last] += mass[:last]\n",
        _EXACT,
    ),
    one(
        "one-step-too-few-summed",
        "the sum lacks a term, so its mean is not one",
        _BOUND,
        "fft.rfft(one) ** steps",
        "fft.rfft(one) ** (steps - 1)",
        _MASSES,
    ),
    one(
        "cut-tail-forgotten",
        "large likelihood ratios are cut off and not charged",
        _BOUND,
        "    limit = math.exp(1 / (2 * z * z) + _CUT / z)",
        "    limit = math.exp(1 / (2 * z * z) + 2.0 / z)",
        _MASSES,
    ),
    one(
        "allocation-one-way",
        "an attacker who looks for the absence of a record is forgotten",
        _BOUND,
        "        return pair, Mirrored(pair=pair)",
        "        return Mirrored(pair=pair), Mirrored(pair=pair)",
        _EXACT,
    ),
    one(
        "allocation-of-more-steps",
        "an epoch is charged as if it had twice as many batches",
        _DRAWS,
        "RandomAllocationDpEvent(steps=self.batches, event=event)",
        "RandomAllocationDpEvent(steps=2 * self.batches, event=event)",
        _CONTRACT + "::test_a_round_is_charged_as_declared",
    ),
    one(
        "allocation-under-exchange",
        "an exchange is charged as a missing record",
        _DRAWS,
        "return adjacency.refused_exchange(",
        "return Adjacency.ADD_REMOVE.refused_exchange(",
        _CONTRACT + "::test_refuses_exactly_the_adjacencies_without_a_proof",
    ),
    one(
        "bins-by-position",
        "records are dealt by position, which adding one moves",
        _DRAWS,
        "        chosen = rng.integers(self.batches, size=num_examples)",
        "        chosen = rng.permutation(num_examples) % self.batches",
        "tests/mechanism/test_balls_in_bins.py::test_one_more_record_moves_no_other_one",
    ),
)
