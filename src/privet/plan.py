"""The plan: everything that decides a run's privacy, fixed and accounted before any data is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from privet import checks
from privet.accounting.calibration import calibrate_noise, epsilon_table
from privet.accounting.guarantee import Guarantee, guarantee
from privet.errors import ArgumentError, PlanError, RecipeError
from privet.mechanism import codec
from privet.mechanism.clipping import Clipping
from privet.mechanism.events import compose
from privet.mechanism.grouping import Grouping, OneGroup
from privet.mechanism.masking import Mask, NoMask
from privet.mechanism.noise import Noise
from privet.mechanism.sampling import Sampling
from privet.mechanism.terms import Adjacency, Release, Unit

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
        sampling: Which examples form a batch, how often, and the public divisor.
        clipping: The bound on one example's contribution.
        noise: What is added to each clipped sum.
        delta: The probability with which the epsilon bound may fail; well below one over the number of records.
        adjacency: Which two data sets must not be told apart.
        unit: What one item of the data set stands for.
        grouping: Which parameters share a norm.
        mask: Which coordinates take part.
        release: What an attacker is assumed to see.
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

    def __post_init__(self) -> None:
        """Refuse pieces of the wrong kind and combinations without a proof."""
        object.__setattr__(self, "delta", checks.probability("delta", self.delta))
        for name, protocol in _PROTOCOLS.items():
            piece = getattr(self, name)
            if isinstance(piece, type) or not isinstance(piece, protocol):
                hint = f" Did you mean {piece.__name__}(...)?" if isinstance(piece, type) else ""
                raise PlanError(f"{name} must be a {protocol.__name__} piece, got {piece!r}.{hint}")
        for name, kind in _ENUMS.items():
            if not isinstance(getattr(self, name), kind):
                choices = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
                raise PlanError(f"{name} must be one of {choices}; got {getattr(self, name)!r}.")
        refusal = self.sampling.refusal(self.adjacency)
        if refusal is not None:
            raise PlanError(f"This plan has no guarantee: {refusal}")
        if self.release is not Release.EVERY_ITERATE:
            raise PlanError(
                f"release={self.release} needs a proof about the last iterate, which {type(self.sampling).__name__} "
                "sampling with this clipping does not carry. Use Release.EVERY_ITERATE, which is always covered."
            )
        if self.clipping.norm_kind is not self.noise.norm_kind:
            raise PlanError(
                f"{type(self.noise).__name__} noise hides contributions bounded in {self.noise.norm_kind.name}, but "
                f"{type(self.clipping).__name__} bounds them in {self.clipping.norm_kind.name}. Choose a matching pair."
            )

    @property
    def num_rounds(self) -> int:
        """How many events the whole run is charged."""
        return self.sampling.num_rounds

    @property
    def num_steps(self) -> int:
        """How many logical steps the run takes."""
        return self.sampling.num_rounds * self.sampling.steps_per_round

    @property
    def round_event(self) -> DpEvent:
        """What one round costs."""
        return self.sampling.amplify(self.noise.event())

    @property
    def segments(self) -> tuple[tuple[DpEvent, int], ...]:
        """The rounds of the run as (event, count) stretches, in order."""
        return ((self.round_event, self.num_rounds),)

    @property
    def event(self) -> DpEvent:
        """What the whole run costs."""
        return compose(self.segments)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold of a run for the guarantee to be about it."""
        return (
            *self.sampling.assumptions,
            "sampled indices and noise are secret and drawn from generators seeded by the operating system",
            "noise is treated as an ideal real-valued Gaussian",
            "plan constants are public and were not chosen by looking at the private data",
        )

    @cached_property
    def _guarantee(self) -> Guarantee:
        return guarantee(
            self.event,
            delta=self.delta,
            adjacency=self.adjacency,
            unit=self.unit,
            released=self.release,
            assumptions=self.assumptions,
        )

    def guarantee(self) -> Guarantee:
        """Account the plan. No data is needed, and the answer is the same before and after training."""
        return self._guarantee

    def calibrated(self, *, epsilon: float) -> Self:
        """Return this plan with the least noise that keeps epsilon at or below the target."""
        multiplier = calibrate_noise(
            lambda value: compose(replace(self, noise=self.noise.with_multiplier(value)).segments),
            epsilon=epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
        )
        return replace(self, noise=self.noise.with_multiplier(multiplier))

    @cached_property
    def epsilon_by_round(self) -> list[tuple[int, float]]:
        """A short table of (rounds run, epsilon spent at most), for progress displays."""
        return epsilon_table(self.round_event, self.num_rounds, delta=self.delta, adjacency=self.adjacency)

    def to_dict(self) -> dict[str, Any]:
        """Write the plan as plain values that JSON and TOML can hold."""
        pieces = {
            name: codec.encode_piece(getattr(self, name), family, where=name) for name, family in _FAMILIES.items()
        }
        return pieces | {"delta": self.delta} | {name: getattr(self, name).value for name in _ENUMS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str = "plan") -> Self:
        """Read a plan; unknown keys, kinds and values are refused with their dotted path."""
        known = [*_FAMILIES, *_ENUMS, "delta"]
        for key in data:
            if key not in known:
                raise RecipeError(f"{where}.{key} is not part of a plan. {codec.suggestion(key, known)}")
        values: dict[str, Any] = {}
        for name, family in _FAMILIES.items():
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
        """Fingerprint of the plan, stamped on every ledger row."""
        # frozen pieces of numbers print all their fields, so this also covers pieces that have no name in files
        return hashlib.sha256(repr(self).encode()).hexdigest()


def _member(kind: Any, value: object, where: str) -> Any:
    known = [member.value for member in kind]
    if value not in known:
        raise RecipeError(f"{where} is {value!r}. {codec.suggestion(str(value), known)}")
    return kind(value)
