"""Mutants of what contract suites must hold: pieces that nobody lists, noise of every shape, steps that start over."""

from __future__ import annotations

from tests.mutants.mutant import one

_STATISTICS = "convex/statistics.py"
_DONE = "mechanism/executed.py"
_SIZES = "tests/convex/test_statistics.py::test_the_noise_of_every_entry_has_the_announced_size"
_RESTART = "tests/training/test_memory.py::test_what_was_summed_or_counted_before_memory_ran_out_is_forgotten"
_LISTED = "tests/contract/test_families.py::test_every_piece_of_the_package_is_registered_and_stands_in_its_suite"
_NOISES = "tests/contract/test_noise_pieces.py::"
_SIZE = _NOISES + "test_noise_has_the_declared_size_on_every_coordinate_and_repeats_nowhere"
_SAMPLERS = "tests/contract/test_samplers.py::"

CONTRACTS = (
    one(
        "clipping-in-no-list",
        "a new rule that lets ten times its bound through joins no suite, and nobody says so",
        "mechanism/clipping.py",
        "def _finite(factors",
        "class Lax(Automatic):\n"
        "    def factors(self, norms: Tensor, bounds: tuple[float, ...]) -> Tensor:\n"
        "        return 10 * super().factors(norms, bounds)\n\n\n"
        "def _finite(factors",
        _LISTED,
    ),
    one(
        "rule-in-no-suite",
        "a new rule that no piece of the suite makes is never tried",
        "mechanism/clipping.py",
        "def _finite(factors",
        "class LaxRule(BoundRule):\n"
        "    def factors(self, norms: Tensor) -> Tensor:\n"
        "        return 10 * super().factors(norms)\n\n\n"
        "def _finite(factors",
        _LISTED,
    ),
    one(
        "noise-in-no-list",
        "a new noise joins no suite, and nobody says so",
        "mechanism/noise.py",
        "def calibrated_multiplier(",
        "class Quiet(Gaussian):\n    pass\n\n\ndef calibrated_multiplier(",
        _LISTED,
    ),
    one(
        "sampler-taken-off-the-list",
        "a sampler of the package is in no suite",
        "mechanism/registry.py",
        '        "fixed_size": FixedSize,\n',
        "",
        _LISTED,
    ),
    one(
        "accountant-taken-off-the-list",
        "an accountant of the package is never taken, and nobody says so",
        "accounting/accountants.py",
        "(ExactGaussian, ExactPure, PLD, RDP)",
        "(ExactGaussian, PLD, RDP)",
        _LISTED,
    ),
    one(
        "fixed-size-favours-the-first-records",
        "some records are drawn more often than the charge says",
        "mechanism/sampling.py",
        "        drawn = rng.choice(num_examples, size=self.batch_size, replace=False, shuffle=False)\n",
        "        drawn = np.minimum(rng.permutation(num_examples)[: self.batch_size], num_examples - 2)\n",
        _SAMPLERS + "test_indices_are_unique_and_in_range",
        _SAMPLERS + "test_every_example_joins_at_the_declared_rate",
    ),
    one(
        "fixed-size-charged-as-if-by-coins",
        "a record that leaves the batch makes room for another, which nobody charges",
        "mechanism/sampling.py",
        "        return SampledWithoutReplacementDpEvent(\n"
        "            source_dataset_size=self.dataset_size, sample_size=self.batch_size, event=event\n        )",
        "        from dp_accounting import PoissonSampledDpEvent\n\n"
        "        return PoissonSampledDpEvent(self.batch_size / self.dataset_size, event)",
        _SAMPLERS + "test_no_threshold_tells_of_a_record_more_than_a_round_is_charged",
    ),
    one(
        "radial-noise-half-as-long",
        "the length of exponential noise is half of what is charged",
        "mechanism/laplace.py",
        "scale=std / math.sqrt(live + 1)",
        "scale=std / 2 / math.sqrt(live + 1)",
        _SIZE,
    ),
    one(
        "blocks-with-even-noise",
        "blocks that matter less get no more noise, and the others too little",
        "mechanism/laplace.py",
        "scale=scale / coefficient",
        "scale=scale",
        _SIZE,
    ),
    one(
        "groups-with-even-noise",
        "noise that is charged group by group is added in another split",
        "mechanism/shaped_noise.py",
        "std=stds[group], source=source",
        "std=stds[0], source=source",
        _SIZE,
    ),
    one(
        "learned-units-share-forgotten",
        "the squares of a step are released on top of its whole charge",
        "mechanism/adaptive_noise.py",
        "std = multiplier / math.sqrt(1 - share) * clipped.sensitivity.total",
        "std = multiplier * clipped.sensitivity.total",
        _NOISES + "test_the_event_built_from_facts_is_the_event_announced",
        _SIZE,
    ),
    one(
        "statistics-without-noise",
        "second moments and label sums are released as they are",
        _DONE,
        "    matrix += (noise + noise.T) / 2\n",
        "",
        _SIZES,
    ),
    one(
        "statistics-with-half-the-noise",
        "least squares costs more than it is charged",
        _DONE,
        "    source.add_normal(noise.view(-1), std)\n",
        "    source.add_normal(noise.view(-1), std / 2)\n",
        _SIZES,
    ),
    one(
        "statistics-with-less-noise-off-the-diagonal",
        "mirrored entries share one draw, and get half its variance twice",
        _DONE,
        "    matrix += (noise + noise.T) / 2\n",
        "    noise = (noise + noise.T) / 2\n    matrix += noise / 2**0.5 + noise.diagonal().diag() * (1 - 0.5**0.5)\n",
        _SIZES,
    ),
    one(
        "statistics-with-label-noise-over-the-squared-weight",
        "the labels of a weighted release get too little noise",
        _STATISTICS,
        "std=self.noise_std / self.label_weight, weight",
        "std=self.noise_std / self.label_weight**2, weight",
        _SIZES,
    ),
    one(
        "statistics-without-label-noise",
        "the sums over labels are released as they are",
        _DONE,
        "    source.add_normal(vector, std)\n",
        "",
        _SIZES,
    ),
    one(
        "learned-threshold-counts-an-example-twice",
        "what was counted before memory ran out is counted again",
        "training/summing.py",
        "            how.clipping.begin(self._index, self.clipped.flat)\n",
        "",
        _RESTART,
    ),
    one(
        "learned-units-count-an-example-twice",
        "squares that were summed before memory ran out are summed again",
        "mechanism/sums.py",
        "            self.squares.zero_()\n",
        "            pass\n",
        _RESTART,
    ),
    one(
        "pre-flight-without-large-numbers",
        "mixing that sleeps on small numbers passes",
        "training/preflight/preflight.py",
        "_RANGES = ((0.0, 1.0), (-2.0, 2.0), (-40.0, 40.0))\n",
        "_RANGES = ((0.0, 1.0), (-2.0, 2.0))\n",
        "tests/training/preflight/test_preflight.py::"
        "test_a_session_refuses_mixing_that_only_wakes_on_larger_numbers_than_its_data_holds",
    ),
)
