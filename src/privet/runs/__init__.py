"""Recipes and runs: one TOML file describes a run, one folder holds all its results."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
