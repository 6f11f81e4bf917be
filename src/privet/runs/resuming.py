"""Resuming a run: the same recipe continues under the same plan; another recipe is refused with its differences."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from privet.accounting.guarantee import Guarantee
from privet.errors import CheckpointError, LedgerMismatch, PrivetError, RecipeError
from privet.plan import Plan
from privet.runs.recipes.recipe import FREE_ON_RESUME, Recipe
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.run_files import RunFiles, read_json, read_text, write_json, write_whole


def stored_recipe(files: RunFiles) -> Recipe:
    """Return the recipe of a run folder.

    Raises:
        CheckpointError: there is none, as in the folder of a user's own training loop.
    """
    if files.is_own_loop:
        raise CheckpointError(
            f"{files.folder} was written by a training loop of your own (privatize(..., folder=...)), a trainer of "
            "another library or privet finetune. It holds the ledger and checkpoints and no recipe, so its data and "
            "network cannot be loaded from here. Use and measure the model in your own code. These work on the folder: "
            "privet account, privet report, privet certify, privet card."
        )
    read_text(files.recipe)  # refuses links and missing files
    return load_recipe(files.recipe)


def classifier_recipe(files: RunFiles) -> Recipe:
    """Return the recipe of a run whose model classifies.

    Raises:
        RecipeError: it predicts numbers.
    """
    recipe = stored_recipe(files)
    if not recipe.info.task.class_names:
        raise RecipeError(
            f"{recipe.dataset} is a regression: it has no classes and no confidence to examine. "
            "Measure its error with: privet evaluate RUN."
        )
    return recipe


def stored_plan(files: RunFiles) -> Plan:
    """Return the calibrated plan of a run folder, as it was stored at the start of the run."""
    found = read_json(files.plan)
    if not isinstance(found.get("plan"), dict):
        raise CheckpointError(f"{files.plan} holds no plan. Restore it from a copy.")
    try:
        plan = Plan.from_dict(found["plan"])
    except PrivetError as error:
        raise CheckpointError(f"{files.plan} cannot be read: {error}") from error
    if not plan.matches_hash(found.get("hash")):
        raise CheckpointError(f"{files.plan} was changed after it was written. Restore it from a copy.")
    return plan


def plan_of_run(recipe: Recipe, files: RunFiles) -> Plan:
    """Return the plan to run: a new one for a new folder, the stored one for a folder that holds the same recipe.

    A stored plan is not calibrated again: another version of the accountant might choose a noise that differs in the
    last digit, and the ledger would refuse it.

    Raises:
        LedgerMismatch: the folder's run has another plan; the message lists every difference.
        RecipeError: the plan is the same, but another setting of the run differs.
    """
    if not files.is_run:
        return recipe.plan()
    old = stored_recipe(files)
    changes = differences(_binding(old), _binding(recipe))
    if not changes:
        return stored_plan(files)
    before, after = stored_plan(files), recipe.plan()
    if before.hash == after.hash:
        raise RecipeError(
            f"{files.folder} holds a run of another recipe, with the same plan:\n{_listed(changes)}\n"
            "Use the same recipe to resume, or a new folder for a new run."
        )
    raise LedgerMismatch(
        f"{files.folder} holds a run under another plan, and a plan cannot change once data were used:\n"
        f"{_listed(differences(before.to_dict(), after.to_dict()))}\n"
        "Use the same recipe to resume. For another plan use a new folder; both guarantees then add up."
    )


def resuming_command(files: RunFiles) -> str:
    """Return the command that resumes a run with the recipe in its folder."""
    return shlex.join(["privet", "train", str(files.recipe), "-o", str(files.folder)])


def write_plan_and_recipe(recipe: Recipe, plan: Plan, promised: Guarantee, files: RunFiles) -> None:
    """Write the plan and the recipe, before any data is read."""
    write_json(files.plan, {"plan": plan.to_dict(), "hash": plan.hash, "guarantee": promised.to_dict()})
    write_whole(files.recipe, recipe.to_toml())


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """List (dotted path, old value, new value) for everything that differs; None means absent."""
    old, new = _flat(before), _flat(after)
    paths = list(dict.fromkeys([*old, *new]))
    return [(path, old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)]


def _binding(recipe: Recipe) -> dict[str, Any]:
    flat = _flat(recipe.to_dict())
    return {path: value for path, value in flat.items() if path not in FREE_ON_RESUME}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        result |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return result


def _listed(changes: list[tuple[str, Any, Any]]) -> str:
    return "\n".join(f"  {path}: {_shown(old)} -> {_shown(new)}" for path, old, new in changes)


def _shown(value: object) -> str:
    return "(absent)" if value is None else repr(value)
