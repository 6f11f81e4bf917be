"""Recipes: a run as one TOML file, read with care and checked before anything runs."""
