"""Recipes and runs: one TOML file describes a run, one folder holds all its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.runs.model_measures import measure_model as measure_model
    from privet.runs.prediction import model_of as model_of
    from privet.runs.prediction import predict_new as predict_new
    from privet.runs.project import total_of_runs as total_of_runs
    from privet.runs.recipes.recipe import Recipe as Recipe
    from privet.runs.recipes.recipe_files import load_recipe as load_recipe
    from privet.runs.recipes.recipe_files import packaged_recipes as packaged_recipes
    from privet.runs.runner import evaluate as evaluate
    from privet.runs.runner import train as train
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.runs.model_measures": ("measure_model",),
            "privet.runs.prediction": ("model_of", "predict_new"),
            "privet.runs.project": ("total_of_runs",),
            "privet.runs.recipes.recipe": ("Recipe",),
            "privet.runs.recipes.recipe_files": ("load_recipe", "packaged_recipes"),
            "privet.runs.runner": ("evaluate", "train"),
        },
    )
