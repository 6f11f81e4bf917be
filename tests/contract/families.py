"""Every family of pieces: its protocol, the registry that lists its classes, and the suite that holds instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from privet.accounting.accountants import ACCOUNTANTS, Accountant
from privet.accounting.mechanisms import Mechanism
from privet.convex.features import FeatureMap
from privet.gradients.engines.engine import Engine
from privet.gradients.norms.planner import STRATEGIES
from privet.gradients.norms.strategies import Strategy
from privet.mechanism import registry
from privet.mechanism.adaptive_noise import LearningRun
from privet.mechanism.clipping import ClippingRule, ClippingRun
from privet.mechanism.masking import MaskRun
from privet.mechanism.noise import NoiseRun
from privet.mechanism.registry import Pieces
from privet.training.launch.replay import Launch
from privet.training.optimizers import NoiseAware
from privet.training.randomness import NoiseSource
from privet.training.schedules import Schedule
from tests.contract import (
    noises,
    samplers,
    test_accountants,
    test_clipping,
    test_engines,
    test_geometries,
    test_groupings,
    test_masks,
    test_strategies,
)
from tests.contract.walking import full_name, implements
from tests.convex import test_statistics
from tests.training import test_optimizers, test_schedules
from tests.training.launch import test_replay
from tests.training.tools import network


@dataclass(frozen=True, kw_only=True)
class Family:
    """Classes that stand in for each other.

    Attributes:
        name: In words.
        protocol: What each of them offers.
        members: The classes of which the suite holds instances.
        suite: Where those are listed.
        registered: The classes that the package lists; None where nothing chooses among them by a list.
        table: Where that is.
    """

    name: str
    protocol: type[Any]
    members: frozenset[type[Any]]
    suite: str
    registered: frozenset[type[Any]] | None = None
    table: str = ""


def _of_plans(name: str, pieces: Pieces, members: Iterable[type[Any]], suite: str) -> Family:
    return Family(
        name=name,
        protocol=pieces.protocol,
        members=frozenset(members),
        suite=f"tests/contract/{suite}",
        registered=frozenset(pieces.kinds.values()),
        table="privet.mechanism.registry",
    )


PIECES_OF_PLANS = (
    _of_plans("sampler", registry.SAMPLERS, samplers.SAMPLERS, "samplers.py"),
    _of_plans("clipping", registry.CLIPPINGS, test_clipping.CLIPPINGS, "test_clipping.py"),
    _of_plans("noise", registry.NOISES, noises.NOISES, "noises.py"),
    _of_plans("geometry", registry.GEOMETRIES, noises.GEOMETRIES, "noises.py"),
    _of_plans("way to learn units", registry.LEARNINGS, test_geometries.LEARNINGS, "test_geometries.py"),
    _of_plans("grouping", registry.GROUPINGS, test_groupings.GROUPINGS, "test_groupings.py"),
    _of_plans("mask", registry.MASKS, test_masks.MASKS, "test_masks.py"),
    _of_plans("granularity", registry.GRANULARITIES, test_masks.GRANULARITIES, "test_masks.py"),
    _of_plans("rate schedule", registry.RATE_SCHEDULES, test_masks.SCHEDULES, "test_masks.py"),
)


def _types(values: Iterable[object]) -> frozenset[type[Any]]:
    return frozenset(type(value) for value in values)


def _reached(name: str, protocol: type[Any], values: Iterable[object], suite: str) -> Family:
    """A family whose classes are made by pieces: the suite holds whatever its pieces make."""
    return Family(name=name, protocol=protocol, members=_types(values), suite=f"tests/{suite}")


def _clipping_runs() -> list[object]:
    return [
        piece.start(num_groups=number, num_steps=2, expected_batch_size=1.0) for piece, number in test_clipping.MEMBERS
    ]


RUNNING_PARTS = (
    _reached(
        "clipping rule",
        ClippingRule,
        [rule for pair in test_clipping.MEMBERS for rule in test_clipping.rules_of(*pair)],
        "contract/test_clipping.py",
    ),
    _reached("clipping in a run", ClippingRun, _clipping_runs(), "contract/test_clipping.py"),
    _reached(
        "mask in a run",
        MaskRun,
        [test_masks.started(member.mask) for member in test_masks.MEMBERS],
        "contract/test_masks.py",
    ),
    _reached(
        "noise in a run",
        NoiseRun,
        [member.piece.start(noises.LAYOUT, has_mask=False) for member in noises.MEMBERS],
        "contract/noises.py",
    ),
    _reached(
        "way to learn units in a run",
        LearningRun,
        [
            piece.start(noises.LAYOUT, power=0.5, floor=0.1)
            for pieces in test_geometries.LEARNINGS.values()
            for piece in pieces
        ],
        "contract/test_geometries.py",
    ),
)
OTHERS = (
    Family(
        name="accountant",
        protocol=Accountant,
        members=frozenset(test_accountants.MEMBERS),
        suite="tests/contract/test_accountants.py",
        registered=frozenset(kind for kind in ACCOUNTANTS if isinstance(kind, type)),
        table="privet.accounting.accountants.ACCOUNTANTS",
    ),
    Family(
        name="accounted mechanism",
        protocol=Mechanism,
        members=frozenset(test_accountants.MECHANISMS),
        suite="tests/contract/test_accountants.py",
    ),
    Family(
        name="way to measure norms",
        protocol=Strategy,
        members=frozenset(test_strategies.STRATEGIES_TRIED),
        suite="tests/contract/test_strategies.py",
        registered=_types(strategy for strategies in STRATEGIES.values() for strategy in strategies),
        table="privet.gradients.norms.planner.STRATEGIES",
    ),
    Family(
        name="source of noise",
        protocol=NoiseSource,
        members=frozenset(noises.SOURCES),
        suite="tests/contract/noises.py",
    ),
    Family(
        name="launch",
        protocol=Launch,
        members=frozenset(test_replay.LAUNCHES),
        suite="tests/training/launch/test_replay.py",
    ),
    _reached("engine", Engine, test_engines.ENGINES.values(), "contract/test_engines.py"),
    _reached("family of features", FeatureMap, test_statistics.MAPS.values(), "convex/test_statistics.py"),
    _reached("learning-rate schedule", Schedule, test_schedules.SCHEDULES, "training/test_schedules.py"),
    _reached(
        "optimizer that knows the noise",
        NoiseAware,
        [make(network().parameters()) for make in test_optimizers.OWN.values()],
        "training/test_optimizers.py",
    ),
)
FAMILIES: Sequence[Family] = (*PIECES_OF_PLANS, *RUNNING_PARTS, *OTHERS)


def _is_listed(kind: type[Any], family: Family) -> bool:
    return kind in (family.members if family.registered is None else family.registered)


def faults(kinds: Iterable[type[Any]], families: Sequence[Family] = FAMILIES) -> list[str]:
    """Name each class that implements a family and is not listed, or is listed and has no member in its suite."""
    found = []
    for kind in kinds:
        fitting = [family for family in families if implements(kind, family.protocol)]
        # protocols that ask for one function of one argument are alike: a place in one of the families will do
        if fitting and not any(_is_listed(kind, family) for family in fitting):
            found.append(f"{full_name(kind)} is a {' or a '.join(map(_advice, fitting))}")
    for family in families:
        absent = sorted((family.registered or frozenset()) - family.members, key=full_name)
        found += [f"{full_name(kind)} is a {family.name} without a member in {family.suite}" for kind in absent]
    return found


def _advice(family: Family) -> str:
    if family.registered is None:
        return f"{family.name} without a member in {family.suite}"
    return f"{family.name} without a line in {family.table} and a member in {family.suite}"
