"""Isolation of examples: rules that follow where the examples of a batch lie through every operation of a program."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
