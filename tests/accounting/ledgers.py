"""Small ledgers for the tests of ledgers."""

from __future__ import annotations

from pathlib import Path

from dp_accounting import dp_event

from privet.accounting.ledger import Ledger
from privet.mechanism.clipping import FixedRun
from privet.mechanism.executed import ExecutedRound, ExecutedSteps
from privet.mechanism.sampling import FullBatch
from privet.mechanism.sums import PrivateSum

PLAN = {"noise_multiplier": 1.1, "name": "a plan"}
PLAN_HASH = "ab" * 32


def step(noise_multiplier: float = 1.1, rate: float = 0.01) -> dp_event.DpEvent:
    return dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise_multiplier))


def create(path: Path) -> Ledger:
    return Ledger.create(path, plan=PLAN, plan_hash=PLAN_HASH)


def reopen(path: Path) -> Ledger:
    return Ledger.open(path, plan_hash=PLAN_HASH)


def done(event: dp_event.DpEvent) -> ExecutedRound:
    """What a round did, for tests without a round: told by a sum that claims to have cost this."""
    everyone = FullBatch(steps=1, expected_batch_size=1.0)
    private = PrivateSum(flat=None, layout=None, event=event)  # type: ignore[arg-type]
    steps = ExecutedSteps(clipping=FixedRun(rule=None), sampling=everyone)  # type: ignore[arg-type]
    return steps.of(private, None)  # type: ignore[arg-type]
