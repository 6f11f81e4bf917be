"""The feature-to-noise ratio and the losses that follow from it, after Xu and Chen (2026).

The quantities are those of Definition 3.3, Theorems 3.4, 3.5 and 3.7, Corollaries 4.1 and 4.2 and Proposition 4.4 of
"Differential privacy in two-layer networks: how DP-SGD harms fairness and robustness". The available copy of the
publication has no legible formulas, so every right-hand side is RECONSTRUCTED from the update rule:

* the ratio, the clipping factor and the contraction are derived from the gradient of the two-layer network;
* the form of the bounds (a vanishing part, a part of order ``1/sqrt(n)``, a floor ``1/(p c FNR)``) is from the text;
* the constants of order one are unknown. They are fields of ``BoundConstants``.

The values rank settings and show the influence of noise, feature size and share on the loss. They are not certified
bounds; a test compares their ranking with trained networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from privet import checks
from privet.effects.radii import noise_walk_length
from privet.errors import ArgumentError

_CHANCE_LOSS = math.log(2)


@dataclass(frozen=True, kw_only=True)
class PatchCell:
    """One class in one group.

    Attributes:
        feature_size: Norm of its feature.
        share: Its fraction of the training data, ``p`` in the paper.
    """

    feature_size: float
    share: float

    def __post_init__(self) -> None:
        checks.non_negative("feature_size", self.feature_size)
        checks.probability("share", self.share, allow_zero=True, allow_one=True)


@dataclass(frozen=True, kw_only=True)
class BoundConstants:
    """Constants of order one that the publication does not state; all RECONSTRUCTED.

    Attributes:
        contraction: Factor of the contraction rate.
        generalisation: Factor of the generalisation part.
        upper: Factor of the floor in the upper bound.
        lower: Factor of the floor in the lower bound; at most ``upper``.
    """

    contraction: float = 1.0
    generalisation: float = 1.0
    upper: float = 1.0
    lower: float = 0.1

    def __post_init__(self) -> None:
        checks.require(self, checks.positive, "contraction", "generalisation", "upper", "lower")
        if self.lower > self.upper:
            raise ArgumentError(f"lower ({self.lower:g}) must not exceed upper ({self.upper:g}).")


@dataclass(frozen=True, kw_only=True)
class LossParts:
    """The parts of a predicted loss.

    Attributes:
        vanishing: Remainder of the initial loss; it decreases with steps.
        generalisation: Generalisation error; it decreases with the number of examples.
        privacy: Floor due to noise; neither steps nor data reduce it.
        adversarial: Additional loss under attack.
    """

    vanishing: float
    generalisation: float
    privacy: float
    adversarial: float = 0.0

    @property
    def total(self) -> float:
        return self.vanishing + self.generalisation + self.privacy + self.adversarial


@dataclass(frozen=True, kw_only=True)
class PatchSetting:
    """The training settings of the two-layer network that the theory depends on.

    Attributes:
        dimension: Length of a patch, ``d`` in the paper.
        num_filters: Number of filters per class, ``m``.
        patch_noise_std: Standard deviation of the noise patch.
        noise_std: Standard deviation of the noise on the *averaged* gradient: noise multiplier times clipping norm over
            batch size.
        clip_norm: Clipping norm.
        learning_rate: Learning rate of plain gradient descent.
        num_steps: Number of steps, ``T``.
        num_examples: Size of the training set, ``n``.
        constants: The unknown constants.
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
        checks.require(self, checks.count, "dimension", "num_filters", "num_examples")
        checks.count("num_steps", self.num_steps, minimum=0)
        checks.require(self, checks.non_negative, "patch_noise_std", "noise_std")
        checks.require(self, checks.positive, "clip_norm", "learning_rate")

    @property
    def patch_noise_length(self) -> float:
        """Typical norm of a noise patch, ``sigma_p sqrt(d)``."""
        return self.patch_noise_std * math.sqrt(self.dimension)

    def gradient_bound(self, cell: PatchCell) -> float:
        """Return a bound on the typical gradient norm in the cell: ``sqrt(2/m) (|f| + sigma_p sqrt(d))``."""
        return math.sqrt(2 / self.num_filters) * (cell.feature_size + self.patch_noise_length)

    def clip_factor(self, cell: PatchCell) -> float:
        """Return the clipping factor of that gradient, at most 1 (Definition 3.3)."""
        bound = self.gradient_bound(cell)
        return 1.0 if bound <= self.clip_norm else self.clip_norm / bound

    def feature_to_noise(self, cell: PatchCell) -> float:
        """Return ``|f|^2 / (sigma_n sqrt(m) (|f| + sigma_p sqrt(d)))`` (Definition 3.3).

        Edge cases: infinite without noise; zero for a feature of norm zero.
        """
        if cell.feature_size == 0:
            return 0.0
        if self.noise_std == 0:
            return math.inf
        spread = math.sqrt(self.num_filters) * (cell.feature_size + self.patch_noise_length)
        return cell.feature_size**2 / (self.noise_std * spread)

    def contraction(self, cell: PatchCell) -> float:
        """Return the relative decrease of a cell's loss in one step, ``eta p c |f|^2 / m``, at most 1 (Equation 4)."""
        rate = self.learning_rate * cell.share * self.clip_factor(cell) * cell.feature_size**2 / self.num_filters
        return min(1.0, self.constants.contraction * rate)

    def upper_loss(self, cell: PatchCell, *, initial_loss: float = _CHANCE_LOSS) -> LossParts:
        """Return the upper bound on the test loss, with high probability (Theorem 3.4).

        Edge cases: infinite for a feature of norm zero or a share of zero, unless there is no noise.
        """
        return self._parts(cell, initial_loss, self.constants.upper)

    def lower_loss(self, cell: PatchCell, *, initial_loss: float = _CHANCE_LOSS) -> LossParts:
        """Return the lower bound on the expected test loss (Theorem 3.5)."""
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

    @property
    def filter_noise_l2(self) -> float:
        """Length of the noise in a filter, ``eta sigma_n sqrt(T d)``: the dual norm for attacks in l2."""
        rate, std, steps = self.learning_rate, self.noise_std, self.num_steps
        return noise_walk_length(learning_rate=rate, noise_std=std, num_steps=steps, num_parameters=self.dimension)

    @property
    def filter_noise_l1(self) -> float:
        """Absolute noise in a filter, ``eta sigma_n d sqrt(2 T / pi)``: the dual norm for attacks in l-infinity."""
        return self.learning_rate * self.noise_std * self.dimension * math.sqrt(2 * self.num_steps / math.pi)

    def adversarial_loss(self, cell: PatchCell, *, radius: float, filter_noise: float) -> LossParts:
        """Return the test loss under attack (Theorem 3.7): it adds the radius times the noise of a filter.

        Args:
            cell: The class and group.
            radius: The largest change of an input.
            filter_noise: The noise in the dual norm: ``filter_noise_l2`` or ``filter_noise_l1``.
        """
        clean = self.upper_loss(cell)
        return LossParts(
            vanishing=clean.vanishing,
            generalisation=clean.generalisation,
            privacy=clean.privacy,
            adversarial=checks.non_negative("radius", radius) * filter_noise,
        )

    def fine_tuning_loss(self, cell: PatchCell, *, angle: float, learned_margin: float) -> LossParts:
        """Return the test loss of private fine-tuning after pre-training on rotated features (Proposition 4.4).

        Training starts at the loss ``log(1 + exp(-a (cos - sin)))``, where ``a`` is the margin after pre-training.

        Args:
            cell: The fine-tuning features.
            angle: Angle between the features of both data sets, in radians.
            learned_margin: ``a``; zero is training from scratch.
        """
        return self.upper_loss(cell, initial_loss=pretrained_start(angle=angle, learned_margin=learned_margin))


