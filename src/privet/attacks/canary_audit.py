"""White-box audit with many canaries: a real session runs, and an attacker who sees every noisy gradient guesses.

Each canary occupies a coordinate of the model's parameters alone, so one step gives one independent test per canary
(after Nasr et al. 2021 and 2023). The audit tests the trade-off function that the accountant claims, which is valid for
every sampling rate and every noise; for Gaussian noise without sampling this is the bound on mu.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import Tensor, nn
from torch.optim import SGD

from privet import checks
from privet.accounting.sampled_records import binomial_weights
from privet.attacks.audit_bounds import Errors
from privet.attacks.audit_claim import AuditFinding, Claim
from privet.attacks.canaries import CanaryLoss, CanaryRecords, Losses, canary_coordinates, canary_lengths
from privet.attacks.canary_scores import RunEvidence, StepEvidence
from privet.errors import DataError
from privet.mechanism.layout import Layout
from privet.mechanism.sampling import FullBatch, Sampling
from privet.plan import Plan
from privet.training.performance import Performance
from privet.training.session import Step
from privet.training.start import privatize
from privet.training.trained import trainable_parameters
from privet.vocabulary import Adjacency, Release

Array = NDArray[np.float64]
_SIMULATED = 1_000_000
_CANDIDATES = np.linspace(0.0, 1.0, 302)[1:-1]
# An audit looks for too little noise. The best threshold depends on the ratio of the real noise to the claimed noise.
_SHORTFALLS = (0.9, 0.5)


class Coins(Enum):
    """The time at which coins decide the membership of the canaries.

    EVERY_ROUND: new coins for each round. Every round is one experiment: many observations, the sharpest test of one
        round.
    ONCE: one coin per canary for the whole run. Every canary is one experiment, which also tests the composition of
        rounds.
    """

    EVERY_ROUND = "every_round"
    ONCE = "once"


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """An audit of a plan on a model, with synthetic records only.

    Attributes:
        num_canaries: Number of canaries; at most one per trainable coordinate and per record of the plan.
        num_rounds: Number of rounds to run; all rounds if the plan has fewer.
        confidence: A correct program passes with at least this probability.
        coins: The time at which coins decide the membership. ``ONCE`` if the noise is correlated between steps: a
            canary then stays in its own group, and its rounds are one experiment.
        physical_batch_size: Number of canaries in one forward pass.
        seed: Seed of coins, sampling, masks and noise. An audit is repeatable; it uses no private data.
    """

    num_canaries: int = 2000
    num_rounds: int = 10
    confidence: float = 0.9999
    coins: Coins = Coins.EVERY_ROUND
    physical_batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        checks.fields(self, checks.count, "num_canaries", "num_rounds", "physical_batch_size")
        checks.fields(self, checks.probability, "confidence")
        checks.fields(self, checks.natural, "seed")

    def run(self, model: nn.Module, plan: Plan, *, losses: Losses, record: Sequence[Tensor]) -> AuditFinding:
        """Run the plan's pieces on the model with canaries, and return the finding.

        Args:
            model: The model; its weights do not change.
            plan: The calibrated plan. A plan that releases only the last iterate is audited as one that releases all.
            losses: Maps the tensors of a batch to one loss per example, as in training.
            record: Synthetic examples: tensors with at least one row per canary.

        Guarantee:
            If every round has the privacy that the accountant claims, the finding is not broken with probability at
            least ``confidence``: coins are fair and independent, the test is fixed before the scores exist, and the
            canaries' coordinates get independent noise. Edge cases: a plan without a guarantee is refused.
        """
        if plan.release is Release.LAST_ITERATE:
            plan = replace(plan, release=Release.EVERY_ITERATE, descent=None)
        if not plan.noise.is_independent and self.coins is not Coins.ONCE:
            return replace(self, coins=Coins.ONCE).run(model, plan, losses=losses, record=record)
        rounds = min(self.num_rounds, plan.num_rounds)
        whole = Claim(plan=plan, num_rounds=rounds)
        each = whole if self.coins is Coins.ONCE else Claim(plan=plan, num_rounds=1)
        audit_run = _AuditRun(self, model, plan, losses, record, whole.noise_multiplier)
        thresholds = audit_run.thresholds(each)
        scores = list(audit_run.scores(rounds))
        # each threshold gets an equal part of the allowed error probability
        level = 1 - (1 - self.confidence) / len(thresholds)
        rates = np.array([_count(scores, threshold).upper_rates(level) for threshold in thresholds])
        # error rates that add up to 1 or more are possible by chance: no evidence against any claim
        broken, noise_bound = (False, None) if (rates.sum(1) >= 1).all() else each.test(
            lambda multiplier: bool((each.false_negatives(multiplier, rates[:, 0]) > rates[:, 1]).any())
        )  # fmt: skip
        return AuditFinding(
            audit="canaries per run" if self.coins is Coins.ONCE else "canaries per round",
            attacker="noisy gradients",
            num_canaries=audit_run.num_canaries,
            num_observations=sum(len(found) for found, _ in scores),
            num_rounds=rounds,
            confidence=self.confidence,
            delta=plan.delta,
            epsilon_bound=0.0 if noise_bound is None else whole.epsilon(noise_bound),
            epsilon_claim=whole.epsilon(whole.noise_multiplier),
            noise_bound=noise_bound,
            noise_claim=whole.noise_multiplier,
            is_broken=broken,
        )


def sharpened(plan: Plan, *, num_rounds: int, noise_multiplier: float = 0.5) -> Plan:
    """Return the plan with little noise and without sampling, where an audit detects faults of noise or clipping best.

    The same fault needs ten times fewer observations than at a multiplier of 2. The plan's noise, clipping, grouping,
    mask and adjacency stay the same; so does the sampling if the noise is correlated between steps, which needs it.
    """
    full: Sampling = FullBatch(steps=num_rounds, expected_batch_size=plan.sampling.expected_batch_size)
    bound = plan.sampling.contribution
    if bound is not None:
        full = bound.around(full)
    return replace(
        plan,
        sampling=full if plan.noise.is_independent else plan.sampling,
        noise=plan.noise.with_multiplier(noise_multiplier),
        release=Release.EVERY_ITERATE,
        descent=None,
    )


class _AuditRun:
    """One running audit: its records, session and scores."""

    def __init__(
        self,
        audit: CanaryAudit,
        model: nn.Module,
        plan: Plan,
        losses: Losses,
        record: Sequence[Tensor],
        noise_multiplier: float,
    ) -> None:
        self._audit, self._model, self._plan = audit, model, plan
        named = trainable_parameters(model)
        self._parameters = [value for _, value in named]
        self._layout = Layout.of([(name, tuple(value.shape)) for name, value in named], plan.grouping)
        self._rng = np.random.default_rng([audit.seed, 0x636F696E])
        bound, declared = plan.sampling.contribution, plan.sampling.declared_size
        # A person of the audit owns one record more than may take part, so that the bound itself is tried.
        records_each = 1 if bound is None else bound.max_records + 1
        self._together = 1 if bound is None else bound.records_per_item
        self._law = binomial_weights(1 if bound is None else bound.items_per_person, plan.sampling.inclusion)
        self._evidence = StepEvidence(plan=plan, law=self._law)
        wanted = audit.num_canaries if declared is None else min(audit.num_canaries, declared)
        coordinates = canary_coordinates(self._layout, wanted, self._rng)
        self.num_canaries = len(coordinates)
        if not record or min(len(part) for part in record) < self.num_canaries:
            raise DataError(
                f"record must hold at least {self.num_canaries} made-up examples, one per canary; give more rows."
            )
        self._coordinates = torch.from_numpy(coordinates)
        self._records = CanaryRecords(
            coordinates=self._coordinates,
            record=record,
            adjacency=plan.adjacency,
            num_blank=declared - self.num_canaries if declared is not None and plan.sampling.has_exact_size else 0,
            records_each=records_each,
        )
        rule = plan.clipping.for_groups(self._layout.num_groups)
        like = self._parameters[0]
        self._loss = CanaryLoss(model, losses, self._layout, like.new_tensor(canary_lengths(rule)))
        starts = np.asarray(self._layout.offsets)
        self._groups = np.asarray(self._layout.groups)[np.searchsorted(starts, coordinates, side="right") - 1]
        bounds = np.asarray(rule.sensitivity.bounds)
        self._noise_ratios = noise_multiplier * rule.sensitivity.total / bounds[self._groups]

    def scores(self, rounds: int) -> Iterator[tuple[Array, NDArray[np.bool_]]]:
        """Run rounds of the plan; yield the attacker's scores and the true membership."""
        audit = self._audit
        session = privatize(
            self._model,
            SGD(self._parameters, lr=0.0),
            self._records,
            self._plan,
            performance=Performance(physical_batch_size=audit.physical_batch_size * self._together),
            seed=audit.seed,
        )
        seen_steps: list[Array] = []
        total, was_seen = np.zeros(self.num_canaries), np.zeros(self.num_canaries, dtype=bool)
        is_in = was_seen
        with session:
            steps = session.steps()
            for number in range(rounds):
                if number == 0 or audit.coins is Coins.EVERY_ROUND:
                    is_in = self._rng.random(self.num_canaries) < 0.5
                    self._records.set_members(is_in)
                    total[:], was_seen[:] = 0.0, False
                for _ in range(self._plan.sampling.steps_per_round):
                    step = next(steps)
                    step.accumulate(self._loss)
                    step.update()
                    seen = self._released(step)
                    was_seen |= ~np.isnan(seen)
                    if not self._plan.noise.is_independent:
                        seen_steps.append(seen)
                        continue
                    found = self._evidence.of(np.nan_to_num(seen), self._noise_ratios)
                    total += np.where(np.isnan(seen), 0.0, found)
                if seen_steps and number + 1 == rounds:
                    whole = RunEvidence(plan=self._plan, num_steps=len(seen_steps))
                    total[:] = whole.of(whole.made_independent(np.array(seen_steps)), self._noise_ratios)
                if audit.coins is Coins.EVERY_ROUND or number + 1 == rounds:
                    yield total[was_seen], is_in[was_seen]
        for parameter in self._parameters:
            parameter.grad = None

    def _released(self, step: Step) -> Array:
        """Return each canary's coordinate of the noisy sum over its bound; NaN if the mask drops it."""
        gradients = [value.grad for value in self._parameters if value.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).double()
        flat = self._plan.noise.in_clipped_units(flat, self._layout)
        places = self._coordinates.to(flat.device)
        found: Array = flat[places].cpu().numpy() * self._plan.sampling.expected_batch_size
        found /= np.asarray(step.sensitivity.bounds)[self._groups]
        if step.kept is not None:
            found[~step.kept.coordinates[places].cpu().numpy()] = np.nan
        return found

    def thresholds(self, claim: Claim) -> tuple[float, ...]:
        """Return thresholds on the score, each the best one for noise that is too small by a fixed factor.

        They follow from the claim alone, so they are fixed before the real scores exist.
        """
        rounds = claim.num_rounds
        side = max(1, self.num_canaries * (1 if self._audit.coins is Coins.ONCE else self._audit.num_rounds) // 2)
        level = 1 - (1 - self._audit.confidence) / (2 * len(_SHORTFALLS))
        candidates, rates = [], []
        for shortfall in _SHORTFALLS:
            inside, outside = self._simulated(rounds, shortfall)
            candidates.append(np.quantile(np.concatenate([inside, outside]), _CANDIDATES))
            wrong_out = 1 - np.searchsorted(outside, candidates[-1]) / len(outside)
            wrong_in = np.searchsorted(inside, candidates[-1]) / len(inside)
            rates.append([wrong_out, _upper(wrong_out, side, level), wrong_in, _upper(wrong_in, side, level)])
        wrong_out, sure_out, wrong_in, sure_in = np.stack(rates, axis=1)
        asked = np.stack([wrong_out, sure_out])
        limit, sure_limit = claim.false_negatives(claim.noise_multiplier, asked.ravel()).reshape(asked.shape)
        # margin by which such a mechanism breaks the claim, in widths of the confidence intervals
        gain = (limit - wrong_in) / (limit - sure_limit + sure_in - wrong_in)
        return tuple(float(row[best]) for row, best in zip(candidates, gain.argmax(1), strict=True))

    def _simulated(self, rounds: int, shortfall: float) -> tuple[Array, Array]:
        """Return sorted scores of members and non-members, simulated with the claimed noise times ``shortfall``."""
        rng = np.random.default_rng([self._audit.seed, 0x74687265])
        sampling = self._plan.sampling
        num_steps, ends = rounds * sampling.steps_per_round, np.cumsum(self._law)[:-1]
        if not self._plan.noise.is_independent:
            return self._simulated_runs(num_steps, shortfall, rng)
        size = int(np.clip(_SIMULATED // num_steps, 5_000, 100_000))
        ratios = rng.choice(self._noise_ratios, size=size)
        away = -1.0 if self._plan.adjacency is Adjacency.REPLACE_ONE else 0.0
        inside, outside = np.zeros(size), np.zeros(size)
        for _ in range(num_steps):
            for total, mean in ((inside, 1.0), (outside, away)):
                joins = np.searchsorted(ends, 1 - rng.random(size))
                seen = mean * joins + shortfall * ratios * rng.standard_normal(size)
                total += self._evidence.of(seen, ratios)
        return np.sort(inside), np.sort(outside)

    def _simulated_runs(self, num_steps: int, shortfall: float, rng: np.random.Generator) -> tuple[Array, Array]:
        """Simulate whole runs whose noise is correlated between steps, with the sums as the attacker sees them."""
        whole, groups = RunEvidence(plan=self._plan, num_steps=num_steps), self._plan.sampling.steps_per_round
        size = int(np.clip(_SIMULATED // num_steps, 2_000, 50_000))
        ratios = rng.choice(self._noise_ratios, size=size)
        away = -1.0 if self._plan.adjacency is Adjacency.REPLACE_ONE else 0.0
        found = []
        for mean in (1.0, away):
            own = np.arange(num_steps)[:, None] % groups == rng.integers(groups, size=size)
            joins = own & (rng.random((num_steps, size)) < self._plan.sampling.inclusion * groups)
            noise = shortfall * ratios * self._plan.noise.scale * rng.standard_normal((num_steps, size))
            found.append(np.sort(whole.of(whole.made_independent(mean * joins) + noise, ratios)))
        return found[0], found[1]


def _upper(rates: Array, trials: int, confidence: float) -> Array:
    """Return exact upper limits at expected counts. Used to choose thresholds; the proof does not depend on it."""
    wrong = np.minimum(rates * trials, trials - 0.5)
    return np.asarray(betaincinv(wrong + 1, trials - wrong, confidence))


def _count(scores: Sequence[tuple[Array, NDArray[np.bool_]]], threshold: float) -> Errors:
    false_positives = false_negatives = num_in = num_out = 0
    for found, is_in in scores:
        called_in = found >= threshold
        num_in, num_out = num_in + int(is_in.sum()), num_out + int((~is_in).sum())
        false_positives += int((called_in & ~is_in).sum())
        false_negatives += int((~called_in & is_in).sum())
    return Errors(false_positives=false_positives, num_out=num_out, false_negatives=false_negatives, num_in=num_in)
