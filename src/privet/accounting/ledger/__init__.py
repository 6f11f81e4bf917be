"""The ledger of a run, charged before anything is spent; its rows, its file, and their sum."""

from __future__ import annotations

from privet.accounting.ledger.ledger import Ledger
from privet.accounting.ledger.rows import Purpose, VoidReason
from privet.accounting.ledger.tally import LedgerHead
from privet.accounting.ledger.views import LedgerView

__all__ = ["Ledger", "LedgerHead", "LedgerView", "Purpose", "VoidReason"]
