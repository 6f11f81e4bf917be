"""Mutants of isolation: rules that let examples meet, and comparisons that are not made."""

from __future__ import annotations

from tests.mutants.mutant import one

_AXES, _INDEX = "isolation/rules_axes.py", "isolation/rules_index.py"
_ELEMENTS, _SHAPE = "isolation/rules_elements.py", "isolation/rules_shape.py"
_PRODUCTS, _SIZES = "isolation/rules_products.py", "isolation/sizes.py"
_ZOO = "tests/isolation/test_mixers.py::test_a_program_that_mixes_examples_is_refused_with_the_line_that_mixes"
_TRUTH = "tests/isolation/test_rules.py::test_where_a_rule_gives_a_place_an_example_changes_its_own_rows_alone"
_NUMBERS = "tests/isolation/test_sizes.py::test_what_depends_on_the_number_of_examples_shows_at_two_sizes"
_FIXED = 'raise Mixes("rows of the examples are picked by a fixed number")'


def _in_zoo(name: str) -> str:
    return f"{_ZOO}[{name}-walked-book-keeping]"


ISOLATION = (
    one(
        "reduction-over-examples-allowed",
        "a mean over the batch passes for public",
        _AXES,
        '    if place.axis in axes:\n        raise Mixes("it reduces over the examples")',
        "    if place.axis in axes:\n        return Place(place.axis, 1, 1, 0, 1)",
        f"{_TRUTH}[sum]",
        _in_zoo("weighted_by_detached_mean_late"),
    ),
    one(
        "product-over-examples-allowed",
        "a product may add examples up",
        _PRODUCTS,
        '        if place.axis == summed:\n            raise Mixes("a product sums over the examples")',
        "        if place.axis == summed:\n            return None",
        f"{_TRUTH}[mm]",
        _in_zoo("covariance"),
    ),
    one(
        "batch-norm-in-training-allowed",
        "examples are normalised by each other",
        _AXES,
        "    if trains:\n        raise Mixes(",
        "    if trains and spec.ndim > 9:\n        raise Mixes(",
        f"{_TRUTH}[_native_batch_norm_legit]",
        _in_zoo("batch_norm_by_function"),
    ),
    one(
        "detach-forgets-the-place",
        "what is detached passes for public",
        _ELEMENTS,
        '    "copy_": copied_into,\n',
        '    "copy_": copied_into,\n    "detach": fresh,\n',
        f"{_TRUTH}[detach]",
        _in_zoo("weighted_by_detached_max"),
    ),
    one(
        "kept-memory-forgotten",
        "what an earlier batch wrote into memory passes for public",
        "isolation/memory.py",
        "        if spec.verdict is None and getattr(storage, _WRITER, self.generation) != self.generation:",
        "        if spec.ndim > 9 and getattr(storage, _WRITER, self.generation) != self.generation:",
        _in_zoo("bank_written_as_data"),
    ),
    one(
        "reads-allowed",
        "Python may use numbers of the examples",
        "isolation/watch.py",
        "if not read.allowed_because]",
        "if read.allowed_because]",
        _in_zoo("scaled_by_an_item"),
    ),
    one(
        "sizes-not-compared",
        "a loss may depend on how many examples there are",
        "isolation/watch.py",
        "        if comparison.fault is not None:",
        "        if comparison.fault is not None and not comparison.is_possible:",
        _in_zoo("divided_by_length"),
    ),
    one(
        "weights-by-place-allowed",
        "what becomes of an example may depend on its place in the batch",
        _SIZES,
        "        if name not in _PICKING:\n            return Cause",
        "        if name not in _PICKING and not name:\n            return Cause",
        f"{_NUMBERS}[weights by place]",
    ),
    one(
        "counting-allowed",
        "public rows, one for each example, may be added up",
        _SIZES,
        "        except Mixes:\n            return True",
        "        except Mixes:\n            continue",
        f"{_NUMBERS}[counted ones]",
        f"{_NUMBERS}[softmax of zeros]",
    ),
    one(
        "picked-by-fixed-numbers-allowed",
        "rows of the batch may be picked in any order",
        _INDEX,
        f"            if not _counts(index, spec.shape[place.axis]) or index.iota is None:\n                {_FIXED}",
        "            if index.iota is None:\n                return place",
        f"{_TRUTH}[index]",
        _in_zoo("blended_at_random"),
    ),
    one(
        "joined-in-another-order-allowed",
        "rows may be put together in another order than they came in",
        _SHAPE,
        " or order != list(range(order[0], order[0] + num)) * (len(order) // num)",
        "",
        _in_zoo("stacked_in_reverse"),
    ),
    one(
        "rank-only-tried",
        "the largest of the batch needs no refusal",
        _AXES,
        "allowed_because else Fault.MIXES",
        "allowed_because else Fault.NO_RULE",
        _in_zoo("hard_examples_alone"),
    ),
    one(
        "rows-put-into-one-allowed",
        "rows of several examples may be added to one row",
        _INDEX,
        "        if not place.is_single and place.axis == axis:\n            raise Mixes("
        '"rows of several examples are put into one")',
        "        if not place.is_single and place.axis == axis:\n            return call.everywhere(None)",
        f"{_TRUTH}[scatter_add]",
        _in_zoo("balanced_by_scattered_counts"),
    ),
    one(
        "written-over-forgets-the-source",
        "what is written in the place of public numbers passes for public",
        _ELEMENTS,
        "    return [broadcast(call.specs, call.shape)]",
        "    return [call.args[0].verdict]",
        f"{_TRUTH}[bernoulli_]",
    ),
    one(
        "renorm-along-the-wrong-axis",
        "slices that hold several examples are scaled by one norm",
        _AXES,
        'place.axis != int(call.arg("dim")) % spec.ndim',
        'place.axis == int(call.arg("dim")) % spec.ndim',
        f"{_TRUTH}[renorm]",
    ),
)