def pretrained_start(*, angle: float, learned_margin: float) -> float:
    """Return the initial loss of fine-tuning: ``log(1 + exp(-a (cos(angle) - sin(angle))))``."""
    turned = checks.number("angle", angle)
    margin = checks.non_negative("learned_margin", learned_margin) * (math.cos(turned) - math.sin(turned))
    return math.log1p(math.exp(-abs(margin))) + max(0.0, -margin)


def pretraining_harms(angle: float) -> bool:
    """Whether Proposition 4.4 predicts a larger initial loss than from scratch: the sine is larger than the cosine.

    The influence of the initial loss decreases with private steps: in simulations pre-training harms only near a right
    angle.
    """
    turned = checks.number("angle", angle)
    return math.sin(turned) > math.cos(turned)


def class_loss(losses: Sequence[float], shares: Sequence[float]) -> float:
    """Return the mean loss of a class over its groups, or of a group over its classes (Corollaries 4.1 and 4.2).

    Args:
        losses: One per cell.
        shares: The cells' fractions of the data, up to a common factor. All zero is refused.
    """
    weights = [checks.non_negative("share", share) for share in shares]
    if len(weights) != len(losses) or not math.fsum(weights):
        raise ArgumentError("Give one share per loss, at least one of them above zero.")
    return math.fsum(w * loss for w, loss in zip(weights, losses, strict=True) if w) / math.fsum(weights)


@dataclass(frozen=True, kw_only=True)
class DisparitySources:
    """Three factors whose product is the ratio of the privacy floors of two cells.

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
        """The ratio of the floors."""
        return self.features * self.clipping * self.imbalance


def disparity_sources(setting: PatchSetting, cell: PatchCell, *, reference: PatchCell) -> DisparitySources:
    """Decompose the ratio of two cells' floors into feature disparity, clipping and imbalance (Section 4.1).

    Raises:
        ArgumentError: a cell has a share or a feature of zero, or the noise is zero, so no floor exists.
    """
    for one in (cell, reference):
        if not (one.share and one.feature_size and setting.noise_std):
            raise ArgumentError("A floor needs noise_std, share and feature_size above zero.")
    return DisparitySources(
        features=setting.feature_to_noise(reference) / setting.feature_to_noise(cell),
        clipping=setting.clip_factor(reference) / setting.clip_factor(cell),
        imbalance=reference.share / cell.share,
    )
