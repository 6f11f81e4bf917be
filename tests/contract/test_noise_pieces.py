"""Laws of every noise, whatever its shape: the declared size on each coordinate, and no more told than is charged."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent

from privet.accounting.accountants import curve
from privet.errors import PlanError
from privet.mechanism.codec import NOISE, decode_piece, encode_piece
from privet.mechanism.events import decode_event, encode_event, same_event
from privet.mechanism.noise import Noise
from privet.mechanism.sensitivity import Sensitivity
from privet.vocabulary import Adjacency
from tests.contract import statistics as stats
from tests.contract.noises import (
    BOUNDS,
    DRAWS,
    LAYOUT,
    MEMBERS,
    SIZE,
    Array,
    NoiseMember,
    draws_of,
    each_noise,
    keystream,
    release,
)

each_private_noise = pytest.mark.parametrize(
    "member", [member for member in MEMBERS if member.piece.not_private_because is None], ids=str
)
EPSILONS = np.array([0.0, 0.5, 1.0])


def draws(member: NoiseMember) -> Array:
    return draws_of(MEMBERS.index(member))


def p_values(found: Array, stds: Array) -> dict[str, float]:
    """Say how odd releases are for noise of these sizes, uncorrelated between coordinates and between releases."""
    scaled = found / stds
    number, width = scaled.shape
    squares = scaled**2
    errors = squares.std(0) / math.sqrt(number) + 1e-300
    pairs = np.corrcoef(scaled.T)[np.triu_indices(width, 1)] * math.sqrt(number)
    sizes = np.abs(scaled) - np.abs(scaled).mean(0)
    both = [(scaled[1:] * scaled[:-1]).mean(0) / scaled.var(0), (sizes[1:] * sizes[:-1]).mean(0) / sizes.var(0)]

    def worst(deviations: Array) -> float:
        values = np.abs(np.asarray(deviations)).reshape(-1)
        return min(1.0, len(values) * stats.normal(float(values.max())))

    return {
        "sizes": worst((squares.mean(0) - 1) / errors),
        "means": worst(scaled.mean(0) / scaled.std(0) * math.sqrt(number)),
        "coordinates": worst(pairs),
        "releases": worst(np.concatenate(both) * math.sqrt(number)),
    }


@each_private_noise
def test_noise_has_the_declared_size_on_every_coordinate_and_repeats_nowhere(member: NoiseMember) -> None:
    found = p_values(draws(member), member.stds(BOUNDS))
    assert min(found.values()) > stats.ALPHA, found


WRONG: dict[str, Callable[[Array], Array]] = {
    "a quarter too small": lambda z: 0.75 * z,
    "one coordinate at half its size": lambda z: z * np.array([0.5] + [1.0] * (SIZE - 1)),
    "one coordinate without": lambda z: z * np.array([1e-9] + [1.0] * (SIZE - 1)),
    "shifted": lambda z: z + 0.3,
    "two coordinates share a draw": lambda z: np.column_stack([z[:, 1], z[:, 1:]]),
    "opposite signs": lambda z: np.column_stack([-z[:, 1], z[:, 1:]]),
    "every release twice": lambda z: np.repeat(z[: DRAWS // 2], 2, axis=0),
    "one size for two releases": lambda z: np.repeat(np.abs(z[: DRAWS // 2]), 2, axis=0) * np.where(z > 0, 1.0, -1.0),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_laws_of_every_noise_reject_wrong_noise(name: str) -> None:
    right = np.random.default_rng(5).normal(size=(DRAWS, SIZE))
    assert min(p_values(right, np.ones(SIZE)).values()) > stats.ALPHA
    assert min(p_values(WRONG[name](right), np.ones(SIZE)).values()) < stats.CERTAIN


def shifts() -> list[Array]:
    """Contributions of one record that reach the bound of both groups: on single coordinates, and on all."""
    found = []
    for first, second in ((0, 8), (4, 10), (7, 11)):
        shift = np.zeros(SIZE)
        shift[first], shift[second] = BOUNDS
        found.append(shift)
    spread = np.random.default_rng(3).normal(size=SIZE)
    spread[:8] *= BOUNDS[0] / np.linalg.norm(spread[:8])
    spread[8:] *= BOUNDS[1] / np.linalg.norm(spread[8:])
    return [*found, spread]


def told(member: NoiseMember, shift: Array, noise: Array) -> tuple[Array, Array]:
    """Return what thresholds tell of a record at each epsilon, the largest excess over its error, and the error.

    The statistic is the best one against normal noise of the declared sizes; any statistic gives a lower bound.
    """
    both = [release(member.piece, keystream(1), start=torch.from_numpy(scale * shift)).flat for scale in (0.0, 1.0)]
    moved = (both[1] - both[0]).numpy()
    weights = moved / member.stds(BOUNDS) ** 2
    absent, present = noise @ weights, (noise + moved) @ weights
    charged = curve(member.piece.event(), Adjacency.ADD_REMOVE).deltas(EPSILONS)
    best, excess = np.zeros(len(EPSILONS)), np.full(len(EPSILONS), -math.inf)
    for threshold in np.quantile(np.concatenate([absent, present]), np.linspace(0.02, 0.98, 25)):
        hits, alarms = (present > threshold).mean(), (absent > threshold).mean()
        error = np.sqrt(hits * (1 - hits) + np.exp(2 * EPSILONS) * alarms * (1 - alarms)) / math.sqrt(len(noise))
        found = hits - np.exp(EPSILONS) * alarms
        best = np.maximum(best, found)
        excess = np.maximum(excess, (found - charged) / (error + 1e-3))
    return best / charged, excess


@each_private_noise
def test_no_threshold_tells_of_a_record_more_than_the_event_is_charged(member: NoiseMember) -> None:
    found = [told(member, shift, draws(member)) for shift in shifts()]
    assert max(float(excess.max()) for _, excess in found) < 4.5
    if isinstance(member.piece.event(), GaussianDpEvent):
        # normal noise is charged exactly, and one that learns spends a part of the charge beside the sum
        assert max(float(best[0]) for best, _ in found) > 0.8


@pytest.mark.parametrize(
    "member", [member for member in MEMBERS if isinstance(member.piece.event(), GaussianDpEvent)], ids=str
)
def test_thresholds_tell_of_a_record_more_than_the_event_is_charged_if_the_noise_is_too_small(
    member: NoiseMember,
) -> None:
    """Other noise than normal is charged for its worst point, which no threshold shows."""
    assert max(float(told(member, shift, 0.5 * draws(member))[1].max()) for shift in shifts()) > 4.5


@each_noise
def test_is_a_noise_by_protocol_that_is_frozen_and_survives_json(member: NoiseMember) -> None:
    assert isinstance(member.piece, Noise)
    written = json.loads(json.dumps(encode_piece(member.piece, NOISE, where="noise")))
    assert decode_piece(written, NOISE, where="noise") == member.piece
    assert dataclasses.is_dataclass(member.piece)
    with pytest.raises(dataclasses.FrozenInstanceError):
        member.piece.noise_multiplier = 3.0  # type: ignore[attr-defined]


@each_noise
@pytest.mark.parametrize("scale", [1.0, 0.1, 30.0])
def test_the_event_built_from_facts_is_the_event_announced(member: NoiseMember, scale: float) -> None:
    private = release(member.piece, keystream(0), bounds=tuple(scale * bound for bound in BOUNDS))
    assert same_event(private.event, member.piece.event(), rel_tol=1e-9)
    assert decode_event(json.loads(json.dumps(encode_event(private.event)))) == private.event


@each_private_noise
def test_the_event_follows_the_bound_that_was_really_used(member: NoiseMember) -> None:
    class Half(Sensitivity):
        """A bound whose total is understated, as after a mistaken edit."""

        @property
        def total(self) -> float:
            return 0.5 * math.hypot(*self.bounds)

    honest = release(member.piece, keystream(0))
    mistaken = release(member.piece, keystream(0), bounds=Half(bounds=BOUNDS))
    # a noise that does not look at the total is not mistaken
    assert torch.equal(honest.flat, mistaken.flat) == same_event(mistaken.event, member.piece.event())


@each_private_noise
def test_more_noise_is_never_charged_more(member: NoiseMember) -> None:
    charged = [
        float(curve(member.piece.with_multiplier(value).event(), Adjacency.ADD_REMOVE).deltas(np.array([0.5]))[0])
        for value in (1.0, 2.0, 4.0)
    ]
    assert charged[0] > charged[1] > charged[2] or charged[1] == charged[2] == 0.0
    louder = member.piece.with_multiplier(4.0)
    assert type(louder) is type(member.piece)
    quiet, loud = (release(member.piece.with_multiplier(value), keystream(1)).flat for value in (1.0, 4.0))
    assert torch.allclose(4 * quiet, loud, rtol=1e-9)


@each_noise
def test_noise_is_proportional_to_the_bound(member: NoiseMember) -> None:
    small, large = (
        release(member.piece, keystream(1), bounds=tuple(scale * bound for bound in BOUNDS)).flat
        for scale in (1.0, 3.0)
    )
    assert torch.allclose(3 * small, large, rtol=1e-9)


@each_noise
def test_noise_is_added_to_the_sum_whatever_the_sum_is(member: NoiseMember) -> None:
    start = torch.linspace(-3, 3, SIZE, dtype=torch.float64)
    nothing, once, twice = (
        release(member.piece, keystream(3), start=scale * start).flat for scale in (0.0, 1.0, 2.0)
    )  # fmt: skip
    assert torch.allclose(twice - once, once - nothing, rtol=1e-9, atol=1e-12)
    assert bool(((once - nothing) != 0).all())


@each_noise
def test_two_releases_of_one_stream_differ_and_the_same_key_repeats(member: NoiseMember) -> None:
    stream = keystream(9)
    first, second = (release(member.piece, stream).flat for _ in range(2))
    assert torch.equal(first, release(member.piece, keystream(9)).flat)
    if member.piece.not_private_because is not None:
        assert bool((first == 0).all())
    else:
        assert bool((first != 0).all())
        assert bool((first != second).all())


@each_noise
def test_masked_coordinates_stay_exactly_zero_or_a_mask_is_refused(member: NoiseMember) -> None:
    keep = torch.arange(SIZE) % 3 != 0
    try:
        released = release(member.piece, keystream(2), keep=keep).flat
    except PlanError:
        return
    assert bool((released[~keep] == 0).all())
    assert (member.piece.not_private_because is not None) or bool((released[keep] != 0).all())


@each_noise
def test_one_size_is_told_only_where_all_coordinates_have_it(member: NoiseMember) -> None:
    told_std, stds = release(member.piece, keystream(0)).noise_std, member.stds(BOUNDS)
    assert told_std is None or np.allclose(stds, told_std)


@each_private_noise
def test_uncalibrated_noise_neither_has_an_event_nor_adds_anything(member: NoiseMember) -> None:
    bare: Noise = dataclasses.replace(member.piece, noise_multiplier=None)  # type: ignore[type-var]
    start = torch.zeros(SIZE, dtype=torch.float64)
    with pytest.raises(PlanError, match="calibrated"):
        bare.event()
    with pytest.raises(PlanError, match="calibrated"):
        release(bare, keystream(0), start=start)
    assert bool((start == 0).all())


def test_the_layout_of_the_members_has_more_than_one_group() -> None:
    assert LAYOUT.num_groups == len(BOUNDS) == 2
    assert LAYOUT.num_coordinates == SIZE
