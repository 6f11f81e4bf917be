"""Mutants of the watch over weights, and of what may run during an update."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

_GUARD = "training/weight_watch/guard.py"
_HOLDINGS = "training/weight_watch/holdings.py"
_PRINTS = "training/weight_watch/fingerprints.py"
_ON_DEVICE = "training/weight_watch/device_pages.py"
_ON_HOST = "training/weight_watch/host_pages.py"
_FOLLOWING = "training/weight_watch/following.py"
_SESSION = "training/run_access.py"
_TALLY = "accounting/ledger/tally.py"
_FOUND = (
    "tests/training/weight_watch/test_weights.py::test_a_change_between_two_steps_is_refused_and_nothing_is_promised"
)
_HOOK = "tests/training/weight_watch/test_following.py::test_a_hook_that_uses_gradients_without_noise_is_refused"

WEIGHTS: tuple[Mutant, ...] = (
    one(
        "account-forgets-what-ended-the-promise",
        "a run whose weights something else changed is promised its figure",
        "plan.py",
        " + ledger.why_not_private",
        "",
        f"{_FOUND}[by_assignment]",
    ),
    one(
        "bound-on-the-end-despite-a-public-change",
        "a chain that a projection or a reset broke is charged as if it had been whole",
        _TALLY,
        "self.is_complete = not self.public_changes and not self.unexplained",
        "self.is_complete = True",
        "tests/accounting/test_ledger_changes.py::"
        "test_a_public_change_takes_the_end_of_a_plan_away_unless_it_comes_after_it",
        "tests/accounting/test_ledger_changes.py::test_an_unexplained_change_takes_the_end_of_a_plan_away_for_good",
    ),
    one(
        "verifier-keeps-the-bound-despite-a-public-change",
        "the bound on the last model is confirmed where the library itself does not claim it",
        "../../scripts/verify_certificate.py",
        'ends = kind == "complete" and not self.changes and not self.is_unexplained',
        'ends = kind == "complete"',
        "tests/scripts/test_verify_changes.py::"
        "test_library_and_verifier_agree_which_changes_take_the_bound_on_the_last_iterate_away",
    ),
    one(
        "door-beside-hidden-iterates",
        "weights are changed inside a chain whose proof knows steps alone",
        _SESSION,
        "        for notify in self._run.events.before_public_change:\n            notify()\n",
        "",
        "tests/training/test_last_iterate.py::test_not_even_a_public_change_may_stand_beside_the_steps",
    ),
    one(
        "change-that-the-disk-refused-is-forgotten",
        "a full disk turns an unexplained change into a promise",
        "accounting/ledger/ledger.py",
        "super().why_not_private + ((untold,) if self._unrecorded_mismatch else ())",
        "super().why_not_private",
        "tests/accounting/test_ledger_changes.py::"
        "test_what_the_disk_refuses_to_record_ends_the_promise_of_the_process_that_saw_it",
    ),
    one(
        "buffers-may-change",
        "running statistics of private data leave with the model",
        _GUARD,
        "            self.note()\n            raise UnsupportedModel(_forward_words(changes_between(",
        "            self.accept(reads_all=True)\n            str((changes_between(",
        "tests/training/weight_watch/test_guards.py::test_a_forward_pass_that_changes_a_buffer_is_refused_by_name",
    ),
    one(
        "buffers-may-change-at-a-party",
        "running statistics of private data leave a party of a federation",
        "federated/party_sums.py",
        "events = Events.of([guard, evidence])",
        "events = Events.of([evidence])",
        "tests/training/weight_watch/test_weights.py::test_a_party_whose_forward_pass_writes_into_the_model_is_refused",
    ),
    one(
        "counters-not-compared",
        "a second optimizer trains without privacy between two looks at the bits",
        _GUARD,
        "        if now != self._places:",
        "        if now is None:",
        f"{_FOUND}[by_assignment]",
        f"{_FOUND}[by_an_added_buffer]",
    ),
    one(
        "bits-not-compared",
        "what is written through .data leaves with the model",
        _GUARD,
        "        if written:\n",
        "        if not written:\n            return\n        if waits:\n",
        f"{_FOUND}[by_data]",
        f"{_FOUND}[by_a_numpy_alias]",
    ),
    one(
        "bits-compared-at-the-first-step-only",
        "what is written past torch at a later step is in the model that the step updates",
        _GUARD,
        "        self.look(waits=self._is_deep)",
        "        if self._num_updates == 0:\n            self.look(waits=True)",
        "tests/training/weight_watch/test_weights.py::"
        "test_a_forward_pass_that_writes_by_no_operation_of_torch_is_refused_before_its_update",
    ),
    one(
        "views-not-compared",
        "weights that are exchanged by another view of their memory pass",
        _HOLDINGS,
        '_STRIDED = (attrgetter("shape"), Tensor.stride)',
        '_STRIDED = (attrgetter("shape"), attrgetter("shape"))',
        f"{_FOUND}[by_a_transposed_view]",
    ),
    one(
        "state-of-the-optimizer-not-watched",
        "private values written into momentum are carried into the weights",
        _HOLDINGS,
        "    for owner, kept in optimizer.state.items():",
        "    for owner, kept in ():",
        "tests/training/weight_watch/test_weights.py::test_the_other_optimizers_state_may_not_be_written_either",
    ),
    one(
        "bits-weighed-alike",
        "permuted weights and changes that cancel pass",
        _ON_DEVICE,
        "drawn.bitwise_or_(1).to(device)",
        "torch.ones_like(drawn).to(device)",
        "tests/training/weight_watch/test_fingerprints.py::test_exchanged_numbers_show",
    ),
    one(
        "one-byte-of-a-page-hashed",
        "weights written past torch's counters in the processor's memory pass",
        _ON_HOST,
        'return memoryview(np.from_dlpack(words)).cast("B")',
        'return memoryview(np.from_dlpack(words)).cast("B")[:1]',
        "tests/training/weight_watch/test_fingerprints.py::test_changes_that_cancel_in_a_sum_show",
    ),
    one(
        "kernel-not-tried",
        "a kernel that is built wrongly for a machine sees no change of the weights",
        _ON_DEVICE,
        "            if _passes_trial(self._device):",
        "            if _passes_trial(self._device) or True:",
        "tests/training/weight_watch/test_fingerprints.py::test_a_kernel_that_sums_wrongly_is_never_used",
    ),
    one(
        "kernel-skips-chunks",
        "weights beyond the first chunk of a tensor are not watched on a device",
        _ON_DEVICE,
        "for start in range(0, segment.length, _CHUNK)]",
        "for start in range(0, 1, _CHUNK)]",
        "tests/training/weight_watch/test_fingerprints.py::test_changes_are_found_on_every_page_and_only_there",
    ),
    one(
        "words-of-64-bits",
        "two changed signs of double precision cancel",
        _PRINTS,
        "8: torch.int32}",
        "8: torch.int64}",
        "tests/training/weight_watch/test_fingerprints.py::test_signs_that_change_in_pairs_show",
    ),
    one(
        "no-look-at-the-exit",
        "a session in which a trainer's own optimizer does all the training promises epsilon 0",
        _GUARD,
        "            if not self.is_broken:\n                self.look(waits=True)\n        except",
        "            pass\n        except",
        "tests/training/weight_watch/test_weights.py::"
        "test_a_session_in_which_another_optimizer_does_all_the_training_promises_nothing",
    ),
    one(
        "no-look-before-a-guarantee",
        "a guarantee is given for weights that something else has trained",
        _SESSION,
        "        if self._is_open and not self._run.guard.is_broken:",
        "        if self._entered is None:",
        "tests/training/weight_watch/test_weights.py::test_a_guarantee_that_is_asked_for_within_the_session_looks_first",
    ),
    one(
        "change-not-in-the-ledger",
        "whoever reads the folder takes the run for private",
        "training/prepared.py",
        "        self.ledger.note_unexplained_change(step=self.state.steps_taken)",
        "        return",
        "tests/training/weight_watch/test_weights.py::test_the_ledger_keeps_it_and_whoever_reads_it_is_told",
    ),
    one(
        "unexplained-row-not-read",
        "account, report and certify promise privacy after a change that no private step made",
        _TALLY,
        "                self.unexplained.append(entry)",
        "                pass",
        "tests/accounting/test_ledger_changes.py::"
        "test_after_an_unexplained_change_no_plan_agrees_and_the_reason_is_kept",
    ),
    one(
        "public-change-not-in-the-ledger",
        "what the user changed by hand is no assumption of the guarantee",
        _SESSION,
        "            self.ledger.note_public_change(reason, step=self.steps_taken)\n",
        "",
        "tests/training/test_public_changes.py::test_public_changes_go_through_a_door_and_stand_in_the_guarantee",
    ),
    one(
        "door-forgives-what-came-before",
        "a foreign change is hidden by opening the door after it",
        _GUARD,
        "        self.look(waits=True)\n        self._settle()\n",
        "        self._settle()\n",
        "tests/training/test_public_changes.py::test_the_door_finds_what_was_changed_before_it",
    ),
    one(
        "hooks-not-followed",
        "a hook on the optimizer's step swaps in gradients without noise",
        _GUARD,
        "if strangers else nullcontext()",
        "if not strangers else nullcontext()",
        _HOOK,
    ),
    one(
        "optimizers-of-any-make-trusted",
        "an optimizer's own step uses gradients without noise",
        _GUARD,
        '_TRUSTED = ("torch.optim.", "privet.training.optimizers")',
        '_TRUSTED = ("",)',
        "tests/training/weight_watch/test_following.py::test_an_optimizer_whose_step_uses_gradients_without_noise_is_refused",
    ),
    one(
        "replaced-steps-trusted",
        "a function in the place of optimizer.step uses gradients without noise",
        _GUARD,
        "    if step is not None and not _is_of_a_scheduler(step, kind):",
        "    if step is kind:",
        "tests/training/weight_watch/test_following.py::test_a_step_that_was_replaced_is_followed",
    ),
    one(
        "numpy-not-followed",
        "a hook writes into the weights through numpy",
        _FOLLOWING,
        "        if name in _DOORS and any(",
        "        if not name and any(",
        f"{_HOOK}[hook after-write_by_numpy]",
    ),
    one(
        "gradients-taken-after-the-optimizer-was-told",
        "an optimizer swaps gradients without noise in before it is followed",
        "training/updates.py",
        "        with updates.opened(written):",
        "        with updates.opened([value.grad for value in updates.parameters if value.grad is not None]):",
        "tests/training/weight_watch/test_following.py::test_gradients_that_an_optimizer_swaps_when_told_of_the_noise_are_refused",
    ),
)
