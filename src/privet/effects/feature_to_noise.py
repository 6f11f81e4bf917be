"""The feature-to-noise ratio and the losses that follow from it, after Xu and Chen (2026).

The quantities are those of Definition 3.3, Theorems 3.4, 3.5 and 3.7, Corollaries 4.1 and 4.2 and Proposition 4.4 of
"Differential privacy in two-layer networks: how DP-SGD harms fairness and robustness". The formulas of the publication
are lost in the form in which it was available, so every right-hand side here is RECONSTRUCTED from the update rule:

* the ratio, the clipping factor and the contraction are derived from the gradient of the two-layer network;
* the shape of the bounds (a vanishing part, a part of order ``1/sqrt(n)``, a floor ``1/(p c FNR)``) is the text's;
* the constants of order one in front of them are unknown. They are fields of ``BoundConstants``, 1 by default.

So the figures rank settings and show how a loss moves with noise, size and share. They are not certified bounds, and
a test compares their ranking with trained networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from privet import checks
from privet.errors import ArgumentError

_GUESSING = math.log(2)


@dataclass(frozen=True, kw_only=True)
class PatchCell:
    """One class in one group.

    Attributes:
        feature_size: Length of its feature.
        share: Its proportion of the training data, the paper's ``p``.
    """

    feature_size: float
    share: float

    def __post_init__(self) -> None:
        checks.non_negative("feature_size", self.feature_size)
        checks.probability("share", self.share, allow_zero=True, allow_one=True)


@dataclass(frozen=True, kw_only=True)
class BoundConstants:
    """Constants of order one that the publication does not give; all RECONSTRUCTED.

    Attributes:
        contraction: In front of the rate of learning.
        generalisation: In front of the part that more data removes.
        upper: In front of the floor of the upper bound.
        lower: In front of the floor of the lower bound; at most ``upper``.
    """

    contraction: float = 1.0
    generalisation: float = 1.0
    upper: float = 1.0
    lower: float = 0.1

    def __post_init__(self) -> None:
        for name in ("contraction", "generalisation", "upper", "lower"):
            checks.positive(name, getattr(self, name))
        if self.lower > self.upper:
            raise ArgumentError(f"lower ({self.lower:g}) must not exceed upper ({self.upper:g}).")


class AttackNorm(Enum):
    """The norm in which the radius of an attack is measured."""

    EUCLIDEAN = "l2"
    LARGEST = "l-infinity"


@dataclass(frozen=True, kw_only=True)
class LossParts:
    """A predicted loss in its parts.

    Attributes:
        vanishing: What is left of the loss at the start; further steps remove it.
        generalisation: What more data removes.
        privacy: The floor that noise sets; steps and data do not remove it.
        adversarial: What an attack adds.
    """

    vanishing: float
    generalisation: float
    privacy: float
    adversarial: float = 0.0

    @property
    def total(self) -> float:
        """The sum."""
        return self.vanishing + self.generalisation + self.privacy + self.adversarial


@dataclass(frozen=True, kw_only=True)
class PatchSetting:
    """A training of the two-layer network, as far as the theory sees it.

    Attributes:
        dimension: Length of a patch, the paper's ``d``.
        num_filters: Filters per class, ``m``.
        patch_noise_std: Deviation of the noise patch.
        noise_std: Deviation of the noise on the *averaged* gradient: multiplier times clip norm over batch size.
        clip_norm: Bound on one example's gradient.
        learning_rate: Of plain gradient steps.
        num_steps: How many, ``T``.
        num_examples: Size of the training set, ``n``.
        constants: What is not known.
    """

    dimension: int
    num_filters: int
    patch_noise_std: float
    noise_std: float
    clip_norm: float = 1.0
    learning_rate: float = 0.5
    num_steps: int = 320
    num_examples: int = 800
    constants: BoundConstants = field(default_factory=BoundConstants)

    def __post_init__(self) -> None:
        for name in ("dimension", "num_filters", "num_examples"):
            checks.count(name, getattr(self, name))
        checks.count("num_steps", self.num_steps, minimum=0)
        for name in ("patch_noise_std", "noise_std"):
            checks.non_negative(name, getattr(self, name))
        for name in ("clip_norm", "learning_rate"):
            checks.positive(name, getattr(self, name))

    @property
    def patch_noise_length(self) -> float:
        """Usual length of a noise patch, ``sigma_p sqrt(d)``."""
        return self.patch_noise_std * math.sqrt(self.dimension)

    def gradient_bound(self, cell: PatchCell) -> float:
        """The longest gradient an example of the cell can usually have: ``sqrt(2/m) (|f| + sigma_p sqrt(d))``."""
        return math.sqrt(2 / self.num_filters) * (cell.feature_size + self.patch_noise_length)

    def clip_factor(self, cell: PatchCell) -> float:
        """The factor that clipping leaves of that gradient, at most 1 (Definition 3.3)."""
        bound = self.gradient_bound(cell)
        return 1.0 if bound <= self.clip_norm else self.clip_norm / bound

    def feature_to_noise(self, cell: PatchCell) -> float:
        """``|f|^2 / (sigma_n sqrt(m) (|f| + sigma_p sqrt(d)))`` (Definition 3.3).

        Edge cases: infinite without noise; zero for a feature of length zero.
        """
        if cell.feature_size == 0:
            return 0.0
        if self.noise_std == 0:
            return math.inf
        spread = math.sqrt(self.num_filters) * (cell.feature_size + self.patch_noise_length)
        return cell.feature_size**2 / (self.noise_std * spread)

    def contraction(self, cell: PatchCell) -> float:
        """The share of a cell's loss that one step removes, ``eta p c |f|^2 / m``, at most 1 (Equation 4)."""
        rate = self.learning_rate * cell.share * self.clip_factor(cell) * cell.feature_size**2 / self.num_filters
        return min(1.0, self.constants.contraction * rate)

    def upper_loss(self, cell: PatchCell, *, initial_loss: float = _GUESSING) -> LossParts:
        """The test loss that holds with high probability (Theorem 3.4).

        Edge cases: infinite for a feature of length zero or a share of zero, unless there is no noise.
        """
        return self._parts(cell, initial_loss, self.constants.upper)

    def lower_loss(self, cell: PatchCell, *, initial_loss: float = _GUESSING) -> LossParts:
        """The expected test loss that no such training goes below (Theorem 3.5)."""
        parts = self._parts(cell, initial_loss, self.constants.lower)
        return LossParts(vanishing=parts.vanishing, generalisation=0.0, privacy=parts.privacy)

    def _parts(self, cell: PatchCell, initial_loss: float, factor: float) -> LossParts:
        start = checks.non_negative("initial_loss", initial_loss)
        learned = cell.share * self.clip_factor(cell) * self.feature_to_noise(cell)
        floor = factor / learned if learned else math.inf
        relative = self.patch_noise_length / cell.feature_size if cell.feature_size else math.inf
        spread = 0.0 if self.patch_noise_std == 0 else relative / math.sqrt(self.num_examples)
        return LossParts(
            vanishing=(1 - self.contraction(cell)) ** self.num_steps * start,
            generalisation=self.constants.generalisation * spread,
            privacy=floor if self.noise_std else 0.0,
        )

    def adversarial_loss(self, cell: PatchCell, *, radius: float, norm: AttackNorm) -> LossParts:
        """The test loss under attack (Theorem 3.7): the radius times the dual length of what noise left in a filter.

        That length is ``eta sigma_n sqrt(T d)`` for changes measured in l2, and ``eta sigma_n d sqrt(2 T / pi)`` for
        changes measured by their largest coordinate.
        """
        clean = self.upper_loss(cell)
        step = self.learning_rate * self.noise_std
        euclidean = step * math.sqrt(self.num_steps * self.dimension)
        largest = step * self.dimension * math.sqrt(2 * self.num_steps / math.pi)
        dual = euclidean if norm is AttackNorm.EUCLIDEAN else largest
        return LossParts(
            vanishing=clean.vanishing,
            generalisation=clean.generalisation,
            privacy=clean.privacy,
            adversarial=checks.non_negative("radius", radius) * dual,
        )

    def fine_tuning_loss(self, cell: PatchCell, *, angle: float, learned_margin: float) -> LossParts:
        """The test loss of private fine-tuning after pre-training on features turned by an angle (Proposition 4.4).

        Training begins at ``log(1 + exp(-a (cos - sin)))``, where ``a`` is the margin that pre-training learned.

        Args:
            cell: The fine-tuning features.
            angle: Between the features of both data sets, in radians.
            learned_margin: ``a``; zero is training from scratch.
        """
        return self.upper_loss(cell, initial_loss=pretrained_start(angle=angle, learned_margin=learned_margin))


