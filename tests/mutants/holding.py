"""Mutants of what is held by code: the bound on a contribution, and that no gradient is lost in silence."""

from __future__ import annotations

from tests.mutants.mutant import one

_HOLDING = "gradients/engines/holding.py"
_REACHING = "gradients/capture/reaching.py"
_HELD = "tests/gradients/engines/test_holding.py"
_KNOWN = "tests/gradients/capture/test_known_calls.py"
_REACHED = "tests/gradients/capture/test_reaching.py"

HOLDING = (
    one(
        "declared-bound-not-held",
        "a clipping rule that lets ten times its bound through moves the sum ten times as far",
        _HOLDING,
        "factors.minimum(limits).clamp_min(0.0)",
        "factors.clamp_min(0.0)",
        f"{_HELD}::test_a_loose_rule_moves_the_sum_by_no_more_than_its_declared_bound",
        f"{_HELD}::test_a_replayed_or_traced_step_holds_a_loose_rule_too",
    ),
    one(
        "negative-factors-pass",
        "a rule with the wrong sign passes the limit at any length",
        _HOLDING,
        "factors.minimum(limits).clamp_min(0.0)",
        "factors.minimum(limits)",
        f"{_HELD}::test_a_loose_rule_moves_the_sum_by_no_more_than_its_declared_bound",
    ),
    one(
        "rule-may-write-norms",
        "a rule that writes into the norms it is given changes what is limited, or what is counted",
        _HOLDING,
        "factors = _one_by_one(rule, norms.clone())",
        "factors = _one_by_one(rule, norms)",
        f"{_HELD}::test_a_rule_that_writes_into_the_norms_changes_nobody_elses",
    ),
    one(
        "rule-sees-the-whole-batch",
        "the factor of one example may follow the norms of the others, from any step on",
        _HOLDING,
        "factors: Tensor = torch.vmap(of_one)(norms)",
        "factors: Tensor = rule.factors(norms)",
        f"{_HELD}::test_a_rule_that_looks_at_other_rows_after_its_trial_moves_no_others",
        f"{_HELD}::test_a_rule_that_divides_by_the_longest_of_the_batch_sees_one_example_at_a_time",
    ),
    one(
        "one-bound-for-many-groups",
        "every group gets the bound that was declared for all of them together",
        _HOLDING,
        "if len(sensitivity.bounds) != norms.shape[1] or sensitivity.norm is not Norm.L2:",
        "if sensitivity.norm is not Norm.L2:",
        f"{_HELD}::test_a_bound_for_fewer_groups_than_there_are_is_refused",
    ),
    one(
        "vanished-squares-not-held",
        "a gradient so short that its squares vanish may be multiplied by anything",
        _HOLDING,
        "norms.clamp_min(shortest)",
        "norms",
        f"{_HELD}::test_a_gradient_whose_squares_vanish_is_held_too",
    ),
    one(
        "recording-kept-for-another-bound",
        "a replayed step clips to the bound it was recorded with, while noise follows another",
        "training/launch/launcher.py",
        "into.flat.data_ptr(), into.sensitivity, into.is_held,",
        "into.flat.data_ptr(), into.is_held,",
        f"{_HELD}::test_a_recording_is_made_for_one_bound",
    ),
    one(
        "norms-not-compared",
        "an operation whose rule measures too short is clipped too little, and nobody notices",
        _HOLDING,
        "    chosen = _typical(losses, norms)\n",
        "    chosen: list[int] = []\n",
        f"{_HELD}::test_norms_that_are_measured_too_short_are_caught_by_the_trial",
    ),
    one(
        "party-trusts-its-rule",
        "a party's update is as long as its clipping rule lets it be",
        "federated/party_sums.py",
        "held_factors(rule, squares.sqrt().unsqueeze(0), rule.sensitivity, layout.num_coordinates)",
        "rule.factors(squares.sqrt().unsqueeze(0))",
        f"{_HELD}::test_one_vector_of_a_party_is_held_to_the_bound",
    ),
    one(
        "unseen-parameters-pass",
        "a parameter that autograd reaches past all rules is trained on noise",
        _REACHING,
        "    if walk.missed:\n",
        "    if walk.missed and not walk.reached:\n",
        f"{_REACHED}::test_a_parameter_that_autograd_reaches_unseen_is_refused_by_name",
    ),
    one(
        "silent-uses-pass",
        "an operation to which no gradient came back is left out of the sum",
        "gradients/engines/bookkeeping.py",
        "        prepared.reach.check_heard(recording, self.layout)\n",
        "",
        f"{_REACHED}::test_a_use_that_falls_silent_in_a_known_program_is_refused_by_name",
    ),
    one(
        "backward-stops-where-marks-say",
        "layers whose inputs only seem to come from other layers get no gradient",
        "gradients/capture/recorded.py",
        "            edges.append(use.edge)\n        if use.handle is None",
        "            edges.append(use.edge) if not edges else None\n        if use.handle is None",
        f"{_REACHED}::test_a_layer_whose_inputs_only_seem_to_come_from_another_gets_its_gradient",
    ),
    one(
        "parameter-hooks-ignored",
        "a hook on a parameter's gradient is passed over without a word",
        "gradients/engines/engine.py",
        "    if hooked:\n",
        "    if hooked and not parameters:\n",
        f"{_REACHED}::test_a_hook_on_a_parameter_is_refused_by_name",
    ),
    one(
        "known-constants-may-require-gradients",
        "a leaf that requires gradients takes the place of a constant in a known program, past all rules",
        "gradients/capture/capture.py",
        "tensor.dtype, tensor.requires_grad)",
        "tensor.dtype)",
        f"{_KNOWN}::test_a_known_program_that_changes_is_examined_and_exact_or_refused[a weight that was made earlier]",
    ),
    one(
        "known-gradients-may-have-any-shape",
        "the norms of a known program are measured in the way that was chosen for other shapes",
        "gradients/engines/engine.py",
        " or found.form is not type(part) or found.shape != shape:",
        " or found.form is not type(part):",
        f"{_KNOWN}::test_a_rule_that_gives_a_known_use_another_shape_is_measured_as_that_shape",
    ),
    one(
        "known-uses-fit-every-call",
        "a call of a known program whose output has no gradient is recorded as the use that it was",
        "gradients/capture/recorded.py",
        '        """Whether a call with these arguments and this output makes the same use."""\n',
        "        return True\n",
        f"{_KNOWN}::test_a_known_layer_that_is_called_without_gradients_is_examined[inference_mode]",
    ),
    one(
        "hooks-on-outputs-ignored",
        "a hook that replaces the gradient of a layer's output does not reach the layer",
        "gradients/capture/capture.py",
        "            self._listen_last(args[0])\n",
        "            pass\n",
        f"{_REACHED}::test_a_hook_that_replaces_the_gradient_of_a_layers_output_is_honoured_at_every_batch",
    ),
    one(
        "changed-views-lose-their-history",
        "a layer's output that is a view and is changed in place sends no gradient back to the layer",
        "gradients/capture/in_place.py",
        "    own: Tensor = torch.ops.aten._unsafe_view.default(output, output.shape)\n    return own",
        "    return output",
        "tests/gradients/capture/test_in_place.py",
    ),
    one(
        "outputs-counted-twice",
        "where one output of a model feeds another, the functional engine counts the other twice",
        "gradients/engines/functional.py",
        "        output = _apart(output)\n",
        "",
        "tests/gradients/engines/test_engines.py::test_clipped_sum_equals_the_per_example_loop[None-Functional-several_outputs]",
    ),
    one(
        "activations-lost-with-batch-norms",
        "a batch norm with an activation inside becomes a bare group norm",
        "gradients/engines/support.py",
        "        if rebuilt is None and _does_more(module):\n",
        "        if rebuilt is None and not places:\n",
        "tests/gradients/engines/test_support.py::test_a_batch_norm_that_does_more_is_refused_by_name_and_the_model_left_alone",
    ),
    one(
        "wild-examples-stay-in-layers-taken-together",
        "a gradient that is not finite reaches the sums of layers that are handled together",
        "gradients/engines/engine.py",
        "part.without(bad.repeat(len(places)))",
        "part",
        "tests/gradients/engines/test_alike.py::"
        "test_an_example_that_is_not_finite_adds_exactly_zero_to_layers_taken_together",
    ),
    one(
        "late-look-not-taken",
        "a sum that nobody looked at on the device is used though a gradient in it was not finite",
        "training/summing.py",
        "                if not how.engine.all_finite():\n",
        "                if how.engine.all_finite() is None:\n",
        "tests/training/test_late_looks.py::"
        "test_an_example_that_is_not_finite_adds_zero_though_nobody_looked_in_time",
    ),
)
