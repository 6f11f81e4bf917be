"""Mutants of isolation: rules that let examples meet, and comparisons that are not made."""

from __future__ import annotations

from tests.mutants.mutant import one

_AXES, _INDEX = "isolation/rules_axes.py", "isolation/rules_index.py"
_ELEMENTS, _SHAPE = "isolation/rules_elements.py", "isolation/rules_shape.py"
_PRODUCTS, _SIZES = "isolation/rules_products.py", "isolation/sizes.py"
_ZOO = "tests/isolation/test_mixers.py::test_a_program_that_mixes_examples_is_refused_with_the_line_that_mixes"
_HOSTILE = (
    "tests/isolation/test_hostile.py::"
    "test_a_program_that_is_called_proven_moves_the_sum_at_most_the_bound_for_one_record"
)
_TRUTH = "tests/isolation/test_rules.py::test_where_a_rule_gives_a_place_an_example_changes_its_own_rows_alone"
_NUMBERS = "tests/isolation/test_sizes.py::test_what_depends_on_the_number_of_examples_shows_at_two_sizes"
_FOLLOW = "tests/isolation/test_follow.py::test_a_program_that_differs_in_anything_is_not_recognised"
_PROVE = "tests/isolation/test_prove.py"
_FIXED = 'raise Mixes("rows of the examples are picked by a fixed number")'


def _in_zoo(name: str) -> str:
    return f"{_ZOO}[{name}-walked-book-keeping]"