def pretrained_start(*, angle: float, learned_margin: float) -> float:
    """The loss with which fine-tuning begins: ``log(1 + exp(-a (cos(angle) - sin(angle))))``."""
    turned = checks.number("angle", angle)
    margin = checks.non_negative("learned_margin", learned_margin) * (math.cos(turned) - math.sin(turned))
    return math.log1p(math.exp(-abs(margin))) + max(0.0, -margin)


def pretraining_harms(angle: float) -> bool:
    """Whether Proposition 4.4 predicts a worse start than from scratch: the sine is larger than the cosine.

    It is about the start. Given steps enough, private training forgets it: in simulations the crossing lies later,
    near a right angle.
    """
    turned = checks.number("angle", angle)
    return math.sin(turned) > math.cos(turned)


def class_loss(losses: Sequence[float], shares: Sequence[float]) -> float:
    """The loss of a class over its groups, or of a group over its classes (Corollaries 4.1 and 4.2).

    Args:
        losses: One per cell.
        shares: The cells' shares of all data; only their proportion counts. All zero is refused.
    """
    weights = [checks.non_negative("share", share) for share in shares]
    if len(weights) != len(losses) or not math.fsum(weights):
        raise ArgumentError("Give one share per loss, at least one of them above zero.")
    return math.fsum(w * loss for w, loss in zip(weights, losses, strict=True) if w) / math.fsum(weights)


