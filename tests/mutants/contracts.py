"""Mutants of what the contract suites must hold: statistics with too little noise, and steps that start over."""

from __future__ import annotations

from tests.mutants.mutant import one

_STATISTICS = "convex/statistics.py"
_SIZES = "tests/convex/test_statistics.py::test_the_noise_of_every_entry_has_the_announced_size"
_RESTART = "tests/training/test_memory.py::test_what_was_summed_or_counted_before_memory_ran_out_is_forgotten"

CONTRACTS = (
    one(
        "statistics-without-noise",
        "second moments and label sums are released as they are",
        _STATISTICS,
        "            second += (noise + noise.T) / 2\n",
        "",
        _SIZES,
    ),
    one(
        "statistics-with-half-the-noise",
        "least squares costs more than it is charged",
        _STATISTICS,
        "            streams.noise.add_normal(noise.view(-1), self.noise_std)\n",
        "            streams.noise.add_normal(noise.view(-1), self.noise_std / 2)\n",
        _SIZES,
    ),
    one(
        "statistics-with-less-noise-off-the-diagonal",
        "mirrored entries share one draw, and get half its variance twice",
        _STATISTICS,
        "            second += (noise + noise.T) / 2\n",
        "            noise = (noise + noise.T) / 2\n"
        "            second += noise / math.sqrt(2) + noise.diagonal().diag() * (1 - 1 / math.sqrt(2))\n",
        _SIZES,
    ),
    one(
        "statistics-with-label-noise-over-the-squared-weight",
        "the labels of a weighted release get too little noise",
        _STATISTICS,
        "self.noise_std / self.label_weight)",
        "self.noise_std / self.label_weight**2)",
        _SIZES,
    ),
    one(
        "statistics-without-label-noise",
        "the sums over labels are released as they are",
        _STATISTICS,
        "            mixed += noise\n",
        "",
        _SIZES,
    ),
    one(
        "learned-threshold-counts-an-example-twice",
        "what was counted before memory ran out is counted again",
        "training/step.py",
        "            session._clipping.begin(self.index, self._sum.flat)\n",
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
        "contents-compared-at-the-first-step-alone",
        "what a forward pass writes through .data from the second step on is not seen",
        "training/step.py",
        "    return number & (number - 1) == 0\n",
        "    return number == 0\n",
        "tests/training/test_later_programs.py::"
        "test_a_forward_pass_that_begins_to_write_past_the_version_counters_is_refused_before_long",
    ),
    one(
        "pre-flight-without-large-numbers",
        "mixing that sleeps on small numbers passes",
        "training/preflight.py",
        "_RANGES = ((0.0, 1.0), (-2.0, 2.0), (-40.0, 40.0))\n",
        "_RANGES = ((0.0, 1.0), (-2.0, 2.0))\n",
        "tests/training/test_preflight.py::test_a_session_refuses_mixing_that_only_wakes_on_larger_numbers_than_its_data_holds",
    ),
)
