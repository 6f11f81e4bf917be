"""The meeting of ranks: equal facts let them go on, and whatever goes wrong on one of them stops all in one way."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed

from privet.errors import ArgumentError, LedgerBusy
from privet.training.distributed.ranks import Point, Ranks, ranks_of
from tests.training.distributed.tools import launch, results

Case = Callable[[Ranks], Any]


def the_ranks() -> Ranks:
    found = ranks_of()
    assert found is not None
    return found


def sums(ranks: Ranks) -> Any:
    vector = torch.full((3,), float(ranks.rank + 1))
    ranks.meet(Point.SUMMING, {"step": 1})
    ranks.add_up_(vector)
    return vector.tolist()


def half_sum(ranks: Ranks) -> None:
    ranks.add_up_(torch.ones(3, dtype=torch.bfloat16))


def first_words(ranks: Ranks) -> Any:
    words = [ranks.bytes_of_first(word if ranks.is_first else None).decode() for word in (b"", b"secret")]
    notes = ranks.meet(Point.SUMMING, note=b"odd" * ranks.rank if ranks.rank % 2 else b"")
    return [*words, [note.decode() for note in notes]]


def other_facts(ranks: Ranks) -> None:
    ranks.meet(Point.SUMMING, {"bounds": [1.0 + (ranks.rank == 1)], "step": 3})


def other_place(ranks: Ranks) -> None:
    ranks.meet(Point.SUMMING if ranks.rank else Point.ENDING)


def one_fails(ranks: Ranks) -> None:
    with ranks.together(Point.OPENING):
        if ranks.rank == 1:
            raise LedgerBusy("The ledger is in use.")


def one_fails_with_private_words(ranks: Ranks) -> None:
    with ranks.together(Point.OPENING):
        if ranks.rank == 1:
            raise KeyError("age 41")


def all_fail(ranks: Ranks) -> None:
    with ranks.together(Point.OPENING):
        raise ArgumentError("batch_size must be positive.")


def all_fail_in_torch(ranks: Ranks) -> None:
    with ranks.together(Point.OPENING):
        torch.ones(2) @ torch.ones(3)


def another_group(ranks: Ranks) -> None:
    distributed.destroy_process_group()
    ranks.meet(Point.SUMMING)


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        sums, half_sum, first_words, other_facts, other_place, one_fails, one_fails_with_private_words, all_fail,
        all_fail_in_torch, another_group,
    )
}  # fmt: skip


def try_all(rank: int, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        try:
            found[name] = case(the_ranks())
        except Exception as error:  # noqa: BLE001 -- compared by the test
            found[name] = f"{type(error).__name__}: {error}"
    return found


@pytest.fixture(scope="module", params=[2, 4])
def tried(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return results(try_all, request.param)


def test_vectors_are_added_up_and_never_in_half_precision(tried: list[dict[str, Any]]) -> None:
    total = sum(range(1, len(tried) + 1))
    assert all(each["sums"] == [total] * 3 for each in tried)
    assert all("bfloat16" in each["half_sum"] for each in tried)


def test_rank_0_hands_out_bytes_and_notes_go_round(tried: list[dict[str, Any]]) -> None:
    notes = ["odd" * rank if rank % 2 else "" for rank in range(len(tried))]
    assert all(each["first_words"] == ["", "secret", notes] for each in tried)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("other_facts", "RanksDisagree: The ranks of this run differ in bounds: rank 0 has [1.0] and rank 1 has [2.0]"),
        (
            "other_place",
            "RanksDisagree: The ranks are at different places of the run: rank 0 is ending the run; rank 1",
        ),
        ("one_fails", "LedgerBusy: Rank 1 of {size} stopped, and so do all: The ledger is in use."),
        ("one_fails_with_private_words", "RankError: Rank 1 of {size} stopped, and so do all: it raised KeyError, and"),
        ("all_fail", "ArgumentError: batch_size must be positive."),
        ("all_fail_in_torch", "RuntimeError: inconsistent tensor size"),
        ("another_group", "LoopError: The process group changed during the run"),
    ],
)
def test_all_ranks_raise_the_same_words(tried: list[dict[str, Any]], case: str, told: str) -> None:
    assert all(each[case] == tried[0][case] for each in tried)
    assert tried[0][case].startswith(told.format(size=len(tried)))
    assert "41" not in str(tried)


def die_or_hang(rank: int, size: int, how: str) -> None:
    ranks = the_ranks()
    ranks.meet(Point.SUMMING)
    if rank == 1 and how == "dies":
        os._exit(9)
    if rank == 1 and how == "hangs":
        import time

        time.sleep(5)
        return
    ranks.meet(Point.RELEASING)


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_rank_that_dies_or_hangs_stops_the_others_with_the_same_words(how: str) -> None:
    found = launch(die_or_hang, 3, how, seconds=2.0)
    words = [found[rank]["error"] for rank in (0, 2)]
    assert words[0] == words[1]
    assert words[0].startswith("RankError: A rank of this run died or did not answer in time, while others were about")


def test_one_process_has_no_ranks() -> None:
    assert ranks_of() is None
    with pytest.raises(ArgumentError, match="init_process_group"):
        ranks_of(object())


def meshes(rank: int, size: int) -> list[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    found: list[Any] = []
    part = distributed.new_group([0, 1])
    for group in (
        init_device_mesh("cpu", (4,)), distributed.group.WORLD, "world", part,
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "tensor")),
    ):  # fmt: skip
        try:
            ranks = ranks_of(group)
            found.append(ranks.size if ranks is not None else None)
        except ArgumentError as error:
            found.append(str(error))
    return found


def test_a_group_holds_all_processes_and_a_mesh_has_one_dimension() -> None:
    found = results(meshes, 4)
    assert all(each[:2] == [4, 4] for each in found)
    assert all("group must be a process group or a device mesh" in each[2] for each in found)
    assert "has 2 of the 4 processes" in found[0][3]
    assert all("2 dimensions (replica, tensor)" in each[4] for each in found)
