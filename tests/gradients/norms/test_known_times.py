"""Times of strategies are kept from process to process: shapes and times, never data or the size of a batch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from privet.durable import cache_folder
from privet.gradients.forms.per_example import Outer, PerExample
from privet.gradients.norms.known_times import KnownTimes
from privet.gradients.norms.planner import Planner
from privet.gradients.norms.strategies import Gram, NormOnly, Squares, Store, Strategy


@dataclass(frozen=True)
class Watched:
    """The Gram strategy, which counts its calls and may fail."""

    calls: list[int] = field(default_factory=list, compare=False, repr=False)
    is_broken: bool = field(default=False, compare=False, repr=False)
    name: str = "watched"

    def fits(self, part: PerExample) -> bool:
        return True

    def measure(self, part: PerExample) -> tuple[Squares, PerExample]:
        self.calls.append(len(part))
        if self.is_broken:
            raise RuntimeError("no such luck")
        return Gram().measure(part)


def outer(batch: int = 6, width: int = 3) -> Outer:
    generator = torch.Generator().manual_seed(0)
    return Outer(
        inputs=torch.randn(batch, 5, 7, generator=generator),
        out_grads=torch.randn(batch, 5, width, generator=generator),
    )


def planner(file: Path, *strategies: Strategy) -> Planner:
    return Planner(strategies={Outer: strategies}, known=KnownTimes(file=file))


def settled(made: Planner, part: Outer) -> Strategy:
    choice = made.choose(part)
    made.settle([choice])
    return choice.strategy


def test_a_later_process_does_not_time_again(tmp_path: Path) -> None:
    first, later = Watched(), Watched()
    chosen = settled(planner(tmp_path / "times.json", first, Store()), outer())
    again = settled(planner(tmp_path / "times.json", later, Store()), outer())
    assert repr(again) == repr(chosen)
    assert len(later.calls) <= 1 < len(first.calls)


def test_what_was_kept_scales_with_the_batch(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    settled(planner(file, Watched(), Store()), outer(7))
    (found,) = planner(file, Watched(), Store()).choose(outer(9)).tried[1:]
    assert found.strategy == Store()
    assert found.kept_bytes == pytest.approx(9 * 7 * 3 * 4, rel=0.05)


def test_other_candidates_or_shapes_are_timed(tmp_path: Path) -> None:
    file, other = tmp_path / "times.json", Watched()
    settled(planner(file, Watched(), Store()), outer())
    planner(file, other, NormOnly()).choose(outer())
    assert len(other.calls) > 1
    another = Watched()
    planner(file, another, Store()).choose(outer(width=4))
    assert len(another.calls) > 1


def test_a_strategy_that_fails_now_is_found_out(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    settled(planner(file, Watched(), Store()), outer())
    rows = json.loads(file.read_text(encoding="utf-8"))
    ((key, ((name, _, kept), second)),) = rows.items()
    file.write_text(json.dumps({key: [[name, 0.0, kept], second]}), encoding="utf-8")
    assert settled(planner(file, Watched(is_broken=True), Store()), outer()) == Store()


@pytest.mark.parametrize("text", ["", "[1", '{"a": [["x", "y", 1.0]]}', '{"a": [["x", -1.0, 1.0]]}', "[]"])
def test_a_damaged_file_is_no_error_and_is_written_anew(tmp_path: Path, text: str) -> None:
    file, watched = tmp_path / "times.json", Watched()
    file.write_text(text, encoding="utf-8")
    settled(planner(file, watched, Store()), outer())
    assert len(watched.calls) > 1
    assert len(json.loads(file.read_text(encoding="utf-8"))) == 1


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "no folder").write_text("", encoding="utf-8")
    settled(planner(tmp_path / "no folder" / "times.json", Watched(), Store()), outer())


def test_neither_data_nor_the_size_of_a_batch_is_kept(tmp_path: Path) -> None:
    found = []
    for number, batch in enumerate((30, 34)):
        file = tmp_path / f"{number}.json"
        settled(planner(file, Watched(), Store()), outer(batch))
        found.append(json.loads(file.read_text(encoding="utf-8")))
    (one, first), (other, second) = (next(iter(rows.items())) for rows in found)
    assert one == other
    assert [(name, kept) for name, _, kept in first] == [(name, kept) for name, _, kept in second]


def test_a_processor_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVET_CACHE", str(tmp_path))
    assert KnownTimes.of(torch.device("cpu")) is None
    assert cache_folder() == tmp_path
    monkeypatch.delenv("PRIVET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert cache_folder() == tmp_path / "other" / "privet"
