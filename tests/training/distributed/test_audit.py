"""The canary audit of a run on two ranks: within its claim, and broken by noise that one rank alone draws."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from privet.attacks.canary_audit import CanaryAudit
from privet.mechanism.sampling import Poisson
from privet.training import randomness
from privet.training.distributed.shared_step import SharedStepSum
from privet.training.updates import StepSum
from tests.training.distributed.tools import results
from tests.training.tools import plan_of

NUM = 400


def audit() -> bool:
    """Audit a plan; return whether its claim is broken."""
    torch.manual_seed(1)
    model = nn.Linear(20, 25)
    plan = plan_of(Poisson(rate=0.5, steps=3, expected_batch_size=NUM / 2), noise_multiplier=0.7)
    record = torch.randn(NUM, 20), torch.zeros(NUM, dtype=torch.long)

    def losses(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(inputs), labels, reduction="none")

    finding = CanaryAudit(num_canaries=NUM, num_rounds=3).run(model, plan, losses=losses, record=record)
    return finding.is_broken


def audit_on_ranks(rank: int, size: int) -> list[bool]:
    as_it_is = audit()

    def nothing(self: Any, flat: torch.Tensor, std: float) -> None: ...

    SharedStepSum.add_noise = StepSum.add_noise  # type: ignore[method-assign] # ranks no longer compare what they add
    drawn = randomness.KeystreamNoise.add_normal
    randomness.KeystreamNoise.add_normal = nothing if rank else drawn  # type: ignore[method-assign,assignment]
    from privet.training.distributed import shared_run

    shared_run.agreed_noise = lambda source, *others, **more: source  # type: ignore[assignment]
    return [as_it_is, audit()]


def test_an_audit_over_two_ranks_holds_and_finds_noise_that_one_rank_alone_draws() -> None:
    first, second = results(audit_on_ranks, 2)
    assert first == [False, False]
    assert second == [False, True]
