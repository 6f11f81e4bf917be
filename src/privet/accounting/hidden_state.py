"""Hidden-state accounting: the privacy of the last iterate of noisy contractive descent, with all others hidden.

The setting is ``X_t = P(phi_t(X_{t-1}) + noise_t)`` with ``noise_t ~ N(0, noise_stds[t]^2 I)``, and two runs on data
that differ in one record. Every ``phi_t`` is ``contractions[t]``-Lipschitz, and its two versions differ by at most
``shifts[t]`` at every point; the shift is zero at steps that do not use the record. Both runs have the same start, and
``P`` is a projection onto a convex set or the identity.

For amounts ``a_t >= 0`` with ``z_0 = 0``, ``z_t = c_t z_{t-1} + s_t - a_t >= 0`` and ``z_T = 0``, the last iterate is
mu-GDP with ``mu^2 = sum (a_t / tau_t)^2``: a third process starts as one run, moves towards the other by at most
``a_t`` at step ``t``, and meets it at the end (the shifted interpolation of Bok, Su and Altschuler, 2024, which extends
privacy amplification by iteration, Feldman et al., 2018). The optimal amounts are a taut string: with the weights
``W_t = prod_{u > t} c_u``, the lengths ``V_t = sum_{u <= t} (W_u tau_u)^2`` and the heights
``S_t = sum_{u <= t} W_u s_u``, they are the slopes of the greatest convex minorant of the points (0, 0), (V_t, S_t),
and ``mu^2`` is the sum of rise squared over run along it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

from privet import checks
from privet.accounting.calibration import spent_epsilon
from privet.accounting.charges import Charges
from privet.accounting.gaussian_dp import gdp_delta, gdp_epsilon
from privet.accounting.guarantee import Guarantee
from privet.errors import ArgumentError, PlanError
from privet.mechanism.clipping import Clipping
from privet.mechanism.events import compose, same_event
from privet.mechanism.grouping import Grouping
from privet.mechanism.masking import Mask
from privet.mechanism.noise import Noise, NoiseFamily
from privet.mechanism.sampling import Sampling
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.vocabulary import Adjacency, Release

Array = NDArray[np.float64]
# Squares of smaller weights underflow; the effect of such steps is below 1e-140.
_FORGOTTEN = 1e-140
_SEARCH_STEPS = 200
_INSTEAD = "Use Release.EVERY_ITERATE, which needs no such proof."
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class _Path:
    """The points (V_t, S_t), the origin included, and the weight of each."""

    lengths: Array
    heights: Array
    weights: Array


def minorant_mu(
    *,
    shifts: Sequence[float] | Array,
    contractions: Sequence[float] | Array,
    noise_stds: Sequence[float] | Array,
    start_distance: float = 0.0,
) -> float:
    """Return mu such that the last iterate is mu-GDP: the greatest-convex-minorant bound, in time linear in the steps.

    Args:
        shifts: Per step, how far the two runs' updates may differ at one and the same point; 0 where the record is not
            used.
        contractions: Per step, the Lipschitz constant of the update; may exceed 1.
        noise_stds: Per step, the standard deviation of the noise on the iterate.
        start_distance: How far apart the two runs may begin.

    Guarantee: a valid mu for both orders of the two data sets, the smallest that this argument can give, whatever the
    dimension; steps, schedules and batch sizes may vary as long as they do not depend on the data. A projection onto a
    convex set after each step changes nothing.
    Edge cases: no steps, or no shift at all, give 0 (inf when the runs begin apart and no step follows); a contraction
    of 0 forgets everything before it; noise of 0, NaN and negative values raise ``ArgumentError``.
    """
    steps = _checked_steps(shifts, contractions, noise_stds)
    start = checks.non_negative("start_distance", start_distance)
    if not len(steps[0]):
        return math.inf if start > 0 else 0.0
    path = _path(*steps)
    heights = path.heights + path.weights[0] * start
    heights[0] = 0.0
    hull = _lower_hull(path.lengths.tolist(), heights.tolist())
    return math.sqrt(math.fsum(np.diff(heights[hull]) ** 2 / np.diff(path.lengths[hull])))


def projected_mu(
    *,
    shifts: Sequence[float] | Array,
    contractions: Sequence[float] | Array,
    noise_stds: Sequence[float] | Array,
    domain_diameter: float,
) -> float:
    """Return mu for iterates that are projected onto a convex set of this diameter after every step.

    The two runs are never further apart than the diameter, so the argument may begin at any step with that distance.
    This is the minimum over all beginnings, found in one walk from the last step to the first.

    Guarantee: never above ``minorant_mu``, and valid under the same conditions, with the set public and fixed.
    Edge cases: a diameter of 0 gives 0; an infinite one gives ``minorant_mu``.
    """
    steps = _checked_steps(shifts, contractions, noise_stds)
    diameter = checks.number("domain_diameter", domain_diameter)
    if diameter < 0:
        raise ArgumentError(f"domain_diameter must be zero or more, got {diameter!r}.")
    free = minorant_mu(shifts=shifts, contractions=contractions, noise_stds=noise_stds)
    if math.isinf(diameter) or not len(steps[0]):
        return free
    path = _path(*steps)
    lowest = path.heights - path.weights * diameter
    # the hull of everything to the right, its leftmost point last, and the cost from each of its points to the end
    hull, to_end = [len(lowest) - 1], [0.0]
    best = free**2
    for place in range(len(lowest) - 2, -1, -1):
        start = (float(path.lengths[place]), float(lowest[place]))
        touched = _tangent(hull, path, start)
        best = min(best, _cost(start, _point(path, hull[touched])) + to_end[touched])
        while len(hull) > 1 and not _turns(_point(path, place), _point(path, hull[-1]), _point(path, hull[-2])):
            hull.pop()
            to_end.pop()
        to_end.append(to_end[-1] + _cost(_point(path, place), _point(path, hull[-1])))
        hull.append(place)
    return math.sqrt(best)


def gradient_descent_ratio(*, contraction: float, steps: int) -> float:
    """Return mu over mu0 for noisy descent on the whole data set, where mu0 is the mu of a single released step.

    Guarantee: exact; a quadratic attains it (Bok, Su and Altschuler, 2024).
    Edge cases: contraction 1 gives ``sqrt(steps)``, which is plain composition; contraction 0 gives 1.
    """
    c, num_steps = _contraction(contraction), checks.count("steps", steps)
    if c == 1:
        return math.sqrt(num_steps)
    if c == 0:
        return 1.0
    return math.sqrt((1 + c) / (1 - c) * math.tanh(-num_steps * math.log(c) / 2))


def cyclic_ratio(*, contraction: float, batches: int, epochs: int) -> float:
    """Return mu over mu0 for noisy cyclic descent, for a record in the last batch of the epoch, the worst case.

    Args:
        contraction: The Lipschitz constant of every update, in [0, 1].
        batches: Disjoint batches per epoch, visited in the same order in every epoch.
        epochs: Number of epochs.

    Guarantee: equal to ``minorant_mu`` with constant steps, noise and divisor, to the precision of doubles.
    Edge cases: one batch is descent on the whole data set; one epoch gives 1; contraction 1 gives
    ``sqrt(1 + (epochs - 1) / batches)``.
    """
    c, num_batches, num_epochs = (
        _contraction(contraction),
        checks.count("batches", batches),
        checks.count("epochs", epochs),
    )
    if num_batches == 1:
        return gradient_descent_ratio(contraction=c, steps=num_epochs)
    if c == 1:
        return math.sqrt(1 + (num_epochs - 1) / num_batches)
    if c == 0:
        return 1.0
    # expm1 and tanh, because differences of powers of c lose all digits for c within 1e-9 of one
    log_c = math.log(c)
    once = math.exp((2 * num_batches - 2) * log_c) * (1 - c) * (1 + c) / math.expm1(num_batches * log_c) ** 2
    return math.sqrt(1 + once * math.tanh(-num_batches * (num_epochs - 1) * log_c / 2))


def position_ratios(*, contraction: float, batches: int, epochs: int) -> Array:
    """Return mu over mu0 for a record in each batch of the epoch, first batch first. The last one is the largest."""
    c = _contraction(contraction)
    total = checks.count("batches", batches) * checks.count("epochs", epochs)
    ratios = np.empty(batches)
    for position in range(batches):
        shifts = np.zeros(total)
        shifts[position::batches] = 1.0
        ratios[position] = minorant_mu(shifts=shifts, contractions=np.full(total, c), noise_stds=np.ones(total))
    return ratios


def secret_position_epsilon(mus: Sequence[float] | Array, *, delta: float) -> float:
    """Return epsilon when the record's place in the epoch was drawn once, uniformly and in secret.

    Guarantee: by joint convexity of the divergence, delta(epsilon) is at most the mean over the places of delta at
    their mu. It needs a deal that is never shown, never drawn again and never reused for another run.
    Edge cases: a single mu gives its own epsilon; no mu raises ``ArgumentError``.
    """
    places = [checks.number("mu", mu) for mu in mus]
    delta = checks.probability("delta", delta)
    if not places:
        raise ArgumentError("mus must hold one number per place in the epoch, got none.")
    low, high = 0.0, max(gdp_epsilon(mu, delta) for mu in places)
    if math.isinf(high):
        return math.inf
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        if math.fsum(gdp_delta(mu, middle) for mu in places) / len(places) > delta:
            low = middle
        else:
            high = middle
        if high - low <= 1e-13 * high:
            break
    return high


def _contraction(value: float) -> float:
    return checks.probability("contraction", value, allow_zero=True, allow_one=True)


def _checked_steps(*columns: Sequence[float] | Array) -> tuple[Array, Array, Array]:
    shifts, contractions, stds = (np.asarray(column, dtype=np.float64) for column in columns)
    if shifts.ndim != 1 or not shifts.shape == contractions.shape == stds.shape:
        raise ArgumentError(
            "shifts, contractions and noise_stds must be flat lists of one length, one number per step; got the shapes "
            f"{shifts.shape}, {contractions.shape} and {stds.shape}."
        )
    for name, column in (("shifts", shifts), ("contractions", contractions), ("noise_stds", stds)):
        if not (np.isfinite(column).all() and (column >= 0).all()):
            raise ArgumentError(f"{name} must be finite numbers of zero or more.")
    if not (stds > 0).all():
        raise ArgumentError("noise_stds must be positive: a step without noise hides nothing.")
    return shifts, contractions, stds


def _path(shifts: Array, contractions: Array, stds: Array) -> _Path:
    with np.errstate(divide="ignore"):
        logs = np.log(contractions)
    # weights[t] belongs to the state after t steps; summed from the end, so that a contraction of zero stays a zero
    weights = np.exp(np.append(np.cumsum(logs[::-1])[::-1], 0.0))
    first = int(np.argmax(weights[1:] >= _FORGOTTEN))
    kept = weights[first + 1 :]
    lengths = np.append(0.0, np.cumsum((kept * stds[first:]) ** 2))
    heights = np.append(0.0, np.cumsum(kept * shifts[first:]))
    return _Path(lengths=lengths, heights=heights, weights=weights[first:])


def _lower_hull(lengths: list[float], heights: list[float]) -> list[int]:
    """Return the indices of the corners of the greatest convex minorant."""
    hull = [0]
    for place, (length, height) in enumerate(zip(lengths, heights, strict=True)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (heights[b] - heights[a]) * (length - lengths[a]) < (height - heights[a]) * (lengths[b] - lengths[a]):
                break
            hull.pop()
        if place:
            hull.append(place)
    return hull


def _point(path: _Path, place: int) -> tuple[float, float]:
    return float(path.lengths[place]), float(path.heights[place])


def _cost(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) ** 2 / (right[0] - left[0])


def _turns(left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]) -> bool:
    """Say whether the middle point lies below the line from left to right."""
    return (middle[1] - left[1]) * (right[0] - left[0]) < (right[1] - left[1]) * (middle[0] - left[0])


def _tangent(hull: list[int], path: _Path, start: tuple[float, float]) -> int:
    """Return where the string from ``start`` first touches the hull: the point of smallest slope as seen from there."""
    low, high = 0, len(hull) - 1
    while low < high:
        # the hull is convex and its leftmost point comes last, so slopes fall and then rise along it
        middle = (low + high + 1) // 2
        if _turns(start, _point(path, hull[middle]), _point(path, hull[middle - 1])):
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, kw_only=True)
class LastIterate:
    """The composition of rounds by contraction, for a run that releases only the last iterate.

    Attributes:
        batches: Disjoint batches per epoch; 1 if every step uses all records.
        descent: The proven constants.
    """

    batches: int
    descent: StronglyConvexDescent

    @property
    def released(self) -> Release:
        return Release.LAST_ITERATE

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.descent.assumptions

    @property
    def needs_completion(self) -> bool:
        return True

    def event(self, round_event: dp_event.DpEvent, rounds: int) -> dp_event.DpEvent:
        """Return a Gaussian release that reveals at least as much as the last iterate after this many epochs.

        Guarantee:
            The last iterate is mu-GDP with mu at most that of the returned event, under every adjacency that the
            plan allows: one record, at any position of the epoch, moves one step of every epoch by at most the
            sensitivity of the sum.
        Edge cases: one epoch costs as much as one release of its sum.
        """
        ratio = cyclic_ratio(contraction=self.descent.contraction, batches=self.batches, epochs=rounds)
        return dp_event.GaussianDpEvent(round_event.noise_multiplier / ratio)

    def covers(self, ledger: Charges, round_event: dp_event.DpEvent, rounds: int) -> bool:
        """Whether the run was completed with exactly its planned rounds.

        The end of any other run may depend on the data, so all its iterates are charged.
        Edge cases: a ledger without a record of completion counts as interrupted.
        """
        if not ledger.is_complete or len(ledger.planned) != 1:
            return False
        event, charged = ledger.planned[0]
        return charged == rounds and same_event(event, round_event)

    def charged(self, ledger: Charges, round_event: dp_event.DpEvent) -> dp_event.DpEvent:
        last = self.event(round_event, ledger.charged_rounds)
        # A release besides the plan uses the last model and no other: it composes with it.
        return compose([(last, 1), *ledger.besides]) if ledger.besides else last

    def stated(self, found: Guarantee) -> Guarantee:
        # the lower bound is that of the equivalent release, not of the last iterate
        return replace(found, accountant="hidden state", lower=None)

    def epsilon_table(
        self, round_event: dp_event.DpEvent, rounds: int, *, delta: float, adjacency: Adjacency
    ) -> list[tuple[int, float]]:
        """Return the cost of plans of each number of rounds; a run is covered only when it is complete."""
        rows = sorted({max(1, round(rounds * part / 24)) for part in range(1, 25)})
        spent = [spent_epsilon(self.event(round_event, row), delta=delta, adjacency=adjacency) for row in rows]
        return [(0, 0.0), *zip(rows, spent, strict=True)]


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
    """Return the composition of a plan that releases only the last iterate.

    Raises:
        PlanError: the message names the first assumption of the proof that fails.
    """
    if descent is None:
        raise _refused(
            "no constants of a convex loss were given. Pass descent=StronglyConvexDescent(...) with the constants of "
            "the model"
        )
    if sampling.contribution is not None:
        raise _refused(
            f"{type(sampling).__name__} averages or bounds the records of a person, which the proof does not cover. "
            "Use Cyclic or FullBatch sampling of records or of whole persons (OneItemPerPerson)"
        )
    if sampling.fixed_batches is None:
        raise _refused(
            f"{type(sampling).__name__} draws batches at random, but the proof needs the same batches in every epoch. "
            "Use Cyclic or FullBatch sampling"
        )
    if adjacency is Adjacency.ADD_REMOVE:
        raise _refused(
            "under add-or-remove the number of records is secret, and with it their batches and the smoothness of the "
            "mean over a batch. Use Adjacency.REPLACE_ONE or Adjacency.ZERO_OUT"
        )
    _check_pieces(noise, mask, grouping)
    _check_clipping(clipping, descent)
    return LastIterate(batches=sampling.fixed_batches, descent=descent)


def _check_pieces(noise: Noise, mask: Mask, grouping: Grouping) -> None:
    if not noise.is_independent:
        raise _refused(
            f"{type(noise).__name__} correlates the noise of different steps, which the proof needs to be independent. "
            "Use Gaussian()"
        )
    if noise.family is not NoiseFamily.GAUSSIAN or not noise.is_spherical:
        raise _refused(f"{type(noise).__name__} noise is not spherical Gaussian noise. Use Gaussian()")
    if not mask.is_whole:
        raise _refused(f"{type(mask).__name__} leaves coordinates without noise. Use NoMask()")
    if not grouping.is_flat:
        raise _refused(
            f"{type(grouping).__name__} clips groups separately, which is not proven to keep a loss convex. "
            "Use OneGroup()"
        )


def _check_clipping(clipping: Clipping, descent: StronglyConvexDescent) -> None:
    if clipping.threshold is None:
        raise _refused(
            f"{type(clipping).__name__} changes gradients in a way that is not proven to keep a loss convex. Use "
            f"Threshold(norm={descent.gradient_bound!r}), which does not change these gradients"
        )
    if clipping.threshold < descent.gradient_bound * (1 - _ROUNDING):
        raise _refused(
            f"Threshold(norm={clipping.threshold:g}) would cut gradients that reach {descent.gradient_bound:g}, and a "
            "clipped gradient need not be the gradient of a convex loss. Softmax cross entropy with three classes is a "
            "counterexample: for label 1 and residuals clipped to 0.909, the logits (1.238, 3.927, 1.714) and "
            "(-2.643, 5.687, 3.102) get gradients whose difference has cosine -0.377 with theirs, so a step "
            "drives the two models apart. Bound the loss instead (a smaller feature radius, a clipped-residual loss) "
            f"and use Threshold(norm={descent.gradient_bound!r})"
        )


def _refused(assumption: str) -> PlanError:
    return PlanError(
        f"Release.LAST_ITERATE needs a proof that every step brings two models closer together. It fails here: "
        f"{assumption}. {_INSTEAD}"
    )
