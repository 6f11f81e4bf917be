"""Run folders with a ledger and nothing trained: all that a certificate needs."""

from __future__ import annotations

from pathlib import Path

from privet.accounting.ledger import Ledger
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.plan import Plan
from privet.vocabulary import Adjacency, Unit
from tests.accounting.ledgers import done


def plan_of(
    *,
    rate: float = 0.01,
    steps: int = 50,
    noise_multiplier: float = 2.0,
    delta: float = 1e-5,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    noise: Noise | None = None,
) -> Plan:
    sampling: Sampling = Poisson(rate=rate, steps=steps, expected_batch_size=10.0)
    if rate == 1:
        sampling = FullBatch(steps=steps, expected_batch_size=10.0)
    return Plan(
        sampling=sampling,
        clipping=Threshold(norm=1.0),
        noise=noise or Gaussian(noise_multiplier=noise_multiplier),
        delta=delta,
        adjacency=adjacency,
        unit=Unit.RECORD,
    )


def spend(folder: Path, plan: Plan, *, rounds: int | None = None, blocks: int = 1) -> Path:
    """Charge and use so many rounds of a plan in a new folder, in as many rows, and close the ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    total = plan.num_rounds if rounds is None else rounds
    with Ledger.create(folder / "ledger.jsonl", plan=plan.to_dict(), plan_hash=plan.hash) as ledger:
        for block in range(blocks):
            count = total // blocks + (block < total % blocks)
            ledger.reserve(plan.round_event, count)
            for _ in range(min(count, 3)):
                ledger.check(done(plan.round_event))
            for _ in range(max(0, count - 3)):
                ledger._at_hand.take("use")
    return folder
