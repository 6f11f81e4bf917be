"""The agreement: everything the parties of a federation must know alike before the first record is read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privet import checks
from privet.accounting.charges import Charges, HypotheticalCharges
from privet.accounting.guarantee import Guarantee
from privet.errors import PlanError
from privet.federated.contributions import CONTRIBUTIONS, Contribution
from privet.mechanism import codec
from privet.mechanism.fingerprint import fingerprint
from privet.mechanism.masking import FrozenMask, NoMask, SharedRandomMask
from privet.mechanism.noise import NoiseFamily, calibrated_multiplier, spherical_gaussian_multiplier
from privet.mechanism.release_masks import ChosenMask
from privet.plan import Plan
from privet.vocabulary import Release, Unit

# Masks that every party draws alike. One drawn from secret randomness would need its list of places in every message.
_PUBLIC_MASKS = (NoMask, SharedRandomMask, FrozenMask, ChosenMask)
# A normal vector of n coordinates is longer than sqrt(n) + 10 with a probability below exp(-50).
_TAIL = 10.0
# Sums of single-precision numbers are a little longer than the numbers say.
_ROUNDING = 1.001


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One plan and the way it is carried out together. Immutable; every field is public.

    Guarantee:
        The promise of ``guarantee()`` is about one unit of ``plan.unit`` under ``plan.adjacency``: with
        ``Adjacency.ADD_REMOVE``, one record (or one whole party, for ``ClientUpdates``) more or less. It is known
        before any record is read, and each party's ledger charges at least what that party released.

    Attributes:
        plan: What one step is and costs. For ``Sessions`` it is each party's own plan; otherwise the federation's.
        contribution: What parties send, and who adds the noise.
        learning_rate: Of the coordinator's plain gradient steps. There is no momentum: it would move masked
            coordinates, and everything that moves has to be sent.
        max_records: More records than this no party has. A party with more refuses to take part, and a message longer
            than this many records can make it is refused.
    """

    plan: Plan
    contribution: Contribution
    learning_rate: float
    max_records: int

    def __post_init__(self) -> None:
        """Refuse combinations that have no guarantee, or whose parties would draw different masks."""
        object.__setattr__(self, "learning_rate", checks.positive("learning_rate", self.learning_rate))
        object.__setattr__(self, "max_records", checks.count("max_records", self.max_records))
        if isinstance(self.contribution, type) or not isinstance(self.contribution, Contribution):
            raise PlanError(f"contribution must be a Contribution piece, got {self.contribution!r}.")
        name = type(self.contribution).__name__
        if self.plan.unit not in self.contribution.units:
            allowed = " or ".join(f"Unit.{unit.name}" for unit in self.contribution.units)
            raise PlanError(f"{name} protects {allowed}, but the plan says Unit.{self.plan.unit.name}. Change one.")
        if self.plan.release is not Release.EVERY_ITERATE:
            raise PlanError("In a federation every party sees every model. Set release=Release.EVERY_ITERATE.")
        if not self.plan.mask.is_public:
            raise PlanError(
                f"{type(self.plan.mask).__name__} is drawn by one process alone, so parties would not know the "
                "masks of others. Use SharedRandomMask, FrozenMask, ChosenMask or NoMask."
            )
        if self.contribution.has_central_noise:
            self._check_central(name)
        self._check_rounds(name)

    def _check_central(self, name: str) -> None:
        if not self._is_gaussian:
            raise PlanError(f"{name} adds Gaussian noise at the coordinator, got {type(self.plan.noise).__name__}.")
        if not self.plan.sampling.has_independent_coins:
            raise PlanError(
                f"{name} needs sampling by independent coins, so that it can be spread over parties: Poisson or "
                f"FullBatch, got {type(self.plan.sampling).__name__}."
            )
        if not self._is_bounded:
            raise PlanError(
                f"{name} clips by one rule for the whole run, which {type(self.plan.clipping).__name__} is not. Use "
                "Threshold."
            )

    def _check_rounds(self, name: str) -> None:
        length, sampling = self.contribution.steps_per_round, self.plan.sampling
        if sampling.steps_per_round != 1 or self.plan.num_steps % length:
            raise PlanError(
                f"{name} takes {length} step(s) between two messages, and the plan's {self.plan.num_steps} steps in "
                f"charged rounds of {sampling.steps_per_round} cannot be divided so. Use Poisson sampling and a "
                "multiple of local_steps."
            )
        drawn_every = self.plan.mask.steps_per_draw(sampling.steps_per_epoch)
        if drawn_every is not None and drawn_every % length:
            raise PlanError(
                f"The mask may change only between messages: set refresh_every to a multiple of local_steps ({length})."
            )

    @property
    def num_rounds(self) -> int:
        """How many rounds of messages there are."""
        return self.plan.num_steps // self.contribution.steps_per_round

    @property
    def _is_gaussian(self) -> bool:
        return self.plan.noise.family is NoiseFamily.GAUSSIAN and self.plan.noise.is_spherical

    @property
    def _is_bounded(self) -> bool:
        """Whether one bound, known in advance, holds for every step."""
        return self.plan.clipping.is_fixed and self.plan.holds_bounds

    @property
    def mask_seed(self) -> int:
        """The one number that says, with a round's own, which coordinates a message is about."""
        return self.plan.mask.public_seed

    @property
    def hash(self) -> str:
        """Fingerprint that every message carries: parties that agreed on something else do not talk to each other."""
        names = {kind: name for name, kind in CONTRIBUTIONS.items()}
        return fingerprint(self, {**codec.NAMES, **names, Plan: "plan", Agreement: "agreement"})

    def central_noise_std(self, *, num_groups: int) -> float:
        """Return the standard deviation of the noise that the coordinator adds to the sum of a round.

        Guarantee: a constant of the agreement, whatever bound anybody really kept.
        """
        if not self._is_gaussian or not self.contribution.has_central_noise:
            raise PlanError(f"{type(self.contribution).__name__} leaves no noise to the coordinator.")
        multiplier = calibrated_multiplier("Gaussian", self.plan.noise.noise_multiplier)
        return multiplier * self.plan.clipping.for_groups(num_groups).sensitivity.total

    @property
    def _assumptions_of_unit(self) -> tuple[str, ...]:
        return ("nobody's data lie with two parties",) if self.plan.unit is Unit.PERSON else ()

    def longest_message(self, *, num_groups: int, num_kept: int) -> float:
        """Return the length that no honest message of so many values exceeds.

        Guarantee:
            Computed from public constants. It keeps one party from drowning the sum of all others, and the noise with
            it, in numbers so large that their rounding error is larger than the noise. Infinite where no bound is known
            in advance.
        """
        if not self._is_bounded:
            return math.inf
        total = self.plan.clipping.for_groups(num_groups).sensitivity.total
        multiplier = spherical_gaussian_multiplier(self.plan.noise)
        longest = self.contribution.longest_message(
            bound=total,
            max_records=self.max_records,
            noise_length=None if multiplier is None else total * multiplier * (math.sqrt(num_kept) + _TAIL),
            divisor=self.plan.sampling.expected_batch_size,
        )
        return longest * _ROUNDING

    def guarantee(self, ledger: Charges | None = None, *, assumptions: tuple[str, ...] = ()) -> Guarantee:
        """Account the plan, or what a party's ledger says was charged, with what the federation assumes beside it."""
        charges = ledger or HypotheticalCharges(charged=self.plan.segments)
        words = (*self.contribution.assumptions, *self._assumptions_of_unit)
        # a ledger of an earlier version does not name them
        return self.plan.account(
            charges, assumptions=tuple(word for word in words if word not in charges.assumptions) + assumptions
        )
