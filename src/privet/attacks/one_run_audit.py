"""Audit of a whole training in one run (Steinke, Nasr and Jagielski 2023).

Canaries join the training data, each by its own fair coin. Afterwards an attacker says of some of them whether they
were in, and abstains on the rest. How many guesses are right bounds epsilon from below, for any mechanism and any
dependence among the canaries. The bound is loose: passing proves little, failing proves a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from privet import checks
from privet.attacks.audit_bounds import Guesses, one_run_epsilon, one_run_refutes
from privet.attacks.audit_claim import AuditFinding, Claim
from privet.attacks.canaries import Losses
from privet.attacks.canary_attacks import Attack
from privet.errors import DataError, PlanError
from privet.plan import Plan
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Release

Array = NDArray[np.float64]
# Shares of the canaries to guess about, fixed in advance; the allowed error is divided among them.
SHARES = (1.0, 0.5, 0.2, 0.1, 0.05)


class _Mixed:
    """Training records with canaries among them; every item is a record's tensors."""

    def __init__(self, records: Sequence[Tensor], extra: Sequence[Tensor]) -> None:
        self._tensors = [torch.cat([record, other]) for record, other in zip(records, extra, strict=True)]

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self._tensors)

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor[indices.to(tensor.device)] for tensor in self._tensors)


