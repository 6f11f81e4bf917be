"""Recipes and runs: one file says what to run, and one folder holds everything that the run did."""
