"""There is one way to release: charge, read, add noise, compare, hand out. Nothing in the package goes round it."""

from __future__ import annotations

import ast
import functools
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import privet
from privet.accounting.ledger import Ledger, VoidReason
from privet.errors import LedgerMismatch, LoopError
from privet.mechanism.events import gaussian_event
from privet.training.randomness import Streams
from privet.training.release import BoundedTensors, ChargedRelease, Noisy, Part

PACKAGE = Path(privet.__file__).parent
EVENT = gaussian_event(bounds=(1.0,), stds=(2.0,))
# These write rows, or write them again after a roll-back, or pass a charge on to the ledger; they release nothing. A
# search charges whole runs, whose own sessions add the noise.
KEEPERS = ("accounting/", "training/distributed/shared_ledger.py", "runs/tuning.py")


@functools.cache
def functions() -> list[tuple[str, ast.FunctionDef]]:
    return [
        (f"{file.relative_to(PACKAGE)}:{node.name}", node)
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]


def calls_of(function: ast.FunctionDef) -> list[tuple[str, str]]:
    """The methods that a function calls, in the order of the text, each with its object."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    found.sort(key=lambda call: (call.lineno, call.col_offset))
    return [(ast.unparse(call.func.value), call.func.attr) for call in found if isinstance(call.func, ast.Attribute)]


def is_ledger(name: str) -> bool:
    return name.split(".")[-1].lstrip("_") in ("ledger", "round_ledger")


def test_one_function_orders_the_charge_the_noise_and_the_comparison() -> None:
    charging, comparing = set(), set()
    for name, function in functions():
        if name.startswith(KEEPERS):
            continue
        verbs = [verb for owner, verb in calls_of(function) if is_ledger(owner)]
        charging |= {name} if "reserve" in verbs else set()
        comparing |= {name} if {"check", "check_within"} & set(verbs) else set()
    assert charging == comparing == {"training/release.py:_in_order"}


def test_that_function_charges_before_the_sum_adds_noise_after_it_and_compares_last() -> None:
    (course,) = [function for name, function in functions() if name == "training/release.py:_in_order"]
    steps = [verb for owner, verb in calls_of(course) if verb in ("reserve", "add_noise", "check", "check_within")]
    assert steps == ["reserve", "add_noise", "check", "check_within"]
    (reading,) = [node.lineno for node in ast.walk(course) if isinstance(node, ast.Yield)]
    (charge,) = [
        node.lineno for node in ast.walk(course) if isinstance(node, ast.Call) and "reserve" in ast.unparse(node)
    ]
    (noise,) = [
        node.lineno for node in ast.walk(course) if isinstance(node, ast.Call) and "add_noise" in ast.unparse(node)
    ]
    assert charge < reading < noise


def test_noise_pieces_are_asked_for_noise_by_the_release_and_by_recordings_of_it_alone() -> None:
    adding = {
        name
        for name, function in functions()
        for owner, verb in calls_of(function)
        if verb == "add" and owner.split(".")[-1] in ("noise", "piece")
    }
    allowed = ("training/release.py:", "training/updates.py:", "mechanism/")
    assert {name for name in adding if not name.startswith(allowed)} == set()
    assert any(name.startswith("training/release.py:") for name in adding)


def test_one_function_writes_the_gradients_of_parameters() -> None:
    writers = set()
    for name, function in functions():
        for node in ast.walk(function):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            clears = isinstance(getattr(node, "value", None), ast.Constant) and node.value.value is None  # type: ignore[attr-defined]
            if not clears and any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in targets):
                writers.add(name)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and "'grad'" in ast.unparse(node):
                writers.add(name)
    assert writers == {"mechanism/sums.py:write_gradients"}


def sums(std: float = 2.0) -> BoundedTensors:
    source = Streams.new(torch.device("cpu"), seed=1).noise
    return BoundedTensors(parts=[Part(values=torch.zeros(4), std=std)], bound=1.0, source=source)


def ledger() -> Ledger:
    return Ledger.in_memory("0" * 64)


def test_the_round_is_charged_when_the_release_exists_and_used_up_when_its_noise_is_compared() -> None:
    charges = ledger()
    release: ChargedRelease[tuple[torch.Tensor, ...]] = ChargedRelease(charges, EVENT)
    assert (charges.charged_rounds, charges.available) == (1, 1)
    noisy = release.add_noise_and_compare(sums())
    assert isinstance(noisy, Noisy)
    assert bool(noisy.value[0].any())
    assert (charges.charged_rounds, charges.available) == (1, 0)
    with pytest.raises(LoopError, match="is over"):
        release.add_noise_and_compare(sums())


def test_a_sum_with_less_noise_than_was_charged_is_refused_and_charged_on_top() -> None:
    charges = ledger()
    release: ChargedRelease[tuple[torch.Tensor, ...]] = ChargedRelease(charges, EVENT)
    with pytest.raises(LedgerMismatch, match="must not be released"):
        release.add_noise_and_compare(sums(std=1.0))
    assert charges.charged_rounds == 2


class Failing:
    """A sum whose noise cannot be added."""

    def add_noise(self) -> Noisy[None]:
        raise RuntimeError("no noise today")


@pytest.mark.parametrize("fails_in", ["reading", "noise"])
def test_a_release_that_fails_leaves_its_round_charged_and_void(fails_in: str) -> None:
    charges = ledger()
    with suppress(RuntimeError), ChargedRelease[None](charges, EVENT) as release:
        if fails_in == "reading":
            raise RuntimeError("no data today")
        release.add_noise_and_compare(Failing())
        pytest.fail("nothing failed")
    assert (charges.charged_rounds, charges.available) == (1, 0)


def test_a_release_that_is_given_up_or_left_unfinished_is_void_and_over() -> None:
    charges = ledger()
    with ChargedRelease[None](charges, EVENT, num_charged=2) as release:
        pass
    assert (charges.charged_rounds, charges.available) == (2, 1)
    again = ChargedRelease[None](charges, EVENT, num_charged=0)
    again.give_up(VoidReason.WORKER_LOST)
    again.give_up(VoidReason.WORKER_LOST)
    assert (charges.charged_rounds, charges.available) == (2, 0)
    with pytest.raises(LoopError, match="is over"):
        release.add_noise_and_compare(Failing())


def test_a_further_release_of_a_round_in_use_charges_nothing_and_is_compared_all_the_same() -> None:
    charges = ledger()
    ChargedRelease[tuple[torch.Tensor, ...]](charges, EVENT).add_noise_and_compare(sums())
    ChargedRelease[tuple[torch.Tensor, ...]](charges, EVENT, num_charged=0, num_used=0).add_noise_and_compare(sums())
    assert charges.charged_rounds == 1
    with pytest.raises(LedgerMismatch, match="No round of this kind"):
        ChargedRelease[tuple[torch.Tensor, ...]](charges, EVENT, num_charged=0, num_used=0).add_noise_and_compare(
            sums(std=1.0)
        )


def test_the_loop_is_one_file_of_at_most_300_lines() -> None:
    lines = (PACKAGE / "training" / "session.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 300
    assert {"class Session(RunAccess):", "class Step:"} <= set(lines)
