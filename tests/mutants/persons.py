"""Mutants of persons: how many records of one take part, what is clipped, and what that is charged."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

_OWNERS = "mechanism/owners.py"
_PERSONS = "mechanism/persons.py"
_TRAINING = "training/persons.py"
_PAIR = "accounting/sampled_records.py"
_COST = "tests/mechanism/test_persons.py::test_bounded_records_cost_the_librarys_mixture_of_gaussians"
_BOUND = "tests/mechanism/test_persons.py::test_a_person_has_at_most_the_bound_and_only_own_records"
_MEAN = "tests/training/test_persons.py::test_the_clipped_gradient_is_the_mean_over_the_persons_records"
_THOUSAND = "tests/training/test_persons.py::test_a_person_with_a_thousand_records_moves_the_sum_by_at_most_the_bound"
_AUDIT = "tests/attacks/test_person_canaries.py"

PERSONS: tuple[Mutant, ...] = (
    one(
        "bands-beyond-persons-uses",
        "correlated noise has one band more than the steps between two uses of a person",
        _PERSONS,
        "        return self.sampling.separation\n",
        "        return self.sampling.separation + 1\n",
        "tests/mechanism/test_persons.py::test_two_uses_of_a_person_are_whole_cycles_apart",
    ),
    one(
        "one-record-too-many",
        "a person has one record more than the bound",
        _OWNERS,
        "records = records[inside < max_records]",
        "records = records[inside <= max_records]",
        _BOUND,
    ),
    one(
        "filled-with-others",
        "a person with few records is filled up with those of another",
        _OWNERS,
        "np.repeat(-1 - records[first][:, None], width, axis=1)",
        "np.repeat(-1 - records[:1][:, None], width, axis=0).repeat(len(sizes) * width).reshape(len(sizes), width)",
        _BOUND,
    ),
    one(
        "filling-counts",
        "the rows that fill up a person count as records",
        _OWNERS,
        "    counts = rows >= 0\n",
        "    counts = rows >= -len(rows) - 10**9\n",
        _MEAN,
        "tests/mechanism/test_persons.py::test_a_person_has_at_most_the_bound_and_only_own_records",
    ),
    one(
        "a-person-summed",
        "the gradients of a person are summed and their bound is that of one record: dilution is gone, clipping stays",
        _TRAINING,
        "weights = counts / counts.sum(1, keepdims=True)",
        "weights = counts * 1.0",
        _MEAN,
    ),
    one(
        "bounded-charged-as-one",
        "several records of a person are charged as one",
        _PERSONS,
        "        if self.max_records == 1:\n            return self.sampling.amplify(event)",
        "        if self.max_records >= 1:\n            return self.sampling.amplify(event)",
        _COST,
    ),
    one(
        "one-record-less-charged",
        "the charge is for one record less than are kept",
        _PERSONS,
        "num_records=self.max_records, noise_multiplier",
        "num_records=self.max_records - 1, noise_multiplier",
        _COST,
    ),
    one(
        "full-batches-of-records-charged-as-one",
        "all records of a person in every step are charged as one",
        _PERSONS,
        "return GaussianDpEvent(multiplier / self.max_records)",
        "return GaussianDpEvent(multiplier)",
        "tests/contract/test_samplers.py::test_a_round_is_charged_as_declared",
    ),
    one(
        "all-records-kept",
        "the bound on a person's records is not held",
        _PERSONS,
        "owners.chosen(np.arange(owners.num_persons), self.max_records, rng)",
        "owners.chosen(np.arange(owners.num_persons), 10**9, rng)",
        "tests/training/test_persons.py::test_bounded_records_of_a_person_move_the_sum_by_at_most_their_number_of_bounds",
        _AUDIT,
    ),
    one(
        "records-clipped-one-by-one",
        "persons are drawn, and each of their records is clipped by itself",
        _PERSONS,
        "    def records_per_item(self) -> int:\n        return self.max_records\n",
        "    def records_per_item(self) -> int:\n        return 1\n",
        _THOUSAND,
        _MEAN,
    ),
    one(
        "an-exchange-of-persons-accepted",
        "a mixture is claimed for an exchange, without a proof",
        _PERSONS,
        "if adjacency is Adjacency.REPLACE_ONE and self._rate < 1",
        "if adjacency is None and self._rate < 1",
        "tests/contract/test_samplers.py::test_refuses_exactly_the_adjacencies_without_a_proof",
    ),
    one(
        "dependent-coins-accepted",
        "records that are not drawn by independent coins are charged as if they were",
        _PERSONS,
        "if self.sampling.independent_rate is None or self.sampling.batch_limit is not None:",
        "if self.sampling.independent_rate is None and self.sampling.batch_limit is None:",
        "tests/mechanism/test_persons.py::test_records_are_drawn_by_independent_coins_only",
    ),
    one(
        "smaller-direction-of-records",
        "a removed person is charged as an added one, which reveals less",
        _PAIR,
        "return removed, Reversed(pair=removed)",
        "return Reversed(pair=removed), Reversed(pair=removed)",
        "tests/contract/test_accountants.py",
        "tests/accounting/test_sampled_records.py",
    ),
    one(
        "a-person-split",
        "a physical batch may be too small for the records of one person",
        "training/summing.py",
        "    if physical_batch_size < records_per_item:",
        "    if physical_batch_size < 1:",
        "tests/training/test_persons.py::test_a_person_that_does_not_fit_into_a_physical_batch_is_refused",
    ),
    one(
        "several-owners-accepted",
        "a record with several owners counts as that of a person of its own",
        _OWNERS,
        "    if isinstance(name, _SEVERAL) or math",
        "    if isinstance(name, Owners) or math",
        "tests/mechanism/test_persons.py::test_a_record_with_several_owners_is_refused_with_a_pointer",
    ),
    one(
        "one-person-with-two-names",
        "a person is 1 in some records and '1' in others, and takes part twice",
        _OWNERS,
        "        if kind is not self._kind:",
        "        if kind is None:",
        "tests/mechanism/test_persons.py::test_names_of_two_types_are_refused_since_a_person_could_have_one_of_each",
    ),
    one(
        "two-persons-with-one-name",
        "persons whose numbers were rounded together count as one, whom one of them moves by twice the bound",
        _OWNERS,
        "    if isinstance(plain, float) and abs(plain) >= _exact_below(name):",
        "    if False:",
        "tests/mechanism/test_persons.py::test_numbers_that_may_have_been_rounded_together_name_nobody",
    ),
    one(
        "missing-name-is-a-name",
        "records without a name are those of one person called nan",
        "checks.py",
        "    return word.strip().lower() in _MISSING",
        "    return not word.strip()",
        "tests/mechanism/test_persons.py::test_a_record_without_a_name_is_refused",
    ),
)
