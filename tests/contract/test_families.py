"""No piece can be forgotten: what implements a protocol stands in the registry and in the suite of its family."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

import privet
from privet.mechanism import codec
from privet.mechanism.ablations import Unclipped
from privet.mechanism.clipping import Threshold
from privet.mechanism.events import _KIND_OF_CLASS
from privet.mechanism.registry import Pieces
from privet.mechanism.sampling_defaults import SamplingDefaults
from privet.mechanism.sensitivity import Norm, Sensitivity
from tests.contract import noises, test_accountants, test_clipped_sums, test_noise
from tests.contract.families import FAMILIES, PIECES_OF_PLANS, Family, faults
from tests.contract.walking import classes_of, full_name, implements, package_modules
from tests.mechanism import test_laplace


@pytest.fixture(scope="module")
def kinds() -> list[type[Any]]:
    return classes_of(package_modules())


def test_every_piece_of_the_package_is_registered_and_stands_in_its_suite(kinds: list[type[Any]]) -> None:
    assert faults(kinds) == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_a_family_lists_implements_its_protocol(family: Family, kinds: list[type[Any]]) -> None:
    listed = family.members if family.registered is None else family.registered
    assert listed
    assert [full_name(kind) for kind in listed if not implements(kind, family.protocol)] == []
    assert {full_name(kind) for kind in listed} <= {full_name(kind) for kind in kinds}


@pytest.mark.parametrize("family", PIECES_OF_PLANS, ids=lambda family: family.name)
def test_pieces_of_plans_are_frozen_and_take_their_fields_by_name(family: Family) -> None:
    for kind in family.members:
        assert dataclasses.is_dataclass(kind)
        assert kind.__dataclass_params__.frozen, full_name(kind)  # type: ignore[attr-defined]
        assert all(field.kw_only for field in dataclasses.fields(kind)), full_name(kind)


def test_files_know_every_registered_piece_by_one_name() -> None:
    known = {name: kind for family in (codec.SAMPLING, codec.CLIPPING, codec.GROUPING) for name, kind in family.items()}
    known |= {f"noise {name}": kind for name, kind in codec.NOISE.items()}
    known |= {f"mask {name}": kind for name, kind in codec.MASK.items()}
    registered = [kind for family in PIECES_OF_PLANS for kind in family.registered or ()]
    assert sorted(map(full_name, known.values())) == sorted(map(full_name, registered))


@pytest.mark.parametrize("family", PIECES_OF_PLANS, ids=lambda family: family.name)
def test_every_piece_has_a_public_name_and_stands_in_a_page(family: Family) -> None:
    public = [importlib.import_module(f"privet.{found.name}") for found in pkgutil.iter_modules(privet.__path__)]
    named = {value for module in public for value in vars(module).values() if inspect.isclass(value)}
    pages = " ".join(page.read_text(encoding="utf-8") for page in sorted(Path("docs").glob("*.md")))
    for kind in family.registered or ():
        assert kind in named, f"{full_name(kind)} is in no public module of privet"
        assert re.search(rf"\b{kind.__name__}\b", pages), f"{full_name(kind)} is named in no page of docs/"


def test_every_noise_has_the_laws_of_one_shape_beside_those_of_all() -> None:
    for kind, members in noises.NOISES.items():
        for member in members:
            is_normal = isinstance(member.piece.event(), GaussianDpEvent)
            is_open = member.piece.family is None and isinstance(member.piece.event(), NonPrivateDpEvent)
            assert is_open == (member.piece.not_private_because is not None)
            is_exponential = kind in {type(piece) for piece in test_laplace.PIECES.values()}
            assert [is_normal, is_open, is_exponential].count(True) == 1, full_name(kind)
            assert is_normal == (kind in test_noise.GAUSSIANS), full_name(kind)


def test_every_private_clipping_piece_is_tried_in_every_engine() -> None:
    clipping = next(family for family in FAMILIES if family.name == "clipping")
    tried = {type(piece) for piece, _ in test_clipped_sums.RULES.values()}
    assert tried == {kind for kind in clipping.members if kind is not Unclipped}


def test_every_kind_of_event_is_accounted_in_the_suite() -> None:
    assert set(test_accountants.EVENTS) == set(_KIND_OF_CLASS)


# --------------------------------------------------------------------------------- the laws above can fail, and by name


class Lax(Threshold):
    """A clipping piece that lets ten times its bound through."""

    def factors(self, norms: Any, bounds: tuple[float, ...]) -> Any:
        return 10 * super().factors(norms, bounds)


class LaxRule:
    def __init__(self) -> None:
        self.groups = 1

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(bounds=(1.0,))

    def factors(self, lengths: Any) -> Any:
        return lengths


class Quiet:
    norm_kind = Norm.L2
    noise_multiplier: float
    family: Any
    is_spherical = is_recordable = is_by_coordinate = is_fixed = is_independent = True
    not_private_because: str | None

    def event(self) -> Any: ...

    scale = 1.0

    def weights(self, steps: int) -> Any: ...

    def refusal(self, sampling: Any) -> None: ...

    def with_multiplier(self, noise_multiplier: float) -> Quiet:
        return self

    def add(self, clipped: Any, source: Any) -> Any: ...

    def start(self, layout: Any, *, has_mask: bool) -> Any: ...

    def in_clipped_units(self, flat: Any, layout: Any) -> Any: ...


class Favourites(SamplingDefaults):
    num_rounds: int
    steps_per_round: int
    steps_per_epoch: int
    inclusion: float
    expected_batch_size: float
    assumptions = ()

    def described(self, num_steps: int) -> str: ...

    def refusal(self, adjacency: Any) -> None: ...

    def round_batches(self, num_examples: int, rng: Any) -> Iterator[Any]:
        yield from ()

    def amplify(self, event: Any) -> Any: ...


class Everyone:
    is_flat = True

    def groups_of(self, names: Any) -> tuple[int, ...]:
        return ()


class Peeking:
    is_whole = is_public = False
    public_seed = 0
    final_rate = 0.5

    def steps_per_draw(self, steps_per_epoch: int) -> int | None: ...

    def start(self, *, layout: Any, num_steps: int, steps_per_epoch: int) -> Any: ...


class Rising:
    def rate(self, progress: float) -> float:
        return 2.0


class Optimist:
    name = "optimist"

    def supports(self, event: Any, adjacency: Any) -> None: ...

    def curve(self, event: Any, adjacency: Any) -> Any: ...

    def epsilon(self, event: Any, *, delta: float, adjacency: Any) -> float:
        return 0.0

    def delta(self, event: Any, *, epsilon: float, adjacency: Any) -> float:
        return 0.0


INVENTED: dict[type[Any], str] = {
    Lax: "clipping",
    LaxRule: "clipping rule",
    Quiet: "noise",
    Favourites: "sampler",
    Everyone: "grouping",
    Peeking: "mask",
    Rising: "rate schedule",
    Optimist: "accountant",
}


@pytest.mark.parametrize("invented", INVENTED, ids=lambda kind: kind.__name__)
def test_a_class_that_is_put_into_a_module_and_nowhere_else_is_found_by_name(
    invented: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("privet.mechanism.invented")
    monkeypatch.setattr(invented, "__module__", module.__name__)
    setattr(module, invented.__name__, invented)
    found = faults(classes_of([module]))
    assert len(found) == 1
    assert found[0].startswith(f"privet.mechanism.invented.{invented.__qualname__} is a")
    assert f" {INVENTED[invented]} without" in found[0]


def test_a_class_that_is_registered_without_a_member_is_found_by_name() -> None:
    family = PIECES_OF_PLANS[1]
    assert family.registered is not None
    longer = dataclasses.replace(family, registered=family.registered | {Lax})
    assert faults([Lax], [longer]) == [
        f"{full_name(Lax)} is a clipping without a member in tests/contract/test_clipping.py"
    ]
    complete = dataclasses.replace(longer, members=family.members | {Lax})
    assert faults([Lax], [complete]) == []


def test_a_protocol_itself_and_what_a_module_imports_are_no_pieces() -> None:
    module = ModuleType("privet.mechanism.invented")
    vars(module).update(Threshold=Threshold, Protocol=PIECES_OF_PLANS[0].protocol, Pieces=Pieces)
    assert classes_of([module]) == []
