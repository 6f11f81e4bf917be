"""Mutants of the ledger, of checkpoints and of what is written beside them."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant, one

_LEDGER = "accounting/ledger.py"
_STORE = "accounting/ledger_store.py"
_TALLY = "accounting/ledger_tally.py"
_SESSION = "training/session.py"
_CRASH = "tests/accounting/test_ledger_crash.py::test_charged_is_at_least_released_after_every_two_power_losses"
_DAMAGE = "tests/accounting/test_ledger_damage.py"

LEDGER = (
    one(
        "times-in-a-private-log",
        "lines of a log come by the clock and tell how long steps took, hence how many examples they had",
        "cli/progress_line.py",
        "return self._is_terminal or update.may_tell_time",
        "return True",
        "tests/cli/test_verbs.py::test_a_log_of_private_data_has_the_same_lines_however_long_steps_take",
    ),
    Mutant(
        name="charge-after-release",
        breaks="a crash after the data were used and before the row is written is not charged",
        edits=(
            Edit(file=_SESSION, old="            self._reserve(num_rounds - done)\n", new=""),
            Edit(
                file="training/step.py",
                old="            session.ledger.check(facts)",
                new="            session._reserve(1)\n            session.ledger.check(facts)",
            ),
        ),
        killed_by=(
            "tests/training/test_release.py::test_a_round_is_durably_charged_before_any_of_its_examples_is_read",
        ),
    ),
    one(
        "at-hand-before-durable",
        "a round whose row could not be written may be run",
        _LEDGER,
        "            self._append(Reserved(coded=coded, count=rounds))\n            self._at_hand.add(coded, rounds)",
        "            self._at_hand.add(coded, rounds)\n            self._append(Reserved(coded=coded, count=rounds))",
        "tests/accounting/test_ledger_faults.py::"
        "test_a_full_disk_charges_nothing_and_the_run_goes_on_once_there_is_space",
    ),
    one(
        "no-sync-of-rows",
        "a row that was acknowledged can be lost with the power",
        _STORE,
        "                self._sync()\n        except BaseException:",
        "                pass\n        except BaseException:",
        _CRASH,
    ),
    one(
        "no-sync-of-names",
        "the whole ledger can be lost with the power",
        _STORE,
        "            files.sync_names(path)\n",
        "",
        _CRASH,
    ),
    one(
        "short-write-accepted",
        "half a row on a full disk counts as written",
        _STORE,
        "if num_written != len(line):",
        "if num_written < 0:",
        "tests/accounting/test_ledger_faults.py",
    ),
    one(
        "failed-sync-forgiven",
        "after a failed sync later ones are believed",
        _STORE,
        "            self._broken = True\n            raise",
        "            raise",
        "tests/accounting/test_ledger_faults.py::test_after_a_failed_sync_nothing_more_is_trusted",
    ),
    one(
        "no-lock",
        "two processes spend the same budget",
        _STORE,
        "fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "handle.__class__",
        "tests/accounting/test_ledger_holding.py",
    ),
    one(
        "rounds-of-an-earlier-process-forgotten",
        "a resumed run starts with a fresh budget",
        _TALLY,
        "            self._returnable.clear()\n        self._add_up",
        "            self._returnable.clear()\n            self._charged.clear()\n        self._add_up",
        "tests/accounting/test_ledger.py::test_a_resumed_process_has_no_rounds_at_hand",
        "tests/training/test_resume.py::test_after_a_crash_the_reserved_rounds_are_spent_and_the_plan_still_holds",
    ),
    one(
        "rounds-of-a-crashed-process-returned",
        "rounds that may have been released are given back by a later process",
        _TALLY,
        "            self._returnable.clear()\n",
        "",
        _DAMAGE + "::test_rows_that_make_no_sense_are_refused_even_with_a_perfect_chain",
    ),
    one(
        "last-row-lost-on-resume",
        "opening a ledger with an unfinished row cuts off a finished one, too",
        _LEDGER,
        "file.drop_unfinished(tally.num_bytes)",
        "file.drop_unfinished(tally.num_bytes // 2)",
        _DAMAGE + "::test_opening_cuts_an_unfinished_row_off_for_good",
    ),
    one(
        "exception-returns-rounds",
        "a failed run gives back rounds that it may have begun",
        _LEDGER,
        "        if error is None or os.getpid() != self._owner:\n            self.close()",
        "        if error is error or os.getpid() != self._owner:\n            self.close()",
        "tests/accounting/test_ledger.py::test_an_exit_by_exception_gives_nothing_back",
    ),
    one(
        "voids-are-free",
        "a round that was given up after reading data is not charged",
        _TALLY,
        "                self._use(entry.coded, 1)\n                self.num_voids += 1",
        "                self._use(entry.coded, 1)\n                self._charged[entry.coded.key] -= 1\n"
        "                self.num_voids += 1",
        "tests/accounting/test_ledger.py",
        "tests/training/test_resume.py::test_a_step_that_fails_stays_charged_and_the_run_can_go_on",
    ),
    one(
        "facts-not-compared",
        "a release that is not what was charged passes",
        _LEDGER,
        "            if is_same(reserved.event, event):",
        "            if is_same(reserved.event, reserved.event):",
        "tests/accounting/test_ledger.py::test_facts_that_differ_are_charged_on_top_and_refused",
    ),
    one(
        "facts-not-charged",
        "a release that is not what was planned is charged as planned",
        _TALLY,
        "                self._charge(entry.facts, 1)\n",
        "",
        "tests/accounting/test_ledger.py::test_facts_that_differ_are_charged_on_top_and_refused",
    ),
    one(
        "event-compared-loosely",
        "one percent less noise than was charged passes",
        "mechanism/events.py",
        "rel_tol: float = 1e-9) -> bool:",
        "rel_tol: float = 2e-2) -> bool:",
        "tests/accounting/test_ledger.py",
        "tests/mechanism/test_events.py",
        "tests/training/test_release.py::"
        "test_a_release_that_is_not_what_was_charged_is_refused_and_charged_as_what_it_is",
    ),
    one(
        "one-round-beyond-the-plan-verified",
        "a run of one round more than was planned is declared in order",
        _TALLY,
        "        if rounds > left:",
        "        if rounds > left + 1:",
        "tests/accounting/test_ledger.py::test_verify_accepts_the_plan_and_less_and_nothing_else",
    ),
    one(
        "chain-not-checked",
        "a row in the middle can be edited",
        _TALLY,
        "        if fields.prev != self._prev():",
        "        if not fields.prev:",
        _DAMAGE,
    ),
    one(
        "sequence-not-checked",
        "rows can be numbered at will",
        _TALLY,
        "        if fields.seq != seq:",
        "        if fields.seq < 0:",
        _DAMAGE,
    ),
    one(
        "rolled-back-ledger-accepted",
        "an older copy of the ledger makes spent rounds free",
        "training/folder.py",
        "        if not ledger.contains(checkpoint.head):",
        "        if ledger.contains(checkpoint.head) is None:",
        "tests/training/test_resume.py::test_a_ledger_that_was_rolled_back_is_refused",
    ),
    one(
        "rolled-back-ledger-accounted",
        "the account of an older copy of the ledger names too small an epsilon",
        "runs/ledger_check.py",
        "        if self.head is not None and not view.contains(self.head):",
        "        if self.head is not None and view.contains(self.head) is None:",
        "tests/cli/test_unfinished.py::test_a_ledger_that_knows_less_than_its_folder_is_refused_with_code_3_and_no_epsilon",
    ),
    one(
        "broken-off-fit-forgotten",
        "weights that an interrupted fit has trained are trained again for free",
        "training/estimator.py",
        "            self._was_broken_off |= [p._version for p in trained] != versions",
        "            self._was_broken_off |= [p._version for p in trained] is None",
        "tests/training/test_estimator.py::test_a_fit_that_was_broken_off_is_not_hidden_by_the_next",
    ),
    one(
        "checkpoint-without-ledger-accepted",
        "deleting the ledger makes everything free",
        "training/folder.py",
        "        if self.checkpoint_path.exists():",
        "        if self.checkpoint_path is None:",
        "tests/training/test_resume.py::test_a_checkpoint_without_its_ledger_is_refused",
    ),
    one(
        "free-text-in-the-ledger",
        "an exception's message, with private data in it, can be written to the ledger",
        _LEDGER,
        "        if not isinstance(reason, VoidReason):",
        "        if reason is None:",
        "tests/accounting/test_ledger.py::test_no_free_text_enters_a_ledger",
    ),
    Mutant(
        name="private-size-in-the-ledger",
        breaks="the exact number of records is written to the ledger",
        edits=(
            Edit(
                file=_SESSION,
                old="else folder.open_ledger(plan, is_seeded=seed is not None)",
                new="else folder.open_ledger(plan, len(dataset), is_seeded=seed is not None)",
            ),
            Edit(
                file="training/folder.py",
                old="def open_ledger(self, plan: Plan, *, is_seeded: bool) -> Ledger:",
                new="def open_ledger(self, plan: Plan, records: int, *, is_seeded: bool) -> Ledger:",
            ),
            Edit(
                file="training/folder.py",
                old="            plan=plan.to_dict(),\n",
                new='            plan=plan.to_dict() | {"records": records},\n',
            ),
        ),
        killed_by=("tests/training/test_telemetry.py::test_the_files_of_a_run_do_not_depend_on_the_data",),
    ),
    one(
        "private-batch-size-in-the-checkpoint",
        "the number of records drawn in the last step is saved beside the model",
        "training/step.py",
        "session._position, session.steps_taken = self.index + 1, session.steps_taken + 1",
        "session._position, session.steps_taken = self.index + 1, session.steps_taken + len(self._indices)",
        "tests/training/test_release.py::"
        "test_steps_are_counted_alike_whatever_they_hold_in_the_session_and_in_its_checkpoint",
    ),
    one(
        "seeded-run-not-stamped",
        "a repeatable run is reported as private",
        "plan.py",
        "((SEEDED,) if ledger.is_seeded else ()) + ledger.why_not_private",
        "ledger.why_not_private",
        "tests/training/test_randomness.py::test_a_seeded_run_is_stamped_not_private",
    ),
    one(
        "seed-not-in-the-ledger",
        "whoever reads the folder of a seeded loop takes it for private",
        "training/folder.py",
        "            is_seeded=is_seeded,\n            assumptions",
        "            assumptions",
        "tests/cli/test_own_loop.py::test_a_loop_that_was_given_a_seed_is_not_private_for_whoever_reads_its_folder",
    ),
    one(
        "seed-slips-into-a-run",
        "a run that was begun without a seed goes on with one, and its ledger does not say so",
        "training/folder.py",
        "if is_seeded and not ledger.is_seeded:",
        "if False:",
        "tests/training/test_resume.py::test_a_seed_cannot_slip_into_a_run_that_was_begun_without_one",
    ),
)
