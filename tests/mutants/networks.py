"""Mutants of networks that a recipe names: consent to run them, and features that are computed beforehand."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

_OWN = "runs/own_network.py"
_FEATURES = "runs/frozen_features.py"
_TESTS = "tests/runs/test_own_network.py"

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
        "        if not _is_function_of_each(model, body, dataset):\n            return whole\n",
        "",
        f"{_TESTS}::test_a_body_that_is_no_function_of_each_record_gives_no_features",
    ),
    one(
        "features-of-calls-that-nobody-followed",
        "a body that mixes the records of large batches gives features",
        _FEATURES,
        "    if isinstance(proof.losses, Cause) or proof.refused or len(kept) != 1:\n        raise _NotAHead\n",
        "",
        f"{_TESTS}::test_a_body_that_is_no_function_of_each_record_gives_no_features",
    ),
    one(
        "features-know-how-many-there-are",
        "the last call for features has as many rows as records are left",
        _FEATURES,
        "        lacking = _CHUNK - len(part)\n",
        "        lacking = 0\n",
        f"{_TESTS}::test_features_are_computed_once_and_never_written",
    ),
    one(
        "public-weights-are-not-assumed",
        "the guarantee does not say that it rests on public weights",
        "runs/recipes/recipe.py",
        "        return of_schema if self.network is None else (*of_schema, *self.network.assumptions)\n",
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
