"""What a run writes about its steps: public or accounted values, unless it is told otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from privet.errors import CheckpointError
from privet.runs import runner
from privet.runs.recipes.recipe import Recipe
from privet.runs.run_files import RunFiles
from privet.runs.run_logs import JsonLines
from privet.training.tracking.trackers import TensorBoard

PRIVATE = ("data_is_public=false", "training.evaluate_every=")
MASK = "privacy.mask={kind='random', schedule={kind='constant', value=0.5}}"


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in RunFiles(folder=folder).steps.read_text().splitlines()]


def test_every_run_keeps_its_steps_and_nothing_private_of_them(tiny: Callable[..., Recipe], run_folder: Path) -> None:
    runner.train(tiny(*PRIVATE, "training.schedule={kind='linear'}"), run_folder)
    found = rows(run_folder)
    assert [row["step"] for row in found] == [1, 2, 3, 4, 5, 6]
    assert {key for row in found for key in row} == {"step", "epsilon", "learning_rate", "masked_share"}
    epsilons, rates = ([row[key] for row in found] for key in ("epsilon", "learning_rate"))
    assert epsilons == sorted(epsilons)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] < 0.5


def test_a_resumed_run_goes_on_with_its_log(tiny: Callable[..., Recipe], run_folder: Path) -> None:
    runner.train(tiny(), run_folder, should_stop=lambda: True)
    assert [row["step"] for row in rows(run_folder)] == [1]
    with RunFiles(folder=run_folder).steps.open("a") as file:
        file.write('{"step": 2, "eps')  # a process that was killed while it wrote
    runner.train(tiny(), run_folder)
    assert [row["step"] for row in rows(run_folder)] == [1, 2, 3, 4, 5, 6]


def test_lines_refuse_what_json_cannot_say_and_tell_a_full_disk(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "steps.jsonl")
    lines.append({"value": float("nan")})
    lines.close()
    assert json.loads((tmp_path / "steps.jsonl").read_text()) == {"value": None}
    with pytest.raises(CheckpointError, match="Could not write"):
        JsonLines(tmp_path / "absent" / "steps.jsonl").append({"value": 1})


def events(folder: Path) -> list[tuple[str, int, float, float]]:
    """Read (tag, step, value, time) back with TensorBoard's own reader."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    found = []
    for path in sorted(folder.iterdir()):
        for event in loader.RawEventFileLoader(str(path)).Load():
            read = pytest.importorskip("tensorboard.compat.proto.event_pb2").Event.FromString(event)
            found += [(value.tag, read.step, value.simple_value, read.wall_time) for value in read.summary.value]
    return found


class Clock:
    """A clock that tells how many examples a step had, as a real one does."""

    def __init__(self) -> None:
        self.now = 1_000.25

    def __call__(self) -> float:
        self.now += 17.125
        return self.now


def test_tensorboard_shows_of_a_private_run_what_is_public(tiny: Callable[..., Recipe], run_folder: Path) -> None:
    pytest.importorskip("tensorboard")
    log = TensorBoard(run_folder / "tensorboard", clock=Clock())
    runner.train(tiny(*PRIVATE), run_folder, progress=log)
    found = events(run_folder / "tensorboard")
    assert {tag for tag, *_ in found} == {"privacy/epsilon", "training/learning_rate", "training/masked_share"}
    assert [step for tag, step, *_ in found if tag == "privacy/epsilon"] == [1, 2, 3, 4, 5, 6]
    # Times are counted in steps: real ones would tell how large each batch was.
    times = [time for tag, _, _, time in found if tag == "privacy/epsilon"]
    assert [later - earlier for earlier, later in pairwise(times)] == 5 * [1.0]
    for row, (_, _, value, _) in zip(
        rows(run_folder), (one for one in found if one[0] == "privacy/epsilon"), strict=True
    ):
        assert value == pytest.approx(row["epsilon"])


@pytest.mark.parametrize("reason", ["public data", "asked for"])
def test_tensorboard_shows_losses_only_where_the_run_may(
    tiny: Callable[..., Recipe], run_folder: Path, reason: str
) -> None:
    pytest.importorskip("tensorboard")
    is_public = reason == "public data"
    log = TensorBoard(run_folder / "tensorboard")
    runner.train(tiny(*(() if is_public else PRIVATE)), run_folder, progress=log, unprotected=not is_public)
    tags = {tag for tag, *_ in events(run_folder / "tensorboard")}
    assert "unprotected/mean_loss" in tags
    assert ("unprotected/test_accuracy" in tags) is is_public


def test_masks_are_tracked(tiny: Callable[..., Recipe], run_folder: Path) -> None:
    runner.train(tiny(MASK), run_folder)
    assert [row["masked_share"] for row in rows(run_folder)] == pytest.approx(6 * [0.5], abs=0.01)
