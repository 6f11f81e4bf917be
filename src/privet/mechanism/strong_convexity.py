"""Proven constants of the loss and the step size, for plans that release only the last iterate.

Hiding the earlier iterates improves the guarantee only if a step brings any two models closer together. This holds for
plain gradient descent on convex, smooth losses with a ridge term, and rarely otherwise. The constants of the proof are
public constants of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from privet import checks
from privet.errors import ArgumentError

# The step size may equal its limit; rounding in the last digit must not refuse it.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class StronglyConvexDescent:
    """Plain gradient descent, ``w <- w - learning_rate * (noisy mean gradient + ridge * w)``, on a proven loss.

    Attributes:
        learning_rate: The step size, the same at every step.
        ridge: The constant lambda of the term ``lambda / 2 |w|^2``, which is added outside the private sum (as weight
            decay) and is never clipped. Zero is allowed and gives no contraction.
        gradient_bound: Proven bound on the l2 norm of the gradient of the data term of one record, at every model and
            without clipping.
        smoothness: Proven Lipschitz constant of that gradient (beta); the data term of every record is convex.

    Guarantee:
        The update with any data is ``contraction``-Lipschitz, provided that no batch holds more records than the
        divisor of its sum: the gradient step of a convex, beta-smooth mean with a ridge contracts by
        ``1 - learning_rate * ridge`` for every ``learning_rate <= 2 / (2 * ridge + smoothness)``.
    """

    learning_rate: float
    ridge: float
    gradient_bound: float
    smoothness: float

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "learning_rate", "gradient_bound", "smoothness")
        checks.fields(self, checks.non_negative, "ridge")
        if self.learning_rate > self.longest_step * (1 + _ROUNDING):
            raise ArgumentError(
                f"learning_rate {self.learning_rate:g} is above 2 / (2 * ridge + smoothness) = {self.longest_step:g}: "
                "such a step need not bring two models closer together, and the proof for the last iterate fails. "
                "Use a smaller learning rate, or scale the features down."
            )

    @property
    def longest_step(self) -> float:
        """The largest learning rate with a proven contraction."""
        return 2 / (2 * self.ridge + self.smoothness)

    @property
    def contraction(self) -> float:
        """The Lipschitz constant of one update, in [0, 1]."""
        return max(0.0, 1 - self.learning_rate * self.ridge)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions under which the guarantee covers the last iterate."""
        hidden = (
            "only the model after the last step is ever shown: no earlier model, no average of models, no checkpoint, "
            "and nothing that was computed from them"
        )
        proven = (
            f"every record's loss is convex and {self.smoothness:.6g}-smooth with gradients of length at most "
            f"{self.gradient_bound:.6g}, and steps are plain gradient descent at rate {self.learning_rate:.6g} with "
            f"ridge {self.ridge:.6g}"
        )
        fixed = "the number of steps, interruptions and the initial weights do not depend on the private data"
        return (hidden, fixed, proven)
