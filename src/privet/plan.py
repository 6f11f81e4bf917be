"""The plan: all settings that decide the privacy of a run, fixed and accounted before any data is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from privet import checks
from privet.accounting.calibration import calibrate_noise
from privet.accounting.charges import Charges
from privet.accounting.composition import Composition, EveryIterate
from privet.accounting.guarantee import OWNED, SEEDED, Guarantee, guarantee, unverifiable_assumptions
from privet.accounting.hidden_state import proven_last_iterate
from privet.errors import ArgumentError, PlanError, PrivetError, RecipeError
from privet.html_tables import facts_table
from privet.mechanism import codec
from privet.mechanism.clipping import Clipping, Threshold
from privet.mechanism.fingerprint import fingerprint
from privet.mechanism.former_fingerprint import former_fingerprint
from privet.mechanism.grouping import Grouping, OneGroup
from privet.mechanism.masking import Mask, NoMask
from privet.mechanism.noise import Gaussian, Noise, NoiseFamily
from privet.mechanism.sampling import Poisson, Sampling, amplified
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.vocabulary import Adjacency, Release, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_PROTOCOLS = {"sampling": Sampling, "clipping": Clipping, "noise": Noise, "grouping": Grouping, "mask": Mask}
_FAMILIES = {
    "sampling": codec.SAMPLING,
    "clipping": codec.CLIPPING,
    "noise": codec.NOISE,
    "grouping": codec.GROUPING,
    "mask": codec.MASK,
}
_ENUMS = {"adjacency": Adjacency, "unit": Unit, "release": Release}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One piece of each kind, and the terms of the guarantee. Immutable; every field is public.

    Attributes:
        sampling: The sampler of the batches, the number of steps, and the public divisor.
        clipping: The bound on the contribution of one example.
        noise: The noise on each clipped sum.
        delta: The probability with which the epsilon bound may fail; well below one over the number of records.
        adjacency: The pairs of data sets that the guarantee makes indistinguishable.
        unit: The meaning of one item of the data set.
        grouping: The groups of parameters that share a norm.
        mask: The coordinates that take part.
        release: The models that an attacker is assumed to see.
        descent: Proven constants of loss and step size; for ``Release.LAST_ITERATE``, which is refused without them.
    """

    sampling: Sampling
    clipping: Clipping
    noise: Noise
    delta: float
    adjacency: Adjacency
    unit: Unit
    grouping: Grouping = field(default_factory=OneGroup)
    mask: Mask = field(default_factory=NoMask)
    release: Release = Release.EVERY_ITERATE
    # left out of the repr, which then stays as it was before the field existed
    descent: StronglyConvexDescent | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.probability, "delta")
        for name, protocol in _PROTOCOLS.items():
            piece = getattr(self, name)
            if isinstance(piece, type) or not isinstance(piece, protocol):
                raise PlanError(f"{name} must be a {protocol.__name__} piece, got {piece!r}.{_hint(piece, protocol)}")
        for name, kind in _ENUMS.items():
            if not isinstance(getattr(self, name), kind):
                choices = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
                raise PlanError(f"{name} must be one of {choices}; got {getattr(self, name)!r}.")
        refusal = self.sampling.refusal(self.adjacency)
        if refusal is not None:
            raise PlanError(f"This plan has no guarantee: {refusal}")
        if self.sampling.contribution is not None and self.unit is not Unit.PERSON:
            raise PlanError(
                f"{type(self.sampling).__name__} bounds the records of a person, but the plan has "
                f"Unit.{self.unit.name}. Set unit=Unit.PERSON, or sample records: {type(self.sampling).__name__}'s "
                "sampling alone."
            )
        self._check_rounds()
        self._check_descent()
        if self.clipping.norm_kind is not self.noise.norm_kind:
            raise PlanError(
                f"{type(self.noise).__name__} noise needs contributions bounded in {self.noise.norm_kind.name}, but "
                f"{type(self.clipping).__name__} bounds them in {self.clipping.norm_kind.name}. Choose a matching pair."
            )

    @classmethod
    def dpsgd(
        cls,
        *,
        dataset_size: int,
        batch_size: float,
        delta: float,
        epochs: int | None = None,
        steps: int | None = None,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        clip_norm: float = 1.0,
        adjacency: Adjacency = Adjacency.ADD_REMOVE,
        unit: Unit = Unit.RECORD,
    ) -> Self:
        """Return the usual plan: Poisson batches, each gradient clipped to one norm, Gaussian noise.

        Args:
            dataset_size: A declared, public number of records, never ``len`` of private data.
            batch_size: The mean number of records of a batch.
            delta: The probability with which the epsilon bound may fail; well below one over the number of records.
            epochs: Number of epochs; or give ``steps``.
            steps: Number of steps; or give ``epochs``.
            epsilon: Calibrate to the least noise with at most this epsilon; or give ``noise_multiplier``.
            noise_multiplier: Standard deviation of the noise over the clipping norm; or give ``epsilon``.
            clip_norm: The largest norm of one example's gradient.
            adjacency: The pairs of data sets that become indistinguishable; the printed guarantee names it.
            unit: The meaning of one item of the data set; the printed guarantee names it.
        """
        if (epsilon is None) == (noise_multiplier is None):
            raise ArgumentError(
                "Plan.dpsgd needs one of epsilon and noise_multiplier: epsilon=3.0 finds the noise, "
                f"noise_multiplier=1.1 fixes it. It got epsilon={epsilon!r} and noise_multiplier={noise_multiplier!r}."
            )
        plan = cls(
            sampling=Poisson.for_dataset(dataset_size=dataset_size, batch_size=batch_size, steps=steps, epochs=epochs),
            clipping=Threshold(norm=clip_norm),
            noise=Gaussian(noise_multiplier=noise_multiplier),
            delta=delta,
            adjacency=adjacency,
            unit=unit,
        )
        return plan if epsilon is None else plan.calibrated(epsilon=epsilon)

    def _check_rounds(self) -> None:
        """Refuse noise that is correlated between steps where no cost of the rounds together is proven."""
        refusal = self.noise.refusal(self.sampling)
        if refusal is not None:
            raise PlanError(f"This plan has no guarantee: {refusal}.")
        if not self.noise.is_independent and not self.mask.is_whole:
            raise PlanError(
                f"This plan has no guarantee: {type(self.noise).__name__} correlates the noise of different steps, and "
                f"no cost is proven for it under {type(self.mask).__name__}. Use NoMask(), or Gaussian() noise."
            )

    def _check_descent(self) -> None:
        if self.descent is not None and not isinstance(self.descent, StronglyConvexDescent):
            raise PlanError(f"descent must be a StronglyConvexDescent piece or None, got {self.descent!r}.")
        if self.release is Release.EVERY_ITERATE and self.descent is not None:
            raise PlanError(
                "descent was given, but release=EVERY_ITERATE shows all iterates, so contraction hides nothing. "
                "Remove descent, or set release=Release.LAST_ITERATE."
            )
        self.composition  # noqa: B018 (refuses pieces without a proof)

    @cached_property
    def composition(self) -> Composition:
        """The composition of the rounds, with its proof."""
        if self.release is Release.EVERY_ITERATE:
            return EveryIterate()
        return proven_last_iterate(
            sampling=self.sampling, clipping=self.clipping, noise=self.noise, grouping=self.grouping,
            mask=self.mask, adjacency=self.adjacency, descent=self.descent,
        )  # fmt: skip

    @property
    def num_rounds(self) -> int:
        """The number of charged events of the whole run."""
        return self.sampling.num_rounds

    @property
    def num_steps(self) -> int:
        """The number of logical steps of the run."""
        return self.sampling.num_rounds * self.sampling.steps_per_round

    @property
    def round_event(self) -> DpEvent:
        """The cost of one round."""
        return amplified(self.sampling, self.clipping.joint_event(self.noise.event()))

    @property
    def segments(self) -> tuple[tuple[DpEvent, int], ...]:
        """The rounds of the run as (event, count) pairs, in order."""
        return ((self.round_event, self.num_rounds),)

    @property
    def event(self) -> DpEvent:
        """The cost of the whole run."""
        return self.composition.event(self.round_event, self.num_rounds)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions about a run under which the guarantee holds."""
        return self._assumptions_of(self.composition)

    def _assumptions_of(self, composition: Composition) -> tuple[str, ...]:
        return (
            *composition.assumptions,
            *self.sampling.assumptions,
            "sampled indices and noise are secret and drawn from generators seeded by the operating system",
            f"noise is treated as an ideal real-valued {(self.noise.family or NoiseFamily.GAUSSIAN).value}",
            "plan constants are public and were not chosen by looking at the private data",
            *unverifiable_assumptions(self.unit, has_owners=self.sampling.contribution is not None),
        )

    @cached_property
    def _guarantee(self) -> Guarantee:
        return self._account(self.composition, self.event, (), ())

    def guarantee(self) -> Guarantee:
        """Account the plan. This needs no data, and the result is the same before and after training."""
        return self._guarantee

    def _repr_html_(self) -> str:
        """Return the plan for a notebook, with its guarantee where it has one."""
        try:
            title = str(self.guarantee())
        except PrivetError as error:
            title = f"No guarantee yet: {error}"
        facts = {name: repr(getattr(self, name)) for name in _FAMILIES}
        facts |= {
            "delta": f"{self.delta:g}",
            "adjacency": self.adjacency.words(self.unit),
            "steps": f"{self.num_steps}",
        }
        return facts_table(title, facts)

    def spent_event(self, ledger: Charges) -> DpEvent:
        """Return the event of a run with this ledger; see :meth:`account`."""
        return self._covering(ledger).charged(ledger, self.round_event)

    def account(self, ledger: Charges, *, assumptions: tuple[str, ...] = ()) -> Guarantee:
        """Return the guarantee of the charges of a ledger under this plan. All figures about a ledger come from here.

        Args:
            ledger: The ledger of a run of this plan, open or read from its file.
            assumptions: Further assumptions, about the process that calls this.

        Guarantee:
            If the composition of the plan does not cover the ledger, every iterate is charged, which is never too
            little, and the guarantee states ``Release.EVERY_ITERATE``.
        """
        covering = self._covering(ledger)
        reasons = ((SEEDED,) if ledger.is_seeded else ()) + ledger.why_not_private
        event = covering.charged(ledger, self.round_event)
        return replace(self._account(covering, event, ledger.assumptions + assumptions, reasons), tried=ledger.tried)

    def _covering(self, ledger: Charges) -> Composition:
        is_covered = self.composition.covers(ledger, self.round_event, self.num_rounds)
        return self.composition if is_covered else EveryIterate()

    def is_finished(self, ledger: Charges) -> bool:
        """Whether a run with this ledger executed all rounds and, if the last iterate is released, was completed."""
        is_used_up = ledger.charged_rounds >= self.num_rounds
        return is_used_up and (ledger.is_complete or not self.composition.needs_completion)

    def account_event(
        self, event: DpEvent, *, assumptions: tuple[str, ...] = (), not_private_because: tuple[str, ...] = ()
    ) -> Guarantee:
        """Return the guarantee of an event that is made of runs of this plan, such as a search over their settings.

        Args:
            event: The event.
            assumptions: What it rests on besides what the plan does.
            not_private_because: Reasons why there is no guarantee.
        """
        return self._account(EveryIterate(), event, assumptions, not_private_because)

    @property
    def not_private_because(self) -> tuple[str, ...]:
        """The reasons why no run of this plan is private; empty for a private plan."""
        reasons = (self.clipping.not_private_because, self.noise.not_private_because)
        return tuple(reason for reason in reasons if reason is not None)

    @property
    def holds_bounds(self) -> bool:
        """Whether engines hold every contribution to its bound: true for every private clipping piece."""
        return self.clipping.not_private_because is None

    def _account(
        self, composition: Composition, event: DpEvent, assumptions: tuple[str, ...], reasons: tuple[str, ...]
    ) -> Guarantee:
        found = guarantee(
            event,
            delta=self.delta,
            adjacency=self.adjacency,
            unit=self.unit,
            released=composition.released,
            assumptions=self._assumptions_of(composition) + assumptions,
            of_unit=None if self.sampling.contribution is None else OWNED,
            not_private_because=self.not_private_because + reasons,
        )
        return composition.stated(found)

    def calibrated(self, *, epsilon: float) -> Self:
        """Return this plan with the least noise that keeps epsilon at or below the target.

        Raises:
            PlanError: no noise makes the plan private.
        """
        if self.not_private_because:
            raise PlanError(f"No noise makes this plan private: {'; '.join(self.not_private_because)}.")
        multiplier = calibrate_noise(
            lambda value: replace(self, noise=self.noise.with_multiplier(value)).event,
            epsilon=epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
        )
        return replace(self, noise=self.noise.with_multiplier(multiplier))

    @cached_property
    def epsilon_by_round(self) -> list[tuple[int, float]]:
        """A short table of (number of rounds, upper bound on epsilon), for progress displays.

        If only the last iterate is released, a row states the cost of a plan of that many rounds.
        """
        table = self.composition.epsilon_table
        return table(self.round_event, self.num_rounds, delta=self.delta, adjacency=self.adjacency)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values for JSON and TOML."""
        pieces = {
            name: codec.encode_piece(getattr(self, name), family, where=name) for name, family in _FAMILIES.items()
        }
        if self.descent is not None:
            pieces["descent"] = codec.encode_piece(self.descent, codec.DESCENT, where="descent")
        return pieces | {"delta": self.delta} | {name: getattr(self, name).value for name in _ENUMS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str = "plan") -> Self:
        """Read a plan; unknown keys, kinds and values are refused with their dotted path."""
        known = [*_FAMILIES, *_ENUMS, "delta", "descent"]
        for key in data:
            if key not in known:
                raise RecipeError(f"{where}.{key} is not part of a plan. {codec.suggestion(key, known)}")
        values: dict[str, Any] = {}
        for name, family in {**_FAMILIES, "descent": codec.DESCENT}.items():
            if name in data:
                values[name] = codec.decode_piece(data[name], family, where=f"{where}.{name}")
        for name, kind in _ENUMS.items():
            if name in data:
                values[name] = _member(kind, data[name], f"{where}.{name}")
        missing = [name for name in ("sampling", "clipping", "noise", "adjacency", "unit") if name not in values]
        missing += [] if "delta" in data else ["delta"]
        if missing:
            raise RecipeError(f"{where} lacks {', '.join(missing)}. A guarantee has no meaning without them.")
        try:
            return cls(delta=data["delta"], **values)
        except ArgumentError as error:
            raise RecipeError(f"{where}.{error}") from error

    @property
    def hash(self) -> str:
        """Fingerprint of the plan, which every ledger row contains; see :mod:`privet.mechanism.fingerprint`."""
        return fingerprint(self, {**codec.NAMES, Plan: "plan"})

    @property
    def former_hashes(self) -> tuple[str, ...]:
        """The fingerprints of this plan in earlier formats, for ledgers that were started with them."""
        former = former_fingerprint(self)
        return () if former is None else (former,)

    def matches_hash(self, stored: object) -> bool:
        """Whether a stored fingerprint, of any format, is that of this plan."""
        return stored == self.hash or stored in self.former_hashes


def _hint(piece: object, protocol: type) -> str:
    """Return a hint for a value that is no piece: the call of a class, or the missing members."""
    if isinstance(piece, type):
        return f" Did you mean {piece.__name__}(...)?"
    required = [name for name in (*protocol.__annotations__, *vars(protocol)) if not name.startswith("_")]
    lacks = [name for name in required if not hasattr(type(piece), name) and not hasattr(piece, name)]
    return (
        ""
        if len(lacks) == len(required)
        else f" It lacks {', '.join(lacks)}, and nothing about a piece is guessed. Write them."
    )


def _member(kind: Any, value: object, where: str) -> Any:
    known = [member.value for member in kind]
    if value not in known:
        raise RecipeError(f"{where} is {value!r}. {codec.suggestion(str(value), known)}")
    return kind(value)
