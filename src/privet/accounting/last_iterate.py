"""Which pieces carry a proof about the last iterate, and what a run made of them costs."""

from __future__ import annotations

from dataclasses import dataclass

from dp_accounting import dp_event

from privet.accounting.hidden_state import cyclic_ratio
from privet.errors import PlanError
from privet.mechanism.clipping import Clipping
from privet.mechanism.descent import StronglyConvexDescent
from privet.mechanism.grouping import Grouping
from privet.mechanism.masking import Mask
from privet.mechanism.noise import Noise, NoiseFamily
from privet.mechanism.sampling import Sampling
from privet.mechanism.terms import Adjacency

ACCOUNTANT = "hidden state"
_INSTEAD = "Use Release.EVERY_ITERATE, which is always covered."
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class LastIterate:
    """A run whose last iterate has a proof.

    Attributes:
        batches: Disjoint batches per epoch; 1 when every step uses all records.
        descent: The proven constants.
    """

    batches: int
    descent: StronglyConvexDescent

    def equivalent(self, noise_multiplier: float, epochs: int) -> dp_event.DpEvent:
        """Return the Gaussian release that reveals as much as the last iterate after this many epochs at most.

        Guarantee:
            The last iterate is mu-GDP with mu at most that of the returned event, under every adjacency that the
            plan allows: one record, wherever it stands in the epoch, moves one step of every epoch by at most the
            sensitivity of the sum.
        Edge cases: one epoch costs what one release of its sum costs.
        """
        ratio = cyclic_ratio(contraction=self.descent.contraction, batches=self.batches, epochs=epochs)
        return dp_event.GaussianDpEvent(noise_multiplier / ratio)


def proven_last_iterate(
    *,
    sampling: Sampling,
    clipping: Clipping,
    noise: Noise,
    grouping: Grouping,
    mask: Mask,
    adjacency: Adjacency,
    descent: StronglyConvexDescent | None,
) -> LastIterate:
    """Return the proof's constants, or say which of its assumptions the pieces break.

    Raises:
        PlanError: naming the first assumption that fails.
    """
    if descent is None:
        raise _refused(
            "no constants of a convex loss were given. Pass descent=StronglyConvexDescent(...) with the constants that "
            "the model carries"
        )
    if sampling.fixed_batches is None:
        raise _refused(
            f"{type(sampling).__name__} draws batches at random, and the proof follows one record through batches that "
            "stay the same in every epoch. Use Cyclic or FullBatch sampling"
        )
    if adjacency is Adjacency.ADD_REMOVE:
        raise _refused(
            "under add-or-remove the number of records is not public, so neither are their places nor the smoothness "
            "of a batch's mean. Use Adjacency.REPLACE_ONE or Adjacency.ZERO_OUT"
        )
    _check_pieces(noise, mask, grouping)
    _check_clipping(clipping, descent)
    return LastIterate(batches=sampling.fixed_batches, descent=descent)


def _check_pieces(noise: Noise, mask: Mask, grouping: Grouping) -> None:
    if noise.family is not NoiseFamily.GAUSSIAN or not noise.is_spherical:
        raise _refused(f"{type(noise).__name__} noise is not the Gaussian noise of the proof")
    if not mask.is_whole:
        raise _refused(f"{type(mask).__name__} leaves coordinates without noise, where nothing is hidden")
    if not grouping.is_flat:
        raise _refused(
            f"{type(grouping).__name__} clips parts of a gradient apart, which is not proven to keep a loss convex. "
            "Use OneGroup()"
        )


def _check_clipping(clipping: Clipping, descent: StronglyConvexDescent) -> None:
    if clipping.threshold is None:
        raise _refused(
            f"{type(clipping).__name__} changes gradients in a way that is not proven to keep a loss convex. Use "
            f"Threshold(norm={descent.gradient_bound!r}), which leaves these gradients as they are"
        )
    if clipping.threshold < descent.gradient_bound * (1 - _ROUNDING):
        raise _refused(
            f"Threshold(norm={clipping.threshold:g}) would cut gradients that reach {descent.gradient_bound:g}, and a "
            "clipped gradient need not be the gradient of a convex loss. Softmax cross entropy with three classes is a "
            "counterexample: for label 1 and residuals clipped to 0.909, the logits (1.238, 3.927, 1.714) and "
            "(-2.643, 5.687, 3.102) get gradients whose difference has cosine -0.377 with theirs, so that a step "
            "drives the two models apart. Bound the loss instead (a smaller feature radius, a clipped-residual loss) "
            f"and use Threshold(norm={descent.gradient_bound!r})"
        )


def _refused(assumption: str) -> PlanError:
    return PlanError(
        f"Release.LAST_ITERATE needs a proof that every step brings two models closer together, and here it fails: "
        f"{assumption}. {_INSTEAD}"
    )
