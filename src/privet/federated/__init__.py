"""Federated learning: parties keep their records, a coordinator keeps the model, and each has its own ledger."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
