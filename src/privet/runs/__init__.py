"""Recipes and runs: an experiment as one file, and one folder that holds everything it did."""
