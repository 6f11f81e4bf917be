"""Audit of a whole training in one run (Steinke, Nasr and Jagielski 2023).

A fair coin per canary decides whether it joins the training data. After training, an attacker guesses the coins of some
canaries and abstains on the others. The number of correct guesses gives a lower bound on epsilon, for any mechanism and
any dependence among the canaries. The bound is loose: a passed audit proves little, a failed one proves a fault.
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
# Fractions of the canaries to guess about, fixed in advance; the error probability is divided among them.
SHARES = (1.0, 0.5, 0.2, 0.1, 0.05)


class _RecordsAndCanaries:
    """Training records and canaries as one data set of tuples of tensors."""

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
    """An audit of a real training run, with ordinary records as canaries.

    Attributes:
        confidence: A correct program passes with at least this probability, for each attack.
        physical_batch_size: Number of examples in one forward pass.
        seed: Seed of the coins and of the run. The seeded model is NOT PRIVATE; discard it.
    """

    confidence: float = 0.9999
    physical_batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        checks.fields(self, checks.probability, "confidence")
        checks.fields(self, checks.count, "physical_batch_size")
        checks.fields(self, checks.natural, "seed")

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
        """Train the model under the plan with about half of the canaries, attack it, and return one finding per attack.

        Args:
            model: The model, trained in place.
            optimizer: Optimizer of the model.
            plan: The calibrated plan; all its rounds run.
            losses: Maps the tensors of a batch to one loss per example.
            records: Training data: tensors with one row per record, independent of the coins.
            canaries: Tensors of the same kinds; under ``REPLACE_ONE`` with two rows per canary, of which the second
                half replaces the canaries outside the data.
            attacks: The attackers.

        Guarantee:
            If the run has the privacy that the plan claims, a finding is not broken with probability at least
            ``confidence`` (Steinke et al. 2023, theorem 5.2; Mahloujifar et al. 2024, theorem 3.2). Findings depend on
            the records only through the noisy model. Edge cases: ``ZERO_OUT`` is refused, because a null record is no
            ordinary record.
        """
        is_in, dataset = self._with_canaries(plan, records, canaries)
        scored = [part[: len(is_in)] for part in canaries]
        claims = [_claim_of(plan, attack) for attack in attacks]
        attack_runs = [attack.start(model, losses, scored) for attack in attacks]
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
                for attack_run in attack_runs:
                    attack_run.after_step(step.index)
        return tuple(
            self._finding(attack, claim, attack_run.scores(), is_in)
            for attack, claim, attack_run in zip(attacks, claims, attack_runs, strict=True)
        )

    def _with_canaries(
        self, plan: Plan, records: Sequence[Tensor], canaries: Sequence[Tensor]
    ) -> tuple[NDArray[np.bool_], _RecordsAndCanaries]:
        """Draw the coins; return them and the data with the chosen canaries."""
        replaces = plan.adjacency is Adjacency.REPLACE_ONE
        if plan.adjacency is Adjacency.ZERO_OUT:
            raise PlanError("The one-run audit has no blank records for ZERO_OUT. Use the canary audit.")
        if plan.sampling.contribution is not None:
            raise PlanError("The one-run audit has single records as canaries. For persons use the canary audit.")
        rows = len(canaries[0]) if canaries else 0
        num_canaries = rows // 2 if replaces else rows
        if len(records) != len(canaries) or num_canaries < 1:
            raise DataError(
                "records and canaries must have the same number of tensors, with one row or more per canary."
            )
        is_in = np.random.default_rng([self.seed, 0x636F696E]).random(num_canaries) < 0.5
        places = np.arange(num_canaries)
        chosen = np.where(is_in, places, places + num_canaries) if replaces else places[is_in]
        kept = len(records[0])
        if plan.sampling.declared_size is not None:
            # the number of records is public: canaries replace the last records
            kept = min(kept, plan.sampling.declared_size - num_canaries)
        if kept < 0:
            raise DataError(
                f"The plan's data set is smaller than the number of canaries ({num_canaries}). Use fewer canaries."
            )
        index = torch.from_numpy(chosen)
        return is_in, _RecordsAndCanaries(
            [part[:kept] for part in records], [part[index.to(part.device)] for part in canaries]
        )

    def _finding(self, attack: Attack, claim: Claim, scores: Array, is_in: NDArray[np.bool_]) -> AuditFinding:
        guesses = tuple(guess(scores, is_in, share=share) for share in SHARES)
        level = 1 - (1 - self.confidence) / (2 * len(guesses))

        def is_refuted(multiplier: float) -> bool:
            inverse = claim.inverse(multiplier)
            return any(one_run_refutes(each, inverse, confidence=level) for each in guesses)

        # both bounds hold together: each gets half of the error probability
        plain = max(one_run_epsilon(each, delta=claim.plan.delta, confidence=level) for each in guesses)
        # guesses that are possible by chance are no evidence against any claim
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
    """Guess that the highest scores are members and as many of the lowest are not; abstain on the rest.

    Args:
        scores: One per canary. Equal scores are ordered by position, which is independent of the coins.
        is_in: The true membership.
        share: The fraction of canaries to guess about, fixed before the scores exist.
    """
    order = np.argsort(scores, kind="stable")
    half = int(checks.probability("share", share, allow_one=True) * len(order)) // 2
    right = int((~is_in[order[:half]]).sum()) + int(is_in[order[len(order) - half :]].sum())
    return Guesses(num_canaries=len(order), num_guesses=2 * half, num_right=right)


def _claim_of(plan: Plan, attack: Attack) -> Claim:
    if attack.sees_every_iterate and plan.release is Release.LAST_ITERATE:
        raise PlanError(
            f"The attack by {attack.name} observes every iterate, and the plan releases the last iterate only. Use "
            "LossAttack."
        )
    return Claim(plan=plan, num_rounds=plan.num_rounds)