def _hostile(name: str) -> str:
    return f"{_HOSTILE}[{name}-walked]"


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
        "isolation/rules_layers.py",
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
        "isolation/programs.py",
        "        return found is not None\n",
        "        return False\n",
        _in_zoo("bank_written_as_data"),
        _in_zoo("previous_batch_kept_as_data_and_used_late"),
    ),
    one(
        "reads-allowed",
        "Python may use numbers of the examples",
        "isolation/programs.py",
        "if not read.allowed_because and (made is None",
        "if read.allowed_because and (made is None",
        _in_zoo("scaled_by_an_item"),
    ),
    one(
        "sizes-not-compared",
        "a loss may depend on how many examples there are",
        "isolation/watch.py",
        "        if comparison.is_possible and comparison.fault is None and same:",
        "        if comparison.is_possible and same:",
        _in_zoo("divided_by_length"),
    ),
    one(
        "weights-by-place-allowed",
        "what becomes of an example may depend on its place in the batch",
        _SIZES,
        "            if name not in _INDEXING or not self._picks_from_examples(call):",
        "            if name not in _INDEXING and len(call.specs) > 9:",
        f"{_NUMBERS}[weights by place]",
    ),
    one(
        "counting-allowed",
        "public rows, one for each example, may be added up",
        _SIZES,
        "                cause = verdict if isinstance(spec.verdict, Cause) else replace(verdict, line=entry.line)",
        "                continue",
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
        'values = Cause(Fault.MIXES, call.name, "it ranks',
        'values = Cause(Fault.NO_RULE, call.name, "it ranks',
        "tests/isolation/test_prove.py::test_examples_in_order_mix_and_do_not_only_lack_a_rule",
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
    one(
        "counts-in-memory-forgotten",
        "a number that counts the examples is lost where it is written through a view",
        _SIZES,
        "            found = self.tainted.get(spec.serial) or self.memory.get(spec.memory)",
        "            found = self.tainted.get(spec.serial)",
        f"{_NUMBERS}[the length written into a part]",
    ),
    one(
        "one-row-may-be-changed",
        "one of the rows that are as many as the examples may be singled out",
        _SIZES,
        "                if spec.serial in self.parts:",
        "                if spec.serial in self.parts and spec.ndim > 9:",
        f"{_NUMBERS}[one of several ones changed]",
    ),
    one(
        "drawn-rows-are-equal",
        "the largest of as many draws as examples passes for a constant",
        _SIZES,
        "        if (name in _EQUAL and is_copied) or",
        "        if name in _EQUAL or",
        f"{_NUMBERS}[largest expanded draw]",
    ),
    one(
        "other-size-not-judged",
        "what mixes at the other size alone passes for proven",
        "isolation/prove.py",
        "    is_twin = isinstance(twin.losses, Cause) and not isinstance(proof.losses, Cause)",
        "    is_twin = False",
        f"{_PROVE}::test_what_mixes_only_at_the_other_size_is_found",
    ),
    one(
        "number-of-classes-may-be-read",
        "the largest class of a batch decides about a shape",
        "isolation/reads.py",
        "        if isinstance(num_classes, int) and num_classes > 0:",
        "        if isinstance(num_classes, int):",
        f"{_PROVE}::test_a_check_of_classes_is_no_read_that_is_refused",
    ),
    one(
        "memory-may-begin-anywhere",
        "a view of memory reads the end of one example and the beginning of the next",
        _SHAPE,
        "    if from_storage(stride, place.num, spec) != place:",
        "    if stride == 0:",
        f"{_PROVE}::test_memory_read_from_where_examples_do_not_begin_is_not_proven",
    ),
    one(
        "code-at-a-prompt-is-the-librarys",
        "reads of a loss function that was typed at a prompt pass for the library's own",
        "isolation/lines.py",
        '_GENERATED = ("<frozen ", "<eval_with_key>", "<__array_function__ ")',
        '_GENERATED = ("<",)',
        "tests/isolation/test_lines.py::"
        "test_a_read_of_the_users_loss_function_is_refused_wherever_it_was_written[<stdin>-losses]",
    ),
    one(
        "foreign-operators-are-trusted",
        "an operator of the user's that keeps what it saw leaves a program proven",
        "isolation/tracer.py",
        "if func.namespace not in _TORCH and",
        "if not func.namespace and",
        "tests/isolation/test_prove.py"
        "::test_an_operator_of_the_user_leaves_a_program_unproven_though_its_result_is_not_used",
    ),
    one(
        "nodes-asked-for-late-are-forgotten",
        "a known program may put hooks on nodes once its losses are made",
        "isolation/follow.py",
        "is_known = is_known and doubt is None and not self._errors",
        "is_known = is_known and not self._errors",
        f"{_HOSTILE}[hook_on_a_node_late-walked]",
    ),
    one(
        "arguments-of-unknown-kinds-look-alike",
        "a program is recognised by the kind of an argument whose numbers changed",
        "isolation/signs.py",
        "return (object(),)  #",
        "return (kind,)  #",
        f"{_HOSTILE}[rows_by_an_array_that_turns-walked]",
    ),
    one(
        "numbers-not-compared",
        "a known program may use floats and constants that depend on how many examples there are",
        "isolation/signs.py",
        "        if not is_same:\n            return False",
        "        if not is_same:\n            return True",
        _hostile("scaled_by_the_size_late"),
        _hostile("constant_by_the_size_late"),
    ),
    one(
        "prepared-program-not-judged",
        "a program whose gradients are prepared may use other numbers",
        "gradients/engines/bookkeeping.py",
        "        self.watch.check_numbers(proof)\n",
        "",
        _hostile("slope_by_the_size_late"),
    ),
    one(
        "late-whole-numbers-not-compared",
        "a known kind of program may use whole numbers that depend on how many examples there are",
        "isolation/watch.py",
        "        elif family.is_compared or family.step != self.step or not self._decides:",
        "        elif not family.is_compared and (family.step != self.step or not self._decides):",
        _hostile("whole_number_by_the_size_late"),
    ),
    one(
        "computed-again-not-compared",
        "a checkpoint may compute something else in the backward pass",
        "isolation/again.py",
        "        if number >= len(self._calls) or not _is_same(self._calls[number], call, id(self._calls)):",
        "        if number > len(self._calls) + 99:",
        _hostile("computed_again_late"),
    ),
    one(
        "saved-tensors-may-change",
        "hooks on saved tensors may give other numbers to the backward pass",
        "isolation/again.py",
        "    return _file_of(hooks[1]) == _GRAPH and hooks[1].__qualname__.startswith(_ON_PROCESSOR)",
        "    return True",
        _hostile("saved_tensors_changed_between_layers"),
        _hostile("saved_tensors_hooked_late"),
    ),
    one(
        "memory-handed-out-not-compared",
        "numpy may write into what the losses were computed from",
        "isolation/suspicions.py",
        "not torch.equal(_bytes_of(tensor), before)",
        "len(_bytes_of(tensor)) != len(before)",
        _hostile("activations_changed_by_numpy"),
        _hostile("labels_changed_after_the_losses_late"),
    ),
    one(
        "hooks-may-write",
        "a hook may write other examples into the gradient that it is given",
        "isolation/backward.py",
        "        if follower.tracer is not None and follower.judge_gradient is not None:",
        "        if follower.tracer is not None and follower.judge_gradient is not None and changed is not None:",
        _hostile("gradient_written_in_a_hook"),
    ),
    one(
        "hidden-nodes-not-noticed",
        "a known program may attach a user-written node to a result where no call is seen",
        "isolation/follow.py",
        "        if _num_nodes() != self._num_nodes:",
        "        if _num_nodes() < self._num_nodes:",
        f"{_FOLLOW}[user-written node without calls]",
    ),
    one(
        "hidden-writes-not-noticed",
        "code that shows no calls may begin to write into tensors",
        "isolation/follow.py",
        "                if (value._version and writes_since(value)) != version:",
        "                if version > 99 and writes_since(value) != version:",
        _hostile("scripted_write_late"),
    ),
    one(
        "own-loops-train-what-is-tried",
        "a loop of the user's own trains a program that only experiments could judge, without any",
        "training/preflight/preflight.py",
        "        if not self._watch.has_tried or self._watch.has_waived(Check.EXPERIMENTS):",
        "        if self._watch.has_tried or self._watch.has_waived(Check.EXPERIMENTS):",
        _in_zoo("examples_looked_up_by_token"),
    ),
    one(
        "generators-set-back",
        "a generator that is set back weighs examples by their places",
        "isolation/programs.py",
        "        self.drawn.add(state)\n",
        "",
        _hostile("numbers_of_a_generator_set_back"),
    ),
    one(
        "batches-with-more-than-their-items",
        "a loss reads what a batch holds beside its tensors, and nobody sees whose it is",
        "isolation/parts.py",
        "                _attributes(blank)[name] = None\n",
        "                pass\n",
        "tests/training/test_batching.py::test_what_a_batch_holds_beside_its_items_does_not_reach_the_loop",
        "tests/isolation/test_parts.py::test_only_items_are_carried_over",
    ),
    one(
        "parts-that-hide-tensors",
        "tensors in an object that cannot be looked into are not known as examples",
        "training/loading.py",
        "        leaves, structure = flattened(self.reader.read(indices))\n        check_leaves(leaves)\n",
        "        leaves, structure = flattened(self.reader.read(indices))\n",
        "tests/training/test_batching.py::test_a_batch_that_cannot_be_looked_into_is_named",
    ),
    one(
        "repeated-with-other-draws",
        "a program that takes its way at random is repeated on another way, and never proven",
        "training/batching.py",
        "        after = Draws.now(self.device)\n        self.restore()\n",
        "        after = Draws.now(self.device)\n",
        "tests/training/preflight/test_later_programs.py::"
        "test_a_model_that_skips_layers_at_random_is_proven_and_its_steps_are_soon_done_once",
    ),
)
