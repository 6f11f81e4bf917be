"""Mutants of isolation: acts that no operation of the forward pass shows."""

from __future__ import annotations

from tests.mutants.mutant import one

_HOSTILE = (
    "tests/isolation/test_hostile.py::"
    "test_a_program_that_is_called_proven_moves_the_sum_at_most_the_bound_for_one_record"
)
_PROVE = "tests/isolation/test_prove.py"


def _hostile(name: str) -> str:
    return f"{_HOSTILE}[{name}-walked]"


UNSEEN = (
    one(
        "backward-code-not-compared-at-two-sizes",
        "a gradient is divided by the number of examples in the user's own backward pass",
        "isolation/traces.py",
        "entries=[*self.entries, *backward.entries]",
        "entries=[*self.entries]",
        _hostile("function_that_counts_examples"),
        f"{_PROVE}::test_code_for_the_backward_pass_is_compared_at_two_sizes",
    ),
    one(
        "gradients-handed-on-not-compared",
        "what reaches the losses is compared at two sizes, and what user code sends back is not",
        "isolation/tracer.py",
        "        self.trace.sent_back.append((spec.serial, spec.memory))\n        return",
        "        return",
        _hostile("function_that_weighs_by_place"),
    ),
    one(
        "backward-code-may-read",
        "the user's own code reads numbers of the examples in the backward pass through numpy",
        "isolation/backward.py",
        "        self._follower.note_reading(func, args, kwargs)\n",
        "",
        _hostile("hook_that_writes_by_an_array"),
    ),
    one(
        "backward-code-may-overwrite",
        "a hook writes what it has mixed into a tensor of the forward pass",
        "isolation/tracer.py",
        "                    self.trace.sent_back.append((before.serial, before.memory))\n",
        "                    pass\n",
        _hostile("hook_that_writes_into_a_constant"),
        _hostile("function_that_writes_into_what_was_saved"),
    ),
    one(
        "backward-code-may-set-a-seed",
        "the first example of every batch gets the same random numbers in the backward pass",
        "isolation/backward.py",
        "watch.check_backward(tracer.trace, follower.doubt())",
        "watch.check_backward(tracer.trace, None)",
        _hostile("function_that_sets_a_seed"),
    ),
    one(
        "copies-of-the-process-not-noticed",
        "a copy of the process reads the examples and tells the program",
        "isolation/processes.py",
        "        self.number += 1\n",
        "        self.number += 0\n",
        _hostile("known_by_a_child_process_late"),
    ),
    one(
        "number-of-draws-told",
        "a generator's next number tells what numbers the examples hold",
        "isolation/tracer.py",
        "        elif draws_unevenly(func, args, kwargs) and",
        "        elif draws_unevenly(func, args, kwargs) and not args and",
        _hostile("whether_a_generator_drew_late"),
    ),
    one(
        "tensors-that-work-by-themselves-not-opened",
        "a class of tensors mixes examples inside of its own operations",
        "isolation/tracer.py",
        "        if any(map(works_by_itself, types)):\n",
        "        if any(map(works_by_itself, types)) and not args:\n",
        _hostile("scaled_by_a_kept_kind_of_tensor_late"),
    ),
    one(
        "all-losses-of-one-example",
        "a batch whose losses are all of one example passes for one with a loss for each",
        "isolation/follow.py",
        "        is_elsewhere = isinstance(verdict, Place) and verdict != self._whole",
        "        is_elsewhere = isinstance(verdict, Place) and not verdict.is_single and verdict != self._whole",
        f"{_PROVE}::test_losses_that_are_all_of_one_example_are_not_one_per_example",
    ),
    one(
        "one-tensor-as-two-arguments",
        "a tensor that is both table and numbers passes for numbers alone, so that labels meet",
        "isolation/call.py",
        "            self._tell_apart()\n",
        "            pass\n",
        _hostile("labels_looked_up_among_themselves"),
    ),
    one(
        "memory-exchanged-unseen-by-a-proof",
        "a public tensor is given the memory of a statistic of the batch, and stays public in a proof",
        "isolation/prove.py",
        "            self._follower.declare(args[0], self._follower.verdict(args[1]))\n",
        "            pass\n",
        f"{_PROVE}::test_a_tensor_that_is_given_the_memory_of_examples_holds_examples",
    ),
    one(
        "laid-out-anew-unseen",
        "a result longer than the row it is written to runs over the next example's row",
        "isolation/tracer.py",
        "isinstance(verdict, Cause) or _lies_elsewhere(tensor, before):",
        "isinstance(verdict, Cause):",
        f"{_PROVE}::test_a_write_that_lays_a_tensor_out_anew_is_seen_through_other_views_of_its_memory",
    ),
)
