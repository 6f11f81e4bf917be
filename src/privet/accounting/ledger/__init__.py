"""The ledger: what a run has spent, charged before it is spent; its rows, its file, and what they add up to."""

from __future__ import annotations

from privet.accounting.ledger.ledger import Ledger, LedgerHead, LedgerView, VoidReason

__all__ = ["Ledger", "LedgerHead", "LedgerView", "VoidReason"]
