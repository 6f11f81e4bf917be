"""Models sharded by FSDP2 are trained as whole ones are, by one process: the same batches, sums, noise and weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from privet.errors import CheckpointError
from privet.training.shard_files import INDEX_NAME, read_index, write_index, write_shard
from tests.training.distributed.sharded_cases import CASES, all_cases, apart, trained
from tests.training.distributed.sharded_checks import MUTANTS, measured, parted, peak, peak_of_one
from tests.training.distributed.tools import results

_ON_FOUR = ["plain", "tied", "rare"]


@pytest.fixture(scope="module")
def whole() -> dict[str, list[float]]:
    return {name: trained(case) for name, case in CASES.items()}


@pytest.mark.parametrize(("size", "names"), [(2, list(CASES)), (4, _ON_FOUR)])
def test_a_sharded_model_ends_with_the_weights_of_one_process(
    size: int, names: list[str], whole: dict[str, list[float]]
) -> None:
    found = results(all_cases, size, names)
    assert all(each == found[0] for each in found)
    far = {name: apart(found[0][name], whole[name]) for name in names}
    assert {name: value for name, value in far.items() if not value <= CASES[name].tolerance} == {}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    one, other = results(measured, 2)
    assert one["refusals"].keys() == other["refusals"].keys()
    return dict(one)


def test_parameters_are_gathered_once_forward_and_once_backward_in_a_physical_batch(found: dict[str, Any]) -> None:
    *_, last = found["gathers"]  # the first ones are put on trial, which takes more backward passes
    # FSDP2 keeps what is outside of the blocks from the forward pass to the backward pass
    assert last == {"": 1, "blocks.0": 2, "blocks.1": 2, "blocks.2": 2}


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_code_is_noticed(name: str, found: dict[str, Any]) -> None:
    assert found["mutants"][name] > 1e-4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("half", "UnsupportedModel: .*reduce_dtype=torch.bfloat16"),
        ("columns", "UnsupportedModel: Parameter 'head.weight' is placed as .*Shard"),
        ("mask", "PlanError: RandomMask chooses coordinates of the whole model"),
        ("noise", "PlanError: L2Laplace draws its noise for the whole sum"),
        ("no rule", "UnsupportedModel: The model is sharded, and no rule"),
        ("engine", "PlanError: RunningFunctional forms the gradient of the whole model"),
        ("unequal physical batches", "RanksDisagree: .* in the physical_batch_size: rank 0 has 3"),
        ("one whole model", 'RanksDisagree: .* in the model, sharded or whole: rank 0 has "sharded"'),
        ("launch", "PlanError: Compiled records physical batches"),
    ],
)
def test_what_cannot_be_sharded_is_refused_in_words(name: str, words: str, found: dict[str, Any]) -> None:
    assert re.match(words, found["refusals"][name]), found["refusals"][name]


def test_four_ranks_need_at_most_a_third_of_the_memory_of_one() -> None:
    assert max(results(peak_of_one, 4)) <= 0.35 * peak()


def test_a_run_goes_on_sharded_over_another_number_of_ranks_or_whole(tmp_path: Path) -> None:
    _, left = results(parted, 4, str(tmp_path))[3]
    for size in (2, 1, 2):
        found = results(parted, size, str(tmp_path))[0] if size > 1 else parted(0, 1, str(tmp_path))
        assert found[0] == left
        left = found[1]
    index = json.loads(json.loads((tmp_path / "checkpoint.index.json").read_text())["content"])
    shards = {shard["file"] for shard in index["shards"]}
    assert len(shards) == 2
    files = {file.name for file in tmp_path.glob("checkpoint-*.safetensors")}
    assert shards < files  # those of the generation before it are kept
    assert len(files) == 4


def test_a_damaged_or_missing_shard_makes_the_checkpoint_before_it_the_newest(tmp_path: Path) -> None:
    body = json.dumps({"head": {"seq": 3}})
    for number in (1.0, 2.0):
        write_index(
            tmp_path, body, [write_shard(tmp_path, str(number), {"a": torch.full((3,), number)}, rank=0, size=1)]
        )
    path = tmp_path / INDEX_NAME
    assert read_index(path)[1]["a"].tolist() == [2.0] * 3
    newest = tmp_path / "checkpoint-2.0-0-of-1.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="not what was written"):
        read_index(path)
    assert read_index(path.with_name(path.name + ".1"))[1]["a"].tolist() == [1.0] * 3