@dataclass(frozen=True, kw_only=True)
class DisparitySources:
    """Why the floor of one cell lies above that of another: three factors whose product is the ratio of the floors.

    Attributes:
        features: Ratio of the feature-to-noise ratios; above 1 the cell's features are weaker.
        clipping: Ratio of the clipping factors; above 1 the cell is clipped more.
        imbalance: Ratio of the shares; above 1 the cell is rarer.
    """

    features: float
    clipping: float
    imbalance: float

    @property
    def total(self) -> float:
        """Ratio of the floors."""
        return self.features * self.clipping * self.imbalance

    @property
    def log_shares(self) -> Mapping[str, float]:
        """The part of each source in the logarithm of the ratio; they add up to 1. Zero where the floors are equal."""
        whole = math.log(self.total)
        named = {"features": self.features, "clipping": self.clipping, "imbalance": self.imbalance}
        return {name: math.log(value) / whole if whole else 0.0 for name, value in named.items()}


def disparity_sources(setting: PatchSetting, cell: PatchCell, *, reference: PatchCell) -> DisparitySources:
    """Decompose the ratio of two cells' floors into feature disparity, clipping and imbalance (Section 4.1).

    Raises:
        ArgumentError: a cell has no examples or no feature, or there is no noise, so that there is no floor.
    """
    for one in (cell, reference):
        if not (one.share and one.feature_size and setting.noise_std):
            raise ArgumentError("A floor needs noise, a share above zero and a feature of some length.")
    return DisparitySources(
        features=setting.feature_to_noise(reference) / setting.feature_to_noise(cell),
        clipping=setting.clip_factor(reference) / setting.clip_factor(cell),
        imbalance=reference.share / cell.share,
    )
