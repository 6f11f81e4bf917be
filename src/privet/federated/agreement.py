"""The agreement: the public settings that all parties of a federation share before the first record is read."""

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
from privet.mechanism.noise import NoiseFamily, calibrated_multiplier, spherical_gaussian_multiplier
from privet.plan import Plan
from privet.vocabulary import Release, Unit

# The norm of a standard normal vector of n coordinates exceeds sqrt(n) + 10 with a probability below exp(-50).
_TAIL = 10.0
# Tolerance for the rounding of sums in single precision.
_ROUNDING = 1.001


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The plan of a federation and its settings. Immutable; every field is public.

    Guarantee:
        ``guarantee()`` holds for one unit of ``plan.unit`` under ``plan.adjacency``: with ``Adjacency.ADD_REMOVE``, one
        record (or one whole party, for ``ClientUpdates``) more or less. It is known before any record is read, and each
        party's ledger charges at least the releases of that party.

    Attributes:
        plan: The plan: with ``Sessions`` each party's own plan, otherwise the plan of the federation.
        contribution: The message of a party, and the place where noise is added.
        learning_rate: Learning rate of the coordinator's plain gradient descent. Momentum is not possible: it would
            change masked coordinates, and every changed coordinate must be sent.
        max_records: Largest number of records of a party. A party with more records refuses to take part, and the
            coordinator refuses messages that are too long for this number.
    """

    plan: Plan
    contribution: Contribution
    learning_rate: float
    max_records: int

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "learning_rate")
        checks.fields(self, checks.count, "max_records")
        if isinstance(self.contribution, type) or not isinstance(self.contribution, Contribution):
            raise PlanError(f"contribution must be a Contribution piece, got {self.contribution!r}.")
        name = type(self.contribution).__name__
        if self.plan.unit not in self.contribution.units:
            allowed = " or ".join(f"Unit.{unit.name}" for unit in self.contribution.units)
            raise PlanError(f"{name} protects {allowed}, but the plan has Unit.{self.plan.unit.name}. Change one.")
        if self.plan.release is not Release.EVERY_ITERATE:
            raise PlanError("In a federation every party receives every model. Set release=Release.EVERY_ITERATE.")
        if not self.plan.mask.is_public:
            raise PlanError(
                f"{type(self.plan.mask).__name__} is drawn by one process alone, from secret randomness, so parties "
                "cannot draw the same mask. Use SharedRandomMask, FrozenMask, ChosenMask or NoMask."
            )
        if self.contribution.has_central_noise:
            self._check_central(name)
        self._check_rounds(name)

    def _check_central(self, name: str) -> None:
        if not self._is_gaussian:
            raise PlanError(f"{name} adds Gaussian noise at the coordinator, got {type(self.plan.noise).__name__}.")
        if not self.plan.sampling.has_independent_coins:
            raise PlanError(
                f"{name} needs a sampling with an independent coin per record, which parties can draw separately: "
                f"Poisson or FullBatch, got {type(self.plan.sampling).__name__}."
            )
        if not self._is_bounded:
            raise PlanError(
                f"{name} needs clipping that does not change during the run, got {type(self.plan.clipping).__name__}. "
                "Use Threshold."
            )

    def _check_rounds(self, name: str) -> None:
        if not self.plan.noise.is_independent:
            raise PlanError(
                f"{type(self.plan.noise).__name__} correlates the noise of different steps, which parties and "
                "coordinator draw apart. Use Gaussian."
            )
        length, sampling = self.contribution.steps_per_round, self.plan.sampling
        if sampling.steps_per_round != 1 or self.plan.num_steps % length:
            raise PlanError(
                f"{name} has {length} step(s) between two messages, and the plan's {self.plan.num_steps} steps in "
                f"charged rounds of {sampling.steps_per_round} cannot be divided into them. Use Poisson sampling and a "
                "multiple of local_steps."
            )
        drawn_every = self.plan.mask.steps_per_draw(sampling.steps_per_epoch)
        if drawn_every is not None and drawn_every % length:
            raise PlanError(
                f"The mask may change only between messages: set refresh_every to a multiple of local_steps ({length})."
            )

    @property
    def num_rounds(self) -> int:
        """Number of rounds of messages."""
        return self.plan.num_steps // self.contribution.steps_per_round

    @property
    def _is_gaussian(self) -> bool:
        return self.plan.noise.family is NoiseFamily.GAUSSIAN and self.plan.noise.is_spherical

    @property
    def _is_bounded(self) -> bool:
        """Whether one fixed bound holds for every step."""
        return self.plan.clipping.is_fixed and self.plan.holds_bounds

    @property
    def mask_seed(self) -> int:
        """The public seed of the masks, which with the round number determines the coordinates of a message."""
        return self.plan.mask.public_seed

    @property
    def hash(self) -> str:
        """Fingerprint in every message; messages with another fingerprint are refused."""
        names = {kind: name for name, kind in CONTRIBUTIONS.items()}
        return fingerprint(self, {**codec.NAMES, **names, Plan: "plan", Agreement: "agreement"})

    def central_noise_std(self, *, num_groups: int) -> float:
        """Return the standard deviation of the noise that the coordinator adds to the sum of a round.

        Guarantee: a constant of the agreement, independent of the bounds that parties report.
        """
        if not self._is_gaussian or not self.contribution.has_central_noise:
            raise PlanError(f"With {type(self.contribution).__name__} the coordinator adds no noise.")
        multiplier = calibrated_multiplier("Gaussian", self.plan.noise.noise_multiplier)
        return multiplier * self.plan.clipping.for_groups(num_groups).sensitivity.total

    @property
    def _unit_assumptions(self) -> tuple[str, ...]:
        return ("nobody's data lie with two parties",) if self.plan.unit is Unit.PERSON else ()

    def longest_message(self, *, num_groups: int, num_kept: int) -> float:
        """Return an upper bound on the norm of an honest message with ``num_kept`` values.

        Guarantee:
            Computed from public constants. It prevents a party from sending values so large that their rounding error
            in the sum exceeds the noise. Infinite if no bound is known in advance.
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
        """Return the guarantee of the plan, or of the charges in a ledger, with the assumptions of the federation."""
        charges = ledger or HypotheticalCharges(planned=self.plan.segments)
        words = (*self.contribution.assumptions, *self._unit_assumptions)
        # ledgers of earlier versions do not contain them
        return self.plan.account(
            charges, assumptions=tuple(word for word in words if word not in charges.assumptions) + assumptions
        )
