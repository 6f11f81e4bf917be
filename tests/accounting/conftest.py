from __future__ import annotations

from pathlib import Path

import pytest

from privet.accounting.ledger import VoidReason
from privet.errors import LedgerMismatch
from tests.accounting.ledgers import create, done, reopen, step


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def lived(path: Path) -> Path:
    """A ledger with every kind of row, written by two processes' worth of objects."""
    first = create(path)
    first.reserve(step(), 3)
    first.check(done(step()))
    first.void(VoidReason.INTERRUPTED)
    first.close()
    second = reopen(path)
    second.reserve(step(2.0))
    with pytest.raises(LedgerMismatch):
        second.check(done(step(1.9)))
    second.reserve(step(), 2)
    second.check(done(step()))
    second.close()
    return path
