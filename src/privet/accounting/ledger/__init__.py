"""The ledger: what a run has spent, charged before it is spent; its rows, its file, and what they add up to."""

from __future__ import annotations

from privet.accounting.ledger.ledger import Ledger
from privet.accounting.ledger.rows import Purpose, VoidReason
from privet.accounting.ledger.tally import LedgerHead
from privet.accounting.ledger.views import LedgerView

__all__ = ["Ledger", "LedgerHead", "LedgerView", "Purpose", "VoidReason"]
