"""Mutants of sampling: who joins a batch, what that is charged, and by what the sum is divided."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

_SAMPLING = "mechanism/sampling.py"
_SIZE = "size = rng.binomial(num_examples, self.rate)"
_POISSON = "tests/contract/test_samplers.py::test_poisson_sampling_follows_the_law_of_independent_coins"
_CHARGED = "tests/contract/test_samplers.py::test_a_round_is_charged_as_declared"
_EPOCHS = "mechanism/epoch_sampling.py"
_TRUNCATED = "mechanism/truncated.py"
_SUMMING = "training/summing.py"
_SESSION = "training/session.py"
_WALK = "            for place, indices in enumerate(run.draw()):\n"


def _size(name: str, breaks: str, new: str) -> Mutant:
    return one(name, breaks, _SAMPLING, _SIZE, new, _POISSON)


SAMPLING = (
    _size(
        "fixed-size-for-poisson", "batches of one size are charged as Poisson", "size = round(num_examples * self.rate)"
    ),
    _size(
        "never-an-empty-batch",
        "an empty sample is replaced by some record, whose membership then shows",
        "size = max(1, rng.binomial(num_examples, self.rate))",
    ),
    _size(
        "poisson-number-of-records",
        "a Poisson number of records instead of a binomial one: inclusions are not independent",
        "size = min(num_examples, rng.poisson(num_examples * self.rate))",
    ),
    _size(
        "sampling-rate-doubled",
        "records join twice as often as is charged",
        "size = rng.binomial(num_examples, min(1.0, 2 * self.rate))",
    ),
    one(
        "sampling-with-replacement",
        "one record can be in a batch twice and count for twice the bound",
        _SAMPLING,
        "rng.choice(num_examples, size=size, replace=False, shuffle=False)",
        "rng.choice(num_examples, size=size, replace=True, shuffle=False)",
        "tests/contract/test_samplers.py::test_indices_are_unique_and_in_range",
    ),
    one(
        "always-the-first-records",
        "the same records are in every batch",
        _SAMPLING,
        "yield np.sort(rng.choice(num_examples, size=size, replace=False, shuffle=False)).astype(np.int64)",
        "yield np.arange(size, dtype=np.int64)",
        "tests/contract/test_samplers.py::test_every_example_joins_at_the_declared_rate",
    ),
    one(
        "half-the-rate-charged",
        "the accountant is told half the sampling rate",
        _SAMPLING,
        "return event if self.rate == 1 else PoissonSampledDpEvent(self.rate, event)",
        "return event if self.rate == 1 else PoissonSampledDpEvent(self.rate / 2, event)",
        _CHARGED,
    ),
    one(
        "shuffling-charged-as-poisson",
        "an epoch of shuffled batches is given the amplification of Poisson sampling",
        _EPOCHS,
        "        return event  # the batches of an epoch are disjoint: one release, without amplification",
        "        from dp_accounting import PoissonSampledDpEvent\n\n"
        "        return PoissonSampledDpEvent(1 / self.batches, event)",
        _CHARGED,
    ),
    one(
        "shuffling-accepted-when-records-come-and-go",
        "a deal that moves with every added record is given a guarantee",
        _EPOCHS,
        "        if adjacency is Adjacency.ADD_REMOVE:",
        "        if adjacency is None:",
        "tests/contract/test_samplers.py::test_refuses_exactly_the_adjacencies_without_a_proof",
    ),
    one(
        "empty-batches-skipped",
        "a step without examples releases nothing, which reveals that it was empty",
        _SESSION,
        _WALK,
        f"{_WALK}                if not len(indices):\n                    continue\n",
        "tests/training/test_release.py::test_an_empty_batch_releases_exactly_noise_and_is_charged",
    ),
    one(
        "every-round-run-twice",
        "two steps are taken for every one that is charged",
        _SESSION,
        "enumerate(run.draw()):",
        "enumerate([part for _ in range(2) for part in run.draw()]):",
        "tests/training/test_release.py::test_every_release_has_its_charged_round_and_every_round_its_release",
    ),
    one(
        "one-step-too-many",
        "a plan of k steps runs k + 1",
        _SESSION,
        "        while rounds_used < num_rounds:",
        "        while rounds_used <= num_rounds:",
        "tests/training/test_loop_order.py::test_a_plan_of_k_steps_runs_k_steps_and_no_more",
    ),
    one(
        "divided-by-the-real-batch",
        "the size of the noise reveals how many records were drawn",
        _SESSION,
        "            noisy.value.apply(keep=self._clipped.keep)",
        "            run.updates.divisor = float(max(1, len(self._batch)))\n"
        "            noisy.value.apply(keep=self._clipped.keep)",
        "tests/training/test_release.py::test_the_size_of_the_data_set_changes_no_constant",
        "tests/training/test_release.py::test_one_more_record_moves_a_release_at_most_the_bound_over_the_public_size",
    ),
    one(
        "divided-by-rate-times-size",
        "the size of the noise reveals how many records there are",
        "training/prepared.py",
        "divisor=self.plan.sampling.expected_batch_size,",
        "divisor=self.plan.sampling.expected_batch_size / 8 * len(self.dataset),",
        "tests/training/test_release.py::test_the_size_of_the_data_set_changes_no_constant",
        "tests/training/test_release.py::test_a_record_without_a_gradient_leaves_an_update_bit_for_bit_the_same",
    ),
    one(
        "physical-batches-overlap",
        "an example at a seam is added twice",
        "training/batching.py",
        "yield indices[start : start + physical_batch_size]",
        "yield indices[start : start + physical_batch_size + 1]",
        "tests/training/test_batching.py::test_splitting_keeps_every_index_once_and_in_order",
    ),
    one(
        "read-ahead-of-the-charge",
        "examples of a round are read before it is charged",
        "training/drawing.py",
        "if self._latest + 1 >= self._ledger.charged_rounds:",
        "if self._latest >= self._ledger.charged_rounds:",
        "tests/training/test_drawing.py::test_nothing_follows_while_no_further_round_is_charged",
        "tests/training/test_drawing.py::test_however_far_one_looks_only_charged_rounds_are_drawn_and_in_order",
    ),
    one(
        "workers-with-a-copy-of-the-keys",
        "workers that read the data hold the keys of noise and sampling",
        "training/loading.py",
        'for method in ("forkserver", "spawn")',
        'for method in ("fork", "spawn")',
        "tests/training/test_loading.py::test_a_worker_holds_neither_keys_nor_the_ledger",
    ),
    one(
        "batches-of-a-pass-that-was-given-up",
        "a step that starts over gets examples of its first attempt again, and others not at all",
        "training/loading.py",
        "if len(expected) < len(awaited) or not all(map(np.array_equal, expected, awaited)):",
        "if len(expected) < len(awaited):",
        "tests/training/test_loading.py::test_a_step_that_lacks_memory_starts_over_with_the_same_examples",
    ),
    one(
        "half-a-sum-kept-when-memory-runs-out",
        "examples summed before a device ran out of memory are added again",
        _SUMMING,
        "            self.clipped.clear()\n            how.clipping.begin",
        "            how.clipping.begin",
        "tests/training/test_memory.py",
    ),
    one(
        "truncation-not-charged",
        "cut batches are charged as if they were never cut",
        _TRUNCATED,
        "        if self.max_batch_size >= self.dataset_size:\n            return sampled",
        "        if self.max_batch_size >= 1:\n            return sampled",
        "tests/mechanism/test_truncated.py::test_the_tight_charge_is_the_event_of_truncation",
    ),
    one(
        "overflow-surcharge-dropped",
        "the probability that a batch overflows is not charged",
        _TRUNCATED,
        "return dp_event.ComposedDpEvent([sampled, TotalVariationDpEvent(distance=self.overflow_probability)])",
        "return sampled",
        "tests/mechanism/test_truncated.py::test_the_other_charge_is_poisson_sampling_and_the_overflow_of_each_step",
    ),
    one(
        "slots-follow-the-data",
        "adding a record moves the choice of all others",
        _TRUNCATED,
        "slots = np.sort(rng.choice(self.dataset_size, size=size",
        "slots = np.sort(rng.choice(num_examples, size=min(size, num_examples)",
        "tests/mechanism/test_truncated.py::test_removing_a_record_is_blanking_a_slot_and_moves_no_other_record",
    ),
)
