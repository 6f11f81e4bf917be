"""Mutants of clipping: the bound on one example, and who is allowed to have gradients at all."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant, one

_RULE = "mechanism/clipping.py"
_RULES = "mechanism/clipping.py"
_ENGINE = "gradients/engines/clipper.py"
_QUOTIENTS = "quotients = per_group(bounds, norms) / norms"
_FACTORS = "        self.factors = factors\n"
_LAW = "tests/contract/test_clipping.py::test_factors_are_finite_and_keep_every_group_within_its_bound"
_SUMS = "tests/contract/test_clipped_sums.py::test_no_record_moves_the_sum_further_than_the_rule_declares"
_BOUND = "tests/contract/test_engines.py::test_removing_one_example_moves_the_sum_at_most_the_sensitivity"
_HOSTILE = "tests/contract/test_engines.py::test_a_hostile_example_moves_the_sum_at_most_the_sensitivity"
_WAY = "tests/gradients/rules/test_operations.py::test_a_way_of_using_a_parameter_is_exact_or_refused"
_PARITY = "tests/gradients/engines/test_trial.py::test_the_trial_alone_refuses_one_example_that_reaches_one_other"
_SETS = "    yield from marks.to(device).unbind(1)"
_ADDITIVE = "tests/contract/test_engines.py::test_an_example_adds_the_same_to_every_batch"

CLIPPING = (
    one(
        "no-clipping",
        "gradients of any length are added whole",
        _RULE,
        "return quotients.nan_to_num_(nan=0.0).clamp_max_(1.0)",
        "return norms.isfinite().to(norms.dtype)",
        _LAW,
        _SUMS,
    ),
    one(
        "clip-at-twice-the-bound",
        "one example counts for twice the bound",
        _RULE,
        _QUOTIENTS,
        f"{_QUOTIENTS} * 2",
        _LAW,
    ),
    one(
        "spoilt-norm-passes-the-rule",
        "an example whose norm is not finite keeps a factor of one",
        _RULE,
        "quotients.nan_to_num_(nan=0.0).clamp_max_(1.0)",
        "quotients.nan_to_num_(nan=1.0).clamp_max_(1.0)",
        _LAW,
    ),
    one(
        "spoilt-example-reaches-the-sum",
        "zero times NaN is NaN: one broken record destroys the model, which reveals it",
        _ENGINE,
        "        if bad is not None:\n            factors",
        "        if bad is not None and not norms.numel():\n            factors",
        _HOSTILE,
    ),
    one(
        "automatic-clipping-doubled",
        "the normalising rule lets twice its bound through",
        _RULES,
        "        lengths = norms + self.weakness / (norms + self.weakness)",
        "        lengths = (norms + self.weakness / (norms + self.weakness)) / 2",
        _LAW,
    ),
    one(
        "keep-or-drop-drops-nobody",
        "gradients beyond the cutoff are kept",
        _RULES,
        "kept = (norms <= per_group(cutoffs, norms)) & norms.isfinite()",
        "kept = norms.isfinite()",
        _LAW,
    ),
    one(
        "normalising-rules-keep-spoilt-norms",
        "an infinite norm keeps a factor",
        _RULES,
        "unusable = (factors.isfinite() & norms.isfinite()).logical_not_()",
        "unusable = norms.isfinite() & norms.isnan()",
        _LAW,
    ),
    one(
        "group-shares-not-normalised",
        "every group may use the whole bound",
        _RULE,
        "return (norm / math.sqrt(num_groups),) * num_groups",
        "return (norm,) * num_groups",
        "tests/contract/test_clipping.py::test_one_number_bounds_the_whole_gradient_whatever_the_number_of_groups",
    ),
    one(
        "total-of-groups-is-their-largest",
        "the sensitivity of several groups is taken to be that of one",
        "mechanism/sensitivity.py",
        "else math.hypot(*self.bounds)",
        "else max(self.bounds)",
        "tests/mechanism/test_sensitivity.py",
    ),
    one(
        "a-parameter-missing-from-the-norm",
        "the first parameter is added without being measured",
        _ENGINE,
        "        self._squares[self._into.layout.groups[position]].append(squares)",
        "        if position:\n            self._squares[self._into.layout.groups[position]].append(squares)",
        _BOUND,
    ),
    one(
        "small-parameters-missing-from-the-norm",
        "biases and other small parameters are added without being measured",
        _ENGINE,
        "                self._squares[group].append(Squares(sums=square_sums(rows)))\n",
        "",
        _BOUND,
    ),
    Mutant(
        name="clip-after-averaging",
        breaks="the sum of a physical batch is clipped instead of each example",
        edits=(
            Edit(file=_ENGINE, old=_FACTORS, new="        self.factors = factors = torch.ones_like(norms)\n"),
            Edit(
                file=_ENGINE,
                old="        if self._planner.has_new:\n",
                new="        flat.mul_(min(1.0, rule.sensitivity.total / max(float(flat.norm()), 1e-30)))\n"
                "        if self._planner.has_new:\n",
            ),
        ),
        killed_by=(_ADDITIVE, _BOUND),
    ),
    one(
        "one-factor-for-a-physical-batch",
        "all examples of a physical batch share the factor of their mean norm",
        _ENGINE,
        _FACTORS,
        "        factors = rule.factors(norms.mean(0, keepdim=True)).expand_as(norms).contiguous()\n" + _FACTORS,
        _ADDITIVE,
        _BOUND,
    ),
    one(
        "labels-that-mean-none-index-tables",
        "a loss weighted by its label fails on every made-up batch, and is refused",
        "training/preflight/made_up.py",
        " and not limit.is_index",
        "",
        "tests/effects/test_mitigation.py::"
        "test_a_weighted_training_has_the_guarantee_of_the_plain_one_and_no_gradient_beyond_the_bound",
    ),
    one(
        "user-backward-compared-on-scaled-losses",
        "a hook that limits gradients is refused, because it limits scaled ones less",
        "gradients/engines/bookkeeping.py",
        "is_linear=not runs_user_code",
        "is_linear=True",
        "tests/gradients/capture/test_reaching.py::"
        "test_a_hook_that_replaces_the_gradient_of_a_layers_output_is_honoured_at_every_batch",
    ),
    one(
        "uses-of-a-shared-layer-measured-apart",
        "the products between two calls of one layer are missing from the norm",
        "gradients/engines/prepared.py",
        "            self.clipper.take(position, parts[0] if len(parts) == 1 else joined(parts))",
        "            for part in parts:\n                self.clipper.take(position, part)",
        _WAY + "[two parts of one weight-book-keeping]",
    ),
    one(
        "one-call-of-a-shared-layer-dropped",
        "the second call of a layer is missing from norm and sum",
        "gradients/forms/joining.py",
        "torch.cat([getattr(part, name) for part in parts], 1)",
        "torch.cat([getattr(part, name) * (part is parts[0]) for part in parts], 1)",
        _WAY + "[chunks of one weight-book-keeping]",
    ),
    one(
        "tied-weight-cross-term-dropped",
        "a table that is also a linear map is measured without the products between both uses",
        "gradients/norms/strategies.py",
        "torch.mul(outer.inputs.to(lookup.out_grads.dtype) @ lookup.out_grads.mT, met, out=across)",
        "torch.mul(outer.inputs.to(lookup.out_grads.dtype) @ lookup.out_grads.mT, met, out=across).zero_()",
        "tests/gradients/forms/test_tied_tables.py::test_every_way_of_measuring_gives_the_norm_of_the_sum_of_both_uses",
    ),
    one(
        "ghost-norm-without-cross-terms",
        "positions of a sequence are measured as if they were different examples",
        "gradients/norms/strategies.py",
        "    return torch.stack([products.sum((1, 2)), products.diagonal(dim1=1, dim2=2).sum(1)])",
        "    return torch.stack([products.diagonal(dim1=1, dim2=2).sum(1)] * 2)",
        "tests/contract/test_strategies.py",
    ),
    one(
        "half-precision-margin-dropped",
        "what rounding to eight bits hides of a norm is not allowed for",
        "gradients/norms/strategies.py",
        "margin = 2.0**-6  # weighted factors are rounded to 8 bits",
        "margin = 0.0",
        "tests/gradients/norms/test_margins.py::test_products_of_half_precision_leave_room_for_their_rounding",
    ),
    one(
        "cancellation-floor-dropped",
        "terms that cancel leave a norm that is only rounding error, and too small",
        "gradients/norms/strategies.py",
        "torch.maximum(sums, sizes.mul_(max(each.floor for each in alike)), out=sums)",
        "pass",
        "tests/gradients/engines/test_precision.py::test_positions_that_nearly_cancel_keep_the_bound",
        "tests/gradients/forms/test_tied_tables.py",
    ),
    one(
        "batch-norm-accepted",
        "a layer that mixes examples is let through",
        "gradients/engines/support.py",
        "if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):",
        "if isinstance(module, _BatchNorm) and not module.training and not module.track_running_stats:",
        "tests/gradients/engines/test_refusals.py::"
        "test_a_layer_that_mixes_or_remembers_examples_is_refused_by_name_before_any_data",
    ),
    one(
        "mixing-before-the-first-layer-accepted",
        "examples that reach each other before the first trained layer are not noticed",
        "gradients/engines/trial.py",
        "        _check_inputs(found[len(targets) : len(wanted) - len(unheard)], absent)\n",
        "",
        "tests/gradients/engines/test_trial.py::test_the_trial_alone_refuses_mixing_before_the_first_trained_layer",
    ),
    one(
        "trial-by-odd-and-even-alone",
        "examples an even number of places apart may mix unnoticed",
        "gradients/engines/trial.py",
        _SETS,
        "    odd = torch.arange(batch_size, device=device) % 2 == 1\n    yield from (odd, ~odd)",
        _PARITY,
    ),
    one(
        "trial-in-one-direction",
        "earlier examples may reach later ones' losses unnoticed",
        "gradients/engines/trial.py",
        _SETS,
        "    yield from torch.ones(batch_size, batch_size, dtype=torch.bool, device=device).tril(-1).unbind(1)",
        _PARITY,
    ),
    one(
        "last-set-of-the-trial-unseen",
        "one example may reach another's loss unnoticed, where only the last set of the trial parts the two",
        "gradients/engines/trial.py",
        "        gradients = trial.send_back(loss, parameters, absent)\n",
        "        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)\n",
        "tests/gradients/engines/test_trial.py::test_the_trial_alone_refuses_one_example_that_reaches_one_other",
    ),
    one(
        "pre-flight-by-odd-and-even-alone",
        "examples an even number of places apart may mix through values that carry no gradient",
        "training/preflight/preflight.py",
        '        for exchanged in trials(self.made_up.num_examples, torch.device("cpu")):\n',
        "        odd = torch.arange(self.made_up.num_examples) % 2 == 1\n        for exchanged in (odd, ~odd):\n",
        "tests/training/preflight/test_preflight.py::test_two_examples_that_meet_are_refused_wherever_they_stand",
    ),
    one(
        "mean-loss-taken-for-a-sum",
        "a scalar loss is accepted and shared out",
        "gradients/engines/engine.py",
        "    if losses.dim() == 0:\n",
        "    if losses.dim() == 0:\n        losses = losses.expand(batch_size)\n    if losses.dim() == 0:\n",
        "tests/gradients/engines/test_refusals.py::test_losses_that_are_not_one_number_per_example_are_refused",
    ),
    one(
        "losses-of-other-data-accepted",
        "losses computed from another loader's data are taken for the batch's",
        "gradients/engines/engine.py",
        "    if not is_batch(losses):",
        "    if not losses.requires_grad:",
        "tests/gradients/engines/test_refusals.py::test_losses_of_data_from_elsewhere_are_refused",
    ),
    one(
        "norms-under-autocast",
        "norms and sums are formed in half precision",
        "gradients/engines/bookkeeping.py",
        "with torch.autocast(losses.device.type, enabled=False):",
        "with torch.autocast(losses.device.type, enabled=torch.is_autocast_enabled(losses.device.type)):",
        "tests/gradients/engines/test_precision.py::test_calling_backward_inside_autocast_keeps_the_bound",
    ),
    one(
        "geometry-in-noise-but-not-in-clipping",
        "gradients are clipped in plain units, noise is added in others",
        _ENGINE,
        "        if self._into.frame is not None:\n            part = rescaled",
        "        if self._into.frame is not None and position < 0:\n            part = rescaled",
        "tests/gradients/forms/test_rescaling.py",
        "tests/training/private_statistics/test_private_geometry.py",
    ),
    one(
        "mask-not-applied-to-the-sum",
        "masked coordinates carry gradients, and no noise",
        _ENGINE,
        "        if self._into.keep is not None:\n            part = self._masked(position, part)",
        "        if self._into.keep is not None and position < 0:\n            part = self._masked(position, part)",
        "tests/contract/test_engines.py::test_masked_coordinates_are_zero_and_the_rest_is_clipped_by_its_own_norm",
    ),
    one(
        "mask-drawn-anew-inside-a-step",
        "physical batches of one step use different masks",
        "training/summing.py",
        "            batch = how.loader.fetch(part)\n",
        "            batch = how.loader.fetch(part)\n"
        "            again = self.clipped.kept\n"
        "            if again is not None:\n"
        "                again = type(again).of(again.weights.roll(int(part[0]) + 1))\n"
        "            self.clipped.kept = again\n"
        "            self.clipped.keep = None if again is None else again.coordinates\n",
        "tests/training/test_masks.py::test_how_a_logical_batch_is_cut_changes_neither_mask_nor_sum",
    ),
    one(
        "views-counted-as-records",
        "the views of a record are added up after clipping's mean was taken for granted",
        "training/augmentation.py",
        "        return found.reshape(size, num_views).mean(1)",
        "        return found.reshape(num_views, size).mean(0)",
        "tests/training/test_augmentation.py",
    ),
    one(
        "layers-may-be-unfrozen",
        "a layer that joins during a session is moved by gradients without noise",
        "training/weight_watch/guard.py",
        " if value.requires_grad is not (id(value) in trained)]",
        " if value is None]",
        "tests/training/preflight/test_later_programs.py::test_a_layer_that_is_unfrozen_during_a_session_is_refused",
    ),
    one(
        "stray-gradients-are-applied",
        "the optimizer applies a gradient that never went through a private step",
        "training/weight_watch/guard.py",
        "if id(value) not in trained and value.grad is not None:",
        "if value is None:",
        "tests/training/preflight/test_later_programs.py::test_a_gradient_of_a_frozen_parameter_that_the_optimizer_holds_is_not_applied",
    ),
    one(
        "one-order-for-all-batches",
        "examples that are sorted by their data get the gradients of others",
        "gradients/engines/bookkeeping.py",
        "or trial.silent or moves:",
        "or trial.silent:",
        "tests/gradients/capture/test_rearranging.py",
    ),
    one(
        "a-sleeping-model-passes",
        "a head of zeros hides that examples mix, and the trial is never repeated",
        "gradients/engines/bookkeeping.py",
        "or trial.silent or moves:",
        "or moves:",
        "tests/training/preflight/test_later_programs.py::test_a_head_of_zeros_does_not_pass_a_trial_for_good",
    ),
    one(
        "one-example-is-never-tried",
        "with one example at a time a wrong gradient is clipped and added",
        "gradients/engines/bookkeeping.py",
        "            if proof.trace is not None:\n                trial",
        "            if proof.trace is not None and size > 1:\n                trial",
        "tests/gradients/rules/test_custom_rules.py::test_a_wrong_rule_is_refused_however_few_examples_come_at_a_time",
    ),
    one(
        "later-programs-are-not-told-apart",
        "a term that mixes examples and begins later is never looked at",
        "gradients/engines/bookkeeping.py",
        "signature = (tuple(recording.program), outputs)",
        "signature = ((), outputs)",
        "tests/training/preflight/test_later_programs.py::test_a_term_that_no_rule_knows_and_that_begins_later_is_refused_by_trial",
    ),
    one(
        "new-programs-without-leaves",
        "examples that are centred from the second step on move each other",
        "gradients/engines/bookkeeping.py",
        "if self._can_repeat and not self._has_leaves and signature[0] not in self._programs:",
        "if False:",
        "tests/training/preflight/test_later_programs.py::test_examples_that_are_centred_later_are_refused_before_anything_is_added",
    ),
    one(
        "optimizer-steps-freely",
        "the user's own optimizer.step() trains without privacy",
        "training/weight_watch/guard.py",
        "        if not self._may_step:",
        "        if self._may_step is None:",
        "tests/training/weight_watch/test_guards.py::test_a_step_of_the_optimizer_outside_an_update_is_refused",
    ),
    one(
        "foreign-parameters-accepted",
        "the optimizer moves parameters that no private step covers",
        "training/trained.py",
        "    if foreign:",
        "    if foreign < 0:",
        "tests/training/weight_watch/test_guards.py::test_an_optimizer_with_foreign_parameters_is_refused",
    ),
)
