"""Mutants of the formats, of what a ledger is told, and of what is remembered of its newest row."""

from __future__ import annotations

from tests.mutants.mutant import one

_NAMES = "mechanism/fingerprint.py"
_FORMER = "mechanism/former_fingerprint.py"
_ROWS = "accounting/ledger/rows.py"
_TESTS = "tests/test_formats.py::"
_ROLLED = "tests/accounting/test_ledger_rollback.py::"
_FACTS = "tests/contract/test_executed_rounds.py::"

FORMATS = (
    one(
        "defaults-in-the-fingerprint",
        "an optional field that is added to a piece makes every folder a mismatch",
        _NAMES,
        "if not field.init or (_has_default(field) and value == form(_default(field), names, where=where)):",
        "if not field.init:",
        _TESTS + "test_an_optional_field_that_is_added_to_a_piece_changes_no_fingerprint",
    ),
    one(
        "optional-values-not-in-the-fingerprint",
        "a plan whose optional values were changed goes on in the folder of another",
        _NAMES,
        "if not field.init or (_has_default(field) and value == form(_default(field), names, where=where)):",
        "if not field.init or _has_default(field):",
        _TESTS + "test_every_change_of_any_value_of_any_piece_changes_the_fingerprint",
    ),
    one(
        "rounded-values-in-the-fingerprint",
        "a plan with a little less noise has the name of the one that was charged",
        _NAMES,
        "return int(value) if value.is_integer() else float(value)",
        "return int(value) if value.is_integer() else round(float(value), 12)",
        _TESTS + "test_every_change_of_any_value_of_any_piece_changes_the_fingerprint",
    ),
    one(
        "former-name-of-what-came-later",
        "a plan that uses a later field has the former name of one that does not",
        _FORMER,
        'if name not in FIELDS or not type(value).__module__.startswith("privet."):',
        "if False:",
        _TESTS + "test_a_plan_with_what_came_after_format_1_has_no_name_in_it",
    ),
    one(
        "former-name-without-the-descent",
        "folders of runs that release their last model only are mismatches",
        _FORMER,
        'text = f"{text} with {_repr(plan.descent)}"',
        "pass",
        _TESTS + "test_every_plan_of_format_1_is_known_by_the_name_it_had",
    ),
    one(
        "ledgers-of-format-1-refused",
        "no folder of an earlier version opens",
        _ROWS,
        'run = None if form == 1 else str(body["run"])',
        'run = str(body["run"])',
        _TESTS + "test_a_stored_ledger_accounts_to_the_figure_it_had",
    ),
    one(
        "later-format-read-as-this-one",
        "what a newer version wrote is read by rules that are not its own",
        _ROWS,
        "if form > FORMAT:",
        "if False:",
        _TESTS + "test_a_ledger_of_a_later_format_was_made_by_a_newer_privet",
    ),
    one(
        "planned-event-taken",
        "a ledger compares the plan with itself",
        "accounting/ledger/ledger.py",
        "raise no_evidence(done)\n        self._check_usable()\n        with self._guard:\n            reserved",
        "done = type('Done', (), {'event': getattr(done, 'event', done)})\n        self._check_usable()\n"
        "        with self._guard:\n            reserved",
        _FACTS + "test_a_ledger_takes_no_event_that_was_planned",
    ),
    one(
        "largest-noise-of-a-joint-release",
        "one part of a release may have less noise than is charged",
        "mechanism/executed.py",
        "stds=(min(stds),)",
        "stds=(max(stds),)",
        _FACTS + "test_statistics_with_half_the_noise_on_either_part_are_refused",
    ),
    one(
        "first-party-speaks-for-all",
        "a party that adds less noise than the others is not noticed",
        "federated/coordinator.py",
        "NoiseOfParties(executed=executed_together(parts))",
        "NoiseOfParties(executed=parts[0])",
        _FACTS + "test_a_coordinator_compares_what_each_party_did_in_its_own_session",
    ),
    one(
        "later-releases-of-a-round-not-compared",
        "after the first step of an epoch, and after a party's first round, any noise will do",
        "accounting/ledger/ledger.py",
        "if any(matches(charged, done.event) for charged, _ in self._tally.charged):",
        "if self._tally.charged:",
        _FACTS + "test_a_later_step_of_a_charged_epoch_with_half_the_noise_is_refused_and_charged",
        _FACTS + "test_a_party_that_clips_its_update_to_twice_the_bound_is_refused_whenever_it_is_asked",
    ),
    one(
        "owed-noise-follows-the-kept-bound",
        "a party that clips to twice the bound believes that the coordinator adds twice the noise",
        "federated/party.py",
        "owed = self.agreement.central_noise_std(num_groups=self._layout.num_groups)",
        "owed = self.agreement.plan.noise.noise_multiplier * clipped.sensitivity.total",
        _FACTS + "test_a_party_that_clips_its_records_to_twice_the_bound_is_refused",
    ),
    one(
        "restored-folder-goes-on",
        "a run folder restored from a backup is finished again, and two models are paid for once",
        "training/folder.py",
        "former_hashes=plan.former_hashes,\n                heads=UserHeads(),",
        "former_hashes=plan.former_hashes,",
        _ROLLED + "test_a_restored_folder_trains_no_second_model_on_one_charge",
    ),
    one(
        "restored-folder-accounted",
        "the figure of an older copy of a ledger is told as the run's",
        "accounting/ledger/rollback.py",
        "        kept.check(view, where)\n",
        "",
        _ROLLED + "test_a_restored_folder_is_neither_accounted_nor_certified",
    ),
    one(
        "head-kept-at-the-end-only",
        "a run that was killed and restored from a backup is not noticed",
        "accounting/ledger/ledger.py",
        "        tally.take(line)\n        if self._heads is not None:\n",
        "        tally.take(line)\n        if self._heads is not None and isinstance(row.entry, Closed):\n",
        _ROLLED + "test_a_row_is_kept_before_data_are_read_for_it",
    ),
    one(
        "difference-of-totals-accepted",
        "of two copies that went on apart only the longer one is charged",
        "accounting/ledger/rollback.py",
        "shared = {CodedEvent.of(event).key: rounds for event, rounds in tally.charged}",
        "shared = {CodedEvent.of(event).key: rounds for event, rounds in view.charged}",
        _ROLLED + "test_copies_that_went_on_apart_are_charged_together",
    ),
    one(
        "accepted-rounds-given-back",
        "what a lost copy spent is given back when the older one is accepted",
        "accounting/ledger/rollback.py",
        "        ledger.abandon()  # a clean end would give back rounds that were not run here\n",
        "",
        _ROLLED + "test_what_accepting_charged_is_given_back_by_nobody",
    ),
)
