"""Trials of a model on made-up examples before real ones enter it."""
