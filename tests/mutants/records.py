"""Mutants of what one record is and who reads it: processes, units, tables, and the seal of the data."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

_PROCESSES = "accounting/ledger/processes.py"
_SEVERAL = "tests/training/test_several_processes.py"

_TERMS = "vocabulary.py"
_UNITS = "tests/training/test_units.py"
_OWN_DATA = "tests/cli/test_train_own_data.py"
_TEXTS = "datasets/own/own_texts.py"
_TEXT_RECORDS = "tests/datasets/own/test_own_texts.py"
_SEAL = "training/data_seal.py"
_SEALED = "tests/training/test_data_seal.py"
_CSV = "datasets/csv_records.py"
_RECORDS = "tests/datasets/test_csv_records.py"

_SQL = "datasets/sql_tables.py"
_BASES = "tests/datasets/test_sql_tables.py"

_STANDARDISED = "models/standardised.py"
_STATISTICS = "tests/models/test_standardised.py"

RECORDS: tuple[Mutant, ...] = (
    one(
        "statistics-of-far-records",
        "a record beyond the declared ranges moves the statistics by more than others, and is clipped",
        _STANDARDISED,
        ".clamp(-1.0, 1.0)\n\n\ndef table_linear",
        "\n\n\ndef table_linear",
        _STATISTICS + "::test_no_record_is_longer_than_the_bound_of_the_statistics_and_none_is_clipped",
    ),
    one(
        "statistics-moved-by-the-task",
        "the loss of the task reaches the statistics, which are then no sums of bounded contributions",
        _STANDARDISED,
        "self.statistics.weight.detach().squeeze(0)",
        "self.statistics.weight.squeeze(0)",
        _STATISTICS + "::test_the_loss_of_the_task_does_not_move_the_statistics",
    ),
    one(
        "gap-of-test-records",
        "a gap is another value in test records than in training records",
        "datasets/special_columns.py",
        "return float(math.isnan(self.of.number(cell.strip())))",
        "return float(bool(cell.strip()))",
        "tests/datasets/test_special_columns.py::test_declared_gaps_are_read_alike_in_training_test_and_prediction",
    ),
    one(
        "persons-unasked",
        "a table that names persons is trained without a word on whom it protects",
        "cli/train_own_data.py",
        "        if found is not None:\n            raise RecipeError(",
        "        if found is None and found:\n            raise RecipeError(",
        "tests/cli/test_train_own_data.py::test_a_table_that_seems_to_name_persons_asks_what_a_record_is_before_it_reads_one",
    ),
    one(
        "typed-values-with-errors",
        "a value without a plain form shows itself in an error",
        "datasets/typed_tables.py",
        'return str(value) if isinstance(value, bool | int | float | Decimal | date | UUID) else ""',
        "return str(float(value))  # type: ignore[arg-type]",
        "tests/datasets/test_typed_tables.py::test_a_value_without_a_plain_form_becomes_an_empty_cell_and_no_error",
    ),
    one(
        "started-with-others-unseen",
        "every process of a launcher trains alone, each with a ledger of its own",
        _PROCESSES,
        "if started not in _ALONE and started != str(num_processes):",
        "if False:",
        _SEVERAL + "::test_a_process_that_was_started_with_others_spends_nothing",
    ),
    one(
        "process-group-unseen",
        "every process of a group trains alone, each with a ledger of its own",
        _PROCESSES,
        "    if found != num_processes:",
        "    if found > 2:",
        _SEVERAL + "::test_a_group_that_is_formed_or_given_up_during_a_run_stops_it",
    ),
    one(
        "late-process-group-unseen",
        "a group that is formed after the ledger was opened is not seen",
        "accounting/ledger/ledger.py",
        "        check_company(self._num_processes)\n        self._check_usable()",
        "        self._check_usable()",
        _SEVERAL + "::test_a_group_that_is_formed_or_given_up_during_a_run_stops_it",
    ),
    one(
        "spread-models-trained",
        "a model that is spread over processes is trained as if it were whole",
        "gradients/engines/support.py",
        "return module.startswith(_SPREADING) and",
        "return False and",
        _SEVERAL + "::test_a_model_that_is_spread_over_processes_or_devices_is_refused",
    ),
    one(
        "line-breaks-between-quotes-end-records",
        "a cell of many lines becomes many records, which are charged as one",
        _CSV,
        "        return self.quoted is None\n",
        "        self.quoted = None\n        return True\n",
        _RECORDS + "::test_line_breaks_in_a_cell_make_no_records_for_any_reader",
    ),
    one(
        "lone-returns-end-records",
        "a carriage return in one record's cell makes two records of it",
        _CSV,
        'ends_in_cr = form.has_header and text("").readline().endswith("\\r")',
        "ends_in_cr = True",
        _RECORDS + "::test_a_line_without_quotes_is_one_record_in_a_file_of_line_feeds",
    ),
    one(
        "text-behind-quotes-read",
        "a quote that is left open swallows the record after it",
        _CSV,
        "if (line[quote + 1 :] if end < 0 else line[quote + 1 : end]).strip():",
        "if False:",
        _RECORDS + "::test_what_no_writer_writes_is_refused_by_the_number_of_its_record",
    ),
    one(
        "records-of-any-length",
        "a record may be longer than declared",
        _CSV,
        "> self.max_length:",
        "> self.max_length * 2**20:",
        _RECORDS + "::test_a_record_may_have_the_declared_length_and_not_one_character_more",
    ),
    one(
        "units-not-compared",
        "a plan about persons trains on records",
        _TERMS,
        "        if unit not in self.units:",
        "        if False:",
        _UNITS + "::test_a_data_set_that_says_nothing_holds_records",
    ),
    one(
        "persons-not-assumed",
        "a guarantee about persons does not say that somebody declared them",
        "accounting/guarantee.py",
        "assumptions=(*assumptions, *(unit.assumptions if of_unit is None else of_unit)),",
        "assumptions=tuple(assumptions),",
        _UNITS + "::test_what_is_declared_stands_among_the_assumptions",
    ),
    one(
        "handed-on-statements-believed",
        "a data set that cuts persons into pieces passes for one of persons",
        _TERMS,
        'hasattr(type(dataset), "one_item")',
        'hasattr(dataset, "one_item")',
        _UNITS + "::test_a_data_set_that_hands_on_what_it_is_asked_for_says_nothing_about_its_own_items",
    ),
    one(
        "parties-not-asked-for-their-units",
        "a party of records takes part in a promise about persons",
        "federated/party.py",
        "            records = check_unit(records, agreement.plan)",
        "            pass",
        _UNITS + "::test_a_party_of_records_takes_no_part_in_a_promise_about_persons",
    ),
    one(
        "statistics-not-asked-for-their-units",
        "a release of sums over records is promised to persons",
        "convex/statistics.py",
        "one_item_of(rows).check(self.unit)",
        "one_item_of(rows).check(Unit.RECORD)",
        _UNITS + "::test_an_estimator_promises_nothing_about_persons_that_nobody_declared[statistics]",
    ),
    one(
        "recipe-of-any-unit",
        "a recipe may promise something to persons whom nothing names",
        "runs/recipes/recipe.py",
        "if unit is None or unit in (*known, *allowed):",
        "if True:",
        _OWN_DATA + "::test_persons_are_promised_nothing_by_a_table_that_does_not_know_them",
    ),
    one(
        "several-records-of-a-person-unseen",
        "the noise of one record is promised to a person who has several",
        "datasets/own/ownership.py",
        "if names is None or not (any(map(checks.is_missing, names)) or len(set(names)) < len(names)):",
        "if True:",
        _OWN_DATA + "::test_persons_with_several_records_are_not_promised_what_one_record_is",
    ),
    one(
        "stream-cut-short",
        "a stream whose writing was broken off counts as whole, so a resumed run has other records",
        "datasets/record_stream.py",
        "        if _read_facts(place) is None:\n            _write(records, place)",
        "        if not (place / _RECORDS).exists():\n            _write(records, place)",
        "tests/datasets/test_record_stream.py::test_a_stream_that_was_broken_off_is_written_anew",
    ),
    one(
        "stream-open-to-all",
        "every user of the machine can read the records of a stream",
        "datasets/record_stream.py",
        "os.O_EXCL, 0o600)",
        "os.O_EXCL, 0o644)",
        "tests/datasets/test_record_stream.py::test_only_the_owner_can_read_the_records",
    ),
    one(
        "seal-of-the-first-tensor",
        "a resumed run with other labels is not noticed",
        _SEAL,
        "    for tensor in parts:\n",
        "    for tensor in parts[:1]:\n",
        _SEALED + "::test_every_tensor_of_the_data_is_sealed",
    ),
    one(
        "seal-of-the-first-chunk",
        "a resumed run with other records beyond the first sixteen million numbers is not noticed",
        _SEAL,
        "for start in range(0, len(flat), _CHUNK):",
        "for start in range(0, min(len(flat), _CHUNK), _CHUNK):",
        _SEALED + "::test_every_number_of_a_long_tensor_is_sealed",
    ),
    one(
        "order-of-the-database",
        "records of a query come in the order of the database, which may depend on all of them",
        _SQL,
        "        order = sorted(range(len(rows)), key=places.__getitem__)",
        "        order = list(range(len(rows)))",
        _BASES + "::test_the_place_of_a_record_follows_from_its_key_alone",
    ),
    one(
        "text-without-a-class-refused",
        "a training text whose label was not declared stops the run, so that others learn of it",
        _TEXTS,
        "    labels = [declared.label.value(word) for word in _words(table, declared, declared.target)]\n",
        "    labels = read_test_texts(train, declared, tokens).labels.tolist()\n",
        _TEXT_RECORDS + "::test_a_training_label_that_is_no_class_counts_as_the_first_without_a_word",
    ),
    one(
        "label-of-a-test-text-shown",
        "the refusal of a test text shows its label",
        _TEXTS,
        "the first in record {codes.index(None) + 1}, are none of",
        "the first in record {codes.index(None) + 1}, {_words(table, declared, declared.target)}, are none of",
        _TEXT_RECORDS + "::test_a_test_label_that_is_no_class_is_refused_by_its_number_and_not_shown",
    ),
    one(
        "several-texts-of-a-person-unseen",
        "the noise of one text is promised to a person who wrote several",
        _TEXTS,
        "one_item=declared.ownership.one_record(persons),",
        "one_item=declared.ownership.one_record(None),",
        _TEXT_RECORDS + "::test_several_texts_of_a_person_are_not_promised_what_one_is",
    ),
    one(
        "each-text-its-own-person",
        "the texts of a person count as those of several, so that more than the cap take part",
        _TEXTS,
        "        persons=persons,\n",
        "        persons=persons and tuple(f'{name} {place}' for place, name in enumerate(persons)),\n",
        _TEXT_RECORDS + "::test_a_person_with_more_texts_than_the_cap_takes_part_with_the_cap_only",
    ),
    one(
        "names-of-persons-learned",
        "the column of persons may be the text that a model learns from",
        "datasets/own/declared_texts.py",
        "        self.ownership.refuse_among((self.text, self.target))\n",
        "",
        _TEXT_RECORDS + "::test_names_of_persons_are_no_input",
    ),
    one(
        "encoder-of-any-content",
        "a run on texts goes on with whatever lies in the folder, an encoder made from the records too",
        "runs/text_models.py",
        "    if found != settings.sha256:\n",
        "    if False:\n",
        "tests/runs/recipes/test_text_settings.py::test_another_encoder_in_the_folder_is_refused_before_it_is_loaded",
    ),
    one(
        "password-of-a-database",
        "the password in the URL of a database is stored with the recipe",
        _SQL,
        '        if _PASSWORD.search(f"{address}{mark}{unquote(options)}"):',
        "        if False:",
        _BASES + "::test_a_url_with_a_password_is_refused_and_not_shown",
    ),
)
