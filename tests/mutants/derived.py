"""Mutants of gradients that several images make, or that go back through a computed weight."""

from __future__ import annotations

from tests.mutants.mutant import one

_DERIVED = "gradients/forms/derived.py"
_BY_ROWS, _ROWS = "gradients/forms/by_rows.py", "tests/gradients/forms/test_by_rows.py"
_PREPARED = "gradients/engines/prepared.py"
_LAWS = "tests/gradients/forms/test_derived.py"
_STRATEGIES = "tests/contract/test_strategies.py"

DERIVED = (
    one(
        "room-for-rounding-not-sent-back",
        "what rounding hides in the gradient of a computed weight counts as if no parameter were stretched",
        _DERIVED,
        "sizes=room.sizes * gain)",
        "sizes=room.sizes)",
        f"{_LAWS}::test_room_for_rounding_grows_with_the_way_back",
    ),
    one(
        "gain-of-the-average-row",
        "a row that is stretched more than the others has no room for its rounding",
        _DERIVED,
        "growth.amax()",
        "growth.mean()",
        f"{_LAWS}::test_a_row_that_is_stretched_more_than_the_others_decides",
    ),
    one(
        "sums-through-code-of-the-user",
        "the sum of all examples goes back through a custom function, whatever that does to it",
        _DERIVED,
        "isinstance(node, BackwardCFunction) or ",
        "",
        f"{_LAWS}::test_the_way_back_is_linear_only_by_torch_operations_in_full_precision",
    ),
    one(
        "sums-rounded-on-the-way-back",
        "the sum of all examples is rounded to half precision on its way to the parameters",
        _DERIVED,
        " or any(kind.dtype.itemsize < 4 for kind in node._input_metadata)",
        "",
        f"{_LAWS}::test_the_way_back_is_linear_only_by_torch_operations_in_full_precision",
    ),
    one(
        "sums-through-hooks",
        "the sum of all examples goes back through a hook on a computed weight",
        _PREPARED,
        "is_only and not self.has_code_on_the_way and way.is_linear",
        "is_only and way.is_linear",
        f"{_LAWS}::test_code_of_the_user_on_the_way_back_sees_each_gradient_and_not_their_sum",
    ),
    one(
        "ways-measured-apart",
        "two gradients of one parameter are measured as if they belonged to two",
        _PREPARED,
        "all(num_ways[position] == 1 and position not in self._waiting for position in positions)",
        "True",
        f"{_LAWS}::test_sums_and_norms_are_those_of_a_loop_over_examples",
    ),
    one(
        "groups-measured-together",
        "parameters of two clipping groups are measured as one",
        "gradients/engines/clipper.py",
        "return self._takes_derived and len(groups) == 1 and",
        "return self._takes_derived and",
        f"{_LAWS}::test_sums_and_norms_are_those_of_a_loop_over_examples",
    ),
    one(
        "wild-examples-stay-in-computed-weights",
        "a gradient that is not finite reaches the sum that goes back",
        "gradients/engines/clipper.py",
        "self._derived = [(places, part.without(bad)) for places, part in self._derived]",
        "self._derived = [(places, part) for places, part in self._derived]",
        f"{_LAWS}::test_an_example_that_is_not_finite_adds_exactly_zero",
    ),
    one(
        "unknown-operations-keep-to-rows",
        "a weight that is bent or masked is measured as if its rows were multiples of a parameter's",
        _BY_ROWS,
        "        else:\n            ok = False\n        if not ok:\n            raise _OtherKind\n\n    def _check_row",
        "        else:\n            ok = True\n        if not ok:\n            raise _OtherKind\n\n    def _check_row",
        f"{_ROWS}::test_weights_of_any_other_kind_are_known_by_their_operations",
    ),
    one(
        "masks-keep-to-rows",
        "a weight that is multiplied number by number is measured as if every row had one factor",
        _BY_ROWS,
        "                and self._is_beside(sizes[1 - one], shape)\n                for one in (0, 1)\n",
        "                for one in (0, 1)\n",
        f"{_ROWS}::test_weights_of_any_other_kind_are_known_by_their_operations",
    ),
    one(
        "lengths-of-any-order",
        "a weight over the sum of absolute values is measured as one over its length",
        _BY_ROWS,
        "ok = ok and node._saved_ord == 2",
        "ok = ok and node._saved_ord > 0",
        f"{_ROWS}::test_weights_of_any_other_kind_are_known_by_their_operations",
    ),
    one(
        "plane-of-a-row-measured-apart",
        "what two directions of a row have in common on the way back is forgotten",
        _BY_ROWS,
        "return (squares + 2 * across * first * second).sum(1).clamp_min(0)",
        "return squares.sum(1).clamp_min(0)",
        f"{_ROWS}::test_lengths_of_rows_are_those_of_the_gradients_that_arrive",
    ),
    one(
        "repeats-of-any-number-recorded",
        "a recording repeats rows as often as the numbers of another batch said",
        "training/launch/dry_run.py",
        "return not isinstance(repeats, int)",
        "return False",
        "tests/training/launch/test_replay.py::test_times_that_a_tensor_says_are_not_recorded",
    ),
    one(
        "views-weighed-in-turn",
        "a view of one example is multiplied by the clipping factor of another",
        "gradients/forms/per_example.py",
        "weights = weights if self.views == 1 else weights.repeat_interleave(self.views)",
        "weights = weights if self.views == 1 else weights.repeat(self.views)",
        _STRATEGIES,
    ),
    one(
        "views-emptied-in-turn",
        "an example that is not finite keeps all views but one",
        "gradients/forms/per_example.py",
        "super().without(bad if self.views == 1 else bad.repeat_interleave(self.views))",
        "super().without(bad if self.views == 1 else bad.repeat(self.views))",
        _STRATEGIES,
    ),
    one(
        "views-measured-apart",
        "the norm of an example with several images forgets the products between them",
        "gradients/norms/conv_strategies.py",
        "return out_grads if part.views == 1 else out_grads.reshape(len(part), -1, out_grads.shape[2])",
        "return out_grads",
        _STRATEGIES,
    ),
)
