"""Isolation of examples: rules that follow where the examples of a batch lie through every operation of a program."""
