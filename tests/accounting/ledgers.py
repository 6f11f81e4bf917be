"""Small ledgers for the tests of ledgers."""

from __future__ import annotations

from pathlib import Path

from dp_accounting import dp_event

from privet.accounting.ledger import Ledger

PLAN = {"noise_multiplier": 1.1, "name": "a plan"}
PLAN_HASH = "ab" * 32


def step(noise_multiplier: float = 1.1, rate: float = 0.01) -> dp_event.DpEvent:
    return dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise_multiplier))


def create(path: Path) -> Ledger:
    return Ledger.create(path, plan=PLAN, plan_hash=PLAN_HASH)


def reopen(path: Path) -> Ledger:
    return Ledger.open(path, plan_hash=PLAN_HASH)
