"""Mutants of private evaluations, of releases besides a plan, and of what is signed and exported."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant, one

_TALLY = "accounting/ledger/tally.py"
_LEDGER = "accounting/ledger/ledger.py"
_COUNTS = "effects/noisy_counts/contributions.py"
_RELEASE = "training/further_release.py"
_RUN = "runs/evaluation/private_evaluation.py"
_IMPORTANCE = "runs/evaluation/importance.py"
_COLUMNS = "tests/runs/evaluation/test_importance.py"
_ROWS = "tests/accounting/test_ledger_further.py"
_BOUND = "tests/effects/noisy_counts/test_contributions.py"
_COVER = "tests/effects/noisy_counts/test_coverage.py"
_SCHEMA = "runs/schema_release.py"
_SCHEMAS = "tests/runs/test_schema_release.py"
_PRIVATE_SCHEMA = "tests/cli/test_private_schema.py"
_WHOLE = "tests/runs/evaluation/test_private_evaluation.py"

EVALUATION: tuple[Mutant, ...] = (
    one(
        "evaluation-for-free",
        "a private evaluation is charged on a ledger that nobody keeps",
        _RELEASE,
        "        round_ledger = FurtherLedger(ledger=ledger, purpose",
        '        ledger = Ledger.in_memory("ab" * 32)\n        round_ledger = FurtherLedger(ledger=ledger, purpose',
        f"{_WHOLE}::test_the_total_of_the_ledger_includes_the_evaluation_and_the_plan_still_agrees",
    ),
    one(
        "evaluation-given-back",
        "a process that charged an evaluation gives it back when it closes",
        _LEDGER,
        "        self._gives_back = False\n",
        "",
        f"{_ROWS}::test_a_further_release_that_was_never_made_is_not_given_back",
    ),
    one(
        "further-row-charges-nothing",
        "a row of a further release adds nothing to what was spent",
        _TALLY,
        "                self._charge(entry.coded, 1, is_returnable=True)\n                self.further.append(entry)",
        "                self.further.append(entry)",
        f"{_ROWS}::test_a_further_release_is_charged_durably_and_is_no_round_of_the_plan",
    ),
    one(
        "further-counts-as-a-round",
        "an evaluation is taken for a step, and an unfinished run for a finished one",
        _TALLY,
        "        return sum(self._charged.values()) - len(self.further)\n",
        "        return sum(self._charged.values())\n",
        f"{_ROWS}::test_a_further_release_of_the_same_event_as_a_round_is_told_from_it",
    ),
    one(
        "last-iterate-forgets-the-evaluation",
        "where only the last model is released, what was released besides it is not counted",
        "accounting/hidden_state.py",
        "        return compose([(last, 1), *ledger.besides]) if ledger.besides else last\n",
        "        return last\n",
        f"{_ROWS}::test_the_bound_on_the_last_model_stands_beside_a_further_release_and_both_are_charged",
    ),
    one(
        "training-alone-forgets-its-seed",
        "the guarantee of a training without its evaluation leaves out that the run is seeded, or what was only tried",
        "accounting/charges.py",
        "    return replace(HypotheticalCharges(**facts), besides=())\n",
        '    return HypotheticalCharges(planned=facts["planned"], is_complete=facts["is_complete"])\n',
        f"{_ROWS}::test_charges_without_releases_besides_keep_every_other_fact",
    ),
    one(
        "evaluation-assumes-nothing",
        "a guarantee does not say what an evaluation rests on",
        _TALLY,
        "        return (*self._assumed, *changes, *besides, *self.vouched)\n",
        "        return (*self._assumed, *changes, *self.vouched)\n",
        f"{_ROWS}::test_every_guarantee_says_what_a_further_release_rests_on",
    ),
    one(
        "a-unit-adds-without-bound",
        "the records of one person count in full in a private evaluation",
        _COUNTS,
        "factors * np.clip(data.weights[part], 0.0, 1.0)",
        "factors * np.ceil(data.weights[part])",
        f"{_BOUND}::test_one_unit_moves_the_vector_by_at_most_one_in_the_joint_norm",
    ),
    Mutant(
        name="a-record-adds-more-than-its-norm",
        breaks="one record moves the released vector by more than its noise is made for",
        edits=(
            Edit(
                file="effects/noisy_counts/terms.py",
                old='("losses", 4, math.sqrt(2 * (1 + MOMENT_SCALE**2)), 0.25)',
                new='("losses", 4, 0.5, 0.25)',
            ),
            Edit(
                file=_COUNTS,
                old="        factors = np.minimum(1.0, 1.0 / np.maximum(lengths, 1e-300))\n",
                new="        factors = np.ones_like(lengths)\n",
            ),
        ),
        killed_by=(f"{_BOUND}::test_one_unit_moves_the_vector_by_at_most_one_in_the_joint_norm",),
    ),
    one(
        "half-the-noise-of-an-evaluation",
        "the counts get less noise than is charged",
        _RELEASE,
        "std=noise_multiplier / weight, weight=weight",
        "std=noise_multiplier / weight / 2, weight=2 * weight",
        f"{_WHOLE}::test_an_attacker_who_knows_all_but_one_record_finds_the_noise_that_is_charged",
    ),
    one(
        "intervals-without-the-noise",
        "intervals of shares leave out the noise",
        "effects/noisy_counts/intervals.py",
        "    n, noise = np.maximum(k + m, 0.0), std**2\n",
        "    n, noise = np.maximum(k + m, 0.0), 0.0 * std\n",
        f"{_COVER}::test_intervals_hold_the_true_figure_in_93_to_97_percent_of_releases",
    ),
    one(
        "every-record-of-a-person-counts",
        "with persons as the unit every record counts as one",
        _RUN,
        "    if terms.records_per_person is None or records.persons is None:\n",
        "    if records.persons is None or True:\n",
        f"{_WHOLE}::test_each_person_counts_once_and_a_record_without_a_name_as_nothing",
    ),
    one(
        "private-test-part-read-in-training",
        "training reads the records of a private evaluation, strictly and uncharged",
        "runs/building.py",
        "    test = None if own is None or recipe.evaluation is not None else own.test\n",
        "    test = None if own is None else own.test\n",
        f"{_WHOLE}::test_training_reads_no_record_of_the_private_test_part",
    ),
    one(
        "total-above-what-is-allowed",
        "an evaluation may exceed the largest total that was allowed",
        _RUN,
        '    if total > checks.positive("max_epsilon", max_epsilon):\n',
        '    if total > 100 * checks.positive("max_epsilon", max_epsilon):\n',
        f"{_WHOLE}::test_a_total_above_what_is_allowed_and_a_wrong_column_are_refused_before_a_charge",
    ),
    one(
        "charged-sweep-counts-one-model",
        "a sweep on private records says what its last model cost, not all of them",
        "runs/sweep.py",
        "    spent = total_of_runs(runs).guarantee\n",
        "    spent = total_of_runs(runs[-1:]).guarantee\n",
        "tests/cli/test_sweep.py::test_a_charged_sweep_says_the_total_of_all_models_and_figures",
    ),
    one(
        "importance-by-another-record",
        "a private importance puts the values of other records in the place of a column",
        _IMPORTANCE,
        "torch.as_tensor(values, dtype=features.dtype, device=features.device)",
        "features.roll(1, 0)[:, list(group.places)]",
        f"{_COLUMNS}::test_what_a_record_adds_is_the_same_whoever_else_is_there",
    ),
    Mutant(
        name="importance-with-the-noise-of-one-column",
        breaks="the noise of the importance is made for one column, and a record moves all of them",
        edits=(
            Edit(
                file="effects/noisy_counts/terms.py",
                old="math.sqrt(len(self.importance) * (1 + MOMENT_SCALE**2)), 0.3)",
                new="math.sqrt(1 + MOMENT_SCALE**2), 0.3)",
            ),
            Edit(
                file=_COUNTS,
                old="        factors = np.minimum(1.0, 1.0 / np.maximum(lengths, 1e-300))\n",
                new="        factors = np.ones_like(lengths)\n",
            ),
        ),
        killed_by=(f"{_COLUMNS}::test_one_record_moves_all_columns_together_by_at_most_one_in_the_joint_norm",),
    ),
    one(
        "importance-without-a-budget",
        "private records are permuted without a charge",
        _IMPORTANCE,
        "    if not (stored_recipe(RunFiles(folder=Path(folder))).is_public if is_own_test else is_public):\n",
        "    if False:\n",
        f"{_COLUMNS}::test_private_records_are_not_permuted_without_a_budget",
    ),
    one(
        "stale-signature-stays",
        "the signature of an earlier certificate lies beside a new one",
        "cli/certify.py",
        "    (json_path.parent / SIGNATURE_NAME).unlink(missing_ok=True)",
        "    (json_path.parent / SIGNATURE_NAME)",
        "tests/reports/test_signature.py::test_a_certificate_is_signed_and_the_separate_program_says_by_whom",
    ),
    one(
        "schema-for-free",
        "a schema is released from private records and charged on a ledger that nobody keeps",
        _SCHEMA,
        "noise_multiplier=multiplier, ledger=ledger)",
        'noise_multiplier=multiplier, ledger=Ledger.in_memory("ab" * 32))',
        f"{_SCHEMAS}::test_the_release_is_charged_before_a_record_is_read",
    ),
    one(
        "schema-with-half-the-noise",
        "the counts of a schema get half the noise of the plan in their ledger",
        _SCHEMA,
        "noise_multiplier=multiplier, ledger=ledger)",
        "noise_multiplier=multiplier / 2, ledger=ledger)",
        f"{_SCHEMAS}::test_the_ledger_says_what_was_asked_for_and_agrees_with_its_plan",
        f"{_SCHEMAS}::test_the_noise_of_a_count_is_that_of_the_plan_over_the_weight_of_a_column",
    ),
    one(
        "schema-noise-of-a-single-column",
        "the noise of a schema's counts hides a record in one of its columns, not in all together",
        _SCHEMA,
        "        return 1 / math.sqrt(len(self.columns))",
        "        return 1.0",
        f"{_SCHEMAS}::test_a_record_moves_the_counts_by_at_most_one_in_the_norm_of_the_noise",
    ),
    one(
        "schema-counts-each-record-of-a-person",
        "a person of many records is hidden as one record is",
        _SCHEMA,
        "    weights[named] = 1.0 / owners.num_records_of[owners.of_record]",
        "    weights[named] = 1.0",
        f"{_SCHEMAS}::test_a_person_of_any_number_of_records_moves_the_counts_by_at_most_one",
    ),
    one(
        "schema-cost-unsaid",
        "a guarantee of training does not say that its schema was released from the records",
        "runs/recipes/recipe.py",
        "        of_schema = () if self.released is None else (self.released.assumption,)",
        "        of_schema: tuple[str, ...] = ()",
        f"{_PRIVATE_SCHEMA}::test_what_a_schema_cost_is_in_the_guarantee_of_its_training_and_in_the_total",
    ),
    one(
        "schema-cost-not-limited",
        "a limit on epsilon does not count what the schema spent",
        "cli/train.py",
        "    earlier = () if released is None else ((released.event, 1),)",
        "    earlier = ()",
        f"{_PRIVATE_SCHEMA}::test_a_limit_on_epsilon_counts_the_schema",
    ),
)