@dataclass(frozen=True, kw_only=True)
class OneRunAudit:
    """An audit of a real training with canaries that are ordinary records of the data's kind.

    Attributes:
        confidence: A correct program passes with at least this probability, for each attack.
        physical_batch_size: How many examples go through the model at once.
        seed: Of the coins and of the run. With it the trained model is NOT PRIVATE; it is thrown away.
    """

    confidence: float = 0.9999
    physical_batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that no audit can have."""
        object.__setattr__(self, "confidence", checks.probability("confidence", self.confidence))
        object.__setattr__(self, "physical_batch_size", checks.count("physical_batch_size", self.physical_batch_size))
        object.__setattr__(self, "seed", checks.count("seed", self.seed, minimum=0))

    def run(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        plan: Plan,
        *,
        losses: Losses,
        records: Sequence[Tensor],
        canaries: Sequence[Tensor],
        attacks: Sequence[Attack],
    ) -> tuple[AuditFinding, ...]:
        """Train the model under the plan with about half of the canaries, attack it, and return what that proves.

        Args:
            model: Trained in place.
            optimizer: Of the model.
            plan: Calibrated. All of it is run.
            losses: From the tensors of a batch to one loss per example.
            records: Training data: tensors with one row per record. They are the same whatever the coins say.
            canaries: Tensors of the same kinds; under ``REPLACE_ONE`` twice as many rows as canaries, of which the
                second half stands in for canaries that are out.
            attacks: The attackers.

        Guarantee:
            If the run is as private as the plan says, a finding is not broken with probability ``confidence`` at least
            (Steinke et al. 2023, theorem 5.2; Mahloujifar et al. 2024, theorem 3.2). Findings tell nothing of the
            records beyond what the noisy model does. Edge cases: ``ZERO_OUT`` is refused, because a blank record is not
            a record of the data's kind.
        """
        is_in, dataset = self._mixed(plan, records, canaries)
        scored = [part[: len(is_in)] for part in canaries]
        claims = [_claim_of(plan, attack) for attack in attacks]
        begun = [attack.start(model, losses, scored) for attack in attacks]
        session = privatize(
            model,
            optimizer,
            dataset,
            plan,
            performance=Performance(physical_batch_size=self.physical_batch_size),
            seed=self.seed,
        )
        with session:
            for step in session.steps():
                step.accumulate(losses)
                step.update()
                for attack_run in begun:
                    attack_run.after_step(step.index)
        return tuple(
            self._finding(attack, claim, attack_run.scores(), is_in)
            for attack, claim, attack_run in zip(attacks, claims, begun, strict=True)
        )

    def _mixed(
        self, plan: Plan, records: Sequence[Tensor], canaries: Sequence[Tensor]
    ) -> tuple[NDArray[np.bool_], _Mixed]:
        """Toss the coins; return them and the data with the canaries that are in."""
        replaces = plan.adjacency is Adjacency.REPLACE_ONE
        if plan.adjacency is Adjacency.ZERO_OUT:
            raise PlanError("The one-run audit knows no blank records of the data's kind. Use the canary audit.")
        rows = len(canaries[0]) if canaries else 0
        num_canaries = rows // 2 if replaces else rows
        if len(records) != len(canaries) or num_canaries < 1:
            raise DataError("records and canaries must be the same kinds of tensors, with one row or more per canary.")
        is_in = np.random.default_rng([self.seed, 0x636F696E]).random(num_canaries) < 0.5
        places = np.arange(num_canaries)
        chosen = np.where(is_in, places, places + num_canaries) if replaces else places[is_in]
        kept = len(records[0])
        if plan.sampling.declared_size is not None:
            # a public number of records: canaries take the places of the last ones
            kept = min(kept, plan.sampling.declared_size - num_canaries)
        if kept < 0:
            raise DataError(f"The plan has room for fewer records than there are canaries ({num_canaries}). Use fewer.")
        index = torch.from_numpy(chosen)
        return is_in, _Mixed([part[:kept] for part in records], [part[index.to(part.device)] for part in canaries])

    def _finding(self, attack: Attack, claim: Claim, scores: Array, is_in: NDArray[np.bool_]) -> AuditFinding:
        guesses = tuple(guess(scores, is_in, share=share) for share in SHARES)
        level = 1 - (1 - self.confidence) / (2 * len(guesses))

        def is_refuted(multiplier: float) -> bool:
            inverse = claim.inverse(multiplier)
            return any(one_run_refutes(each, inverse, confidence=level) for each in guesses)

        # both bounds hold at once, because each has half of the allowed error
        plain = max(one_run_epsilon(each, delta=claim.plan.delta, confidence=level) for each in guesses)
        # guesses that a blind attacker could have made are no evidence against any claim
        is_evidence = any(one_run_refutes(each, lambda rate: rate, confidence=level) for each in guesses)
        broken, noise_bound = claim.test(is_refuted) if is_evidence else (False, None)
        claimed = claim.epsilon(claim.noise_multiplier)
        return AuditFinding(
            audit="one run",
            attacker=attack.name,
            num_canaries=len(is_in),
            num_observations=len(is_in),
            num_rounds=claim.num_rounds,
            confidence=self.confidence,
            delta=claim.plan.delta,
            epsilon_bound=max(plain, 0.0 if noise_bound is None else claim.epsilon(noise_bound)),
            epsilon_claim=claimed,
            noise_bound=noise_bound,
            noise_claim=claim.noise_multiplier,
            is_broken=broken or plain > claimed,
        )


def guess(scores: Array, is_in: NDArray[np.bool_], *, share: float) -> Guesses:
    """Call the canaries with the highest scores in and those with the lowest out, half and half; abstain on the rest.

    Args:
        scores: One per canary. Equal scores are ordered by their place, which has nothing to do with the coins.
        is_in: The truth.
        share: The share of canaries to guess about, fixed before the scores were seen.
    """
    order = np.argsort(scores, kind="stable")
    half = int(checks.probability("share", share, allow_one=True) * len(order)) // 2
    right = int((~is_in[order[:half]]).sum()) + int(is_in[order[len(order) - half :]].sum())
    return Guesses(num_canaries=len(order), num_guesses=2 * half, num_right=right)


def _claim_of(plan: Plan, attack: Attack) -> Claim:
    if attack.sees_every_iterate and plan.release is Release.LAST_ITERATE:
        raise PlanError(
            f"The attack by {attack.name} looks at every iterate, and the plan promises that nobody does. Use "
            "LossAttack."
        )
    return Claim(plan=plan, num_rounds=plan.num_rounds)
