"""Accounting: guarantees from events, calibration, and the ledger of charges. Never imports torch."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
