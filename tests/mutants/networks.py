"""Mutants of networks that a recipe names: consent to run them, and features that are computed beforehand."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

_OWN = "runs/own_network.py"
_FEATURES = "runs/frozen_features.py"
_ONE_BY_ONE = "runs/one_by_one.py"
_TESTS = "tests/runs/test_own_network.py"
_ROWS = "tests/runs/test_one_by_one.py"
_BESIDE = "tests/runs/test_beside.py"

NETWORKS: tuple[Mutant, ...] = (
    one(
        "a-strangers-recipe-runs-code",
        "a recipe from elsewhere runs the Python file that it names",
        _OWN,
        "    code.refuse_strangers()\n",
        "",
        f"{_TESTS}::test_a_recipe_from_a_stranger_runs_no_code",
    ),
    one(
        "consent-forgets-the-content",
        "consent to a file also holds for what the file becomes",
        "runs/consent.py",
        '"function": self.function, "sha256": self.sha256}',
        '"function": self.function}',
        f"{_TESTS}::test_consent_is_for_the_file_as_it_is_and_compiled_copies_are_not_run",
    ),
    one(
        "features-of-a-mixing-body",
        "features are computed beforehand with a body that remembers or mixes records",
        _FEATURES,
        "        if not _is_function_of_each(model, body, dataset):\n",
        "        if False:\n",
        f"{_TESTS}::test_a_body_that_is_no_function_of_each_record_gives_no_features",
    ),
    one(
        "features-of-calls-that-nobody-followed",
        "a body that mixes the records of large batches gives features",
        _ONE_BY_ONE,
        "    if reason:\n",
        "    if False:\n",
        f"{_TESTS}::test_a_body_that_is_no_function_of_each_record_gives_no_features",
    ),
    one(
        "features-know-how-many-there-are",
        "the last call for features has as many rows as records are left",
        _ONE_BY_ONE,
        "            lacking = size - len(part)\n",
        "            lacking = 0\n",
        f"{_TESTS}::test_features_are_computed_once_and_never_written",
    ),
    one(
        "what-a-network-keeps-is-not-noticed",
        "a network writes a mean of private records into its weights, which are released",
        _ONE_BY_ONE,
        "            state.check_unchanged()\n",
        "",
        f"{_ROWS}::test_a_network_that_mixes_or_keeps_private_records_is_refused",
    ),
    one(
        "a-head-that-is-given-more-than-features",
        "a head is trained on features, and uses an attribute that the body set for other records",
        _FEATURES,
        " and _is_all_that_the_head_gets(model, body, few, others)",
        "",
        f"{_TESTS}::test_a_head_that_gets_more_than_features_is_trained_with_its_body",
    ),
    one(
        "evaluation-mode-not-tried-before-the-charge",
        "a network that centres each batch in evaluation mode is charged for an evaluation",
        "runs/evaluation/private_evaluation.py",
        "    _check_keeps_apart(model, recipe)\n",
        "",
        f"{_TESTS}::test_a_network_that_mixes_records_in_evaluation_mode_is_not_evaluated_on_private_ones",
    ),
    one(
        "a-network-stores-what-it-has-seen",
        "a network stores a tensor that no session watches with its weights",
        _OWN,
        "    _check_state(model, settings)\n",
        "",
        f"{_TESTS}::test_a_network_that_stores_more_than_parameters_and_buffers_is_refused",
    ),
    one(
        "consent-forgets-what-is-imported",
        "consent to a file holds whatever the files become that it imports",
        "runs/consent.py",
        "        if not self.beside:\n",
        "        if True:\n",
        f"{_BESIDE}::test_consent_ends_where_a_file_that_is_imported_changes",
    ),
    one(
        "files-that-nobody-read-are-run",
        "a file beside the network is run, though no consent and no fingerprint covers it",
        "runs/beside.py",
        "        if text is None:\n            raise RecipeError(",
        "        if text is None:\n            return None\n            raise RecipeError(",
        f"{_BESIDE}::test_what_no_import_statement_names_is_not_run",
    ),
    one(
        "queries-that-write",
        "a recipe from elsewhere names a query that drops a table",
        "datasets/sql_tables.py",
        "        if self.query is not None and _READING",
        "        if False and self.query is not None and _READING",
        "tests/datasets/test_sql_tables.py::test_a_statement_that_may_write_is_refused_before_a_database_is_opened",
    ),
    one(
        "public-weights-are-not-assumed",
        "the guarantee does not say that it rests on public weights",
        "runs/recipes/recipe.py",
        "        return of_schema if self.own_weights is None else (*of_schema, *self.own_weights.assumptions)\n",
        "        return of_schema\n",
        f"{_TESTS}::test_the_guarantee_says_that_the_weights_are_assumed_public",
    ),
    one(
        "a-changed-network-is-taken",
        "a run goes on with another network than its own",
        _OWN,
        "    if code.sha256 != settings.sha256:\n        raise _changed(settings.file, code.sha256, settings.sha256)\n",
        "",
        f"{_TESTS}::test_consent_is_for_the_file_as_it_is_and_compiled_copies_are_not_run",
    ),
)
