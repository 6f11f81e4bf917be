"""Mutants of recorded steps: a recording must never stand for a program that is not the recorded one."""

from __future__ import annotations

from tests.mutants.mutant import one

_CALLS = "training/launch/calls.py"
_CHANGING = (
    "tests/training/launch/test_changing_programs.py::test_a_loss_function_whose_python_changes_trains_the_same_weights"
)
_REPLAY = "tests/training/launch/test_replay.py"

LAUNCH = (
    one(
        "recorded-floats-frozen",
        "a weight that a schedule changes keeps the value that it had when the step was recorded",
        _CALLS,
        "    return bool(value == item) or (value != value and item != item)\n",
        "    return isinstance(item, float) or bool(value == item)\n",
        f"{_CHANGING}[weight_of_a_schedule]",
    ),
    one(
        "recorded-modes-frozen",
        "a part that autocast rounds from some step on is replayed as one in full precision",
        _CALLS,
        " or self.ambient != ambient:",
        ":",
        f"{_CHANGING}[autocast_from_some_step_on]",
    ),
    one(
        "kept-results-are-stand-ins",
        "a result that the loss function keeps holds zeros",
        "training/launch/dry_run.py",
        "if sys.getrefcount(slot.stand_in) != known[slot]",
        "if sys.getrefcount(slot.stand_in) > known[slot] + 9",
        f"{_CHANGING}[results_that_are_kept]",
    ),
    one(
        "recordings-not-compared",
        "a recorder that froze its examples replays their sum for all others",
        "training/launch/launcher.py",
        "            check_recording(recording, wanted, memory, form.places, precision)\n",
        "",
        f"{_REPLAY}::test_a_recording_that_froze_its_examples_is_caught_and_leaves_no_trace",
    ),
    one(
        "recordings-in-half-precision-refused",
        "a recording of a bfloat16 program is given up for its rounding",
        "training/launch/memory.py",
        "        return min(0.1, 16 * self.unit)\n",
        "        return 16 * torch.finfo(torch.float32).eps\n",
        f"{_REPLAY}::test_a_recording_is_compared_in_the_precision_of_its_program",
    ),
    one(
        "recordings-compared-in-half-precision",
        "a recording of a float32 program that rounds to bfloat16 passes",
        "training/launch/memory.py",
        "        return min(0.1, 16 * self.unit)\n",
        "        return 0.1\n",
        f"{_REPLAY}::test_a_recording_is_compared_in_the_precision_of_its_program",
    ),
    one(
        "recording-reads-old-memory",
        "a weight that was given other memory is replayed with the numbers of the old one",
        _CALLS,
        "            if tensor.data_ptr() != place or",
        "            if",
        f"{_REPLAY}::test_a_tensor_that_is_given_other_memory_is_read_there",
    ),
    one(
        "reads-of-buffers-frozen",
        "a number of a buffer that Python reads keeps the value that it had when the program was first seen",
        _CALLS,
        '        return not given and not any("empty" in',
        '        return not any("empty" in',
        "tests/training/launch/test_dry_run.py::test_a_read_of_a_buffer_or_of_the_batch_is_asked_every_time",
    ),
)
