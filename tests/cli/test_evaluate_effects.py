from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from privet.cli.evaluate import _measure_row
from privet.runs.measures import Measure
from tests.cli.conftest import Ask


@pytest.fixture
def own_run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may add files to."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def test_classes_and_accuracy_under_attack_are_shown_and_kept(ask: Ask, own_run: Path) -> None:
    found = ask("evaluate", own_run, "--groups", "", "--robustness", "--device", "cpu")
    assert found.code == 0
    for text in ("By class", "Ankle boot", "Gaps between groups", "accuracy, by class", "Accuracy under attack"):
        assert text in found.out
    assert (own_run / "fairness.json").exists()
    assert (own_run / "robustness.json").exists()


def test_figures_as_json_hold_groups_and_radii(ask: Ask, own_run: Path) -> None:
    found = json.loads(ask("evaluate", own_run, "--groups", "", "--robustness", "--device", "cpu", "--json").out)
    assert len(found["fairness"]["attributes"][0]["groups"]) == 10
    assert found["robustness"]["report"]["points"][0]["radius"] == 0.0


def test_classes_are_compared_without_the_package_that_groups_need(
    ask: Ask, own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fairlearn", "fairlearn.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    assert ask("evaluate", own_run, "--groups", "class", "--device", "cpu").code == 0


def test_a_figure_that_is_rounded_to_zero_has_no_minus() -> None:
    measure = Measure(
        name="cross entropy", value=0.002, low=-0.00001, high=0.004, interval="95 % normal", num_examples=1000
    )
    assert _measure_row(measure) == ["cross entropy", "0.0020", "0.0000 to 0.0040 (normal)", "1,000"]


def test_impossible_requests_are_refused_in_one_line(ask: Ask, own_run: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("age,sex\n3,Male\n")
    groups = ask("evaluate", own_run, "--groups", "sex", "--device", "cpu")
    assert groups.code == 1
    assert "not rows of a table" in groups.err
    table = ask("evaluate", own_run, "--data", own, "--device", "cpu")
    assert table.code == 1
    assert "adult" in table.err
    both = ask("evaluate", own_run, "--membership", "--data", own, "--device", "cpu")
    assert both.code == 2
    assert "cannot use --data" in both.err
    assert ask("evaluate", own_run, "--data", tmp_path / "none.csv").code == 2


def test_the_long_tail_of_public_pictures_is_drawn_and_shown_in_the_report(ask: Ask, own_run: Path) -> None:
    found = ask("evaluate", own_run, "--long-tail", "--device", "cpu", "--json")
    assert found.code == 0, found.err
    tail = json.loads(found.out)["long_tail"]
    assert len(tail["easiest_losses"]) == len(tail["hardest_losses"]) == 10
    assert max(tail["easiest_losses"]) < min(tail["hardest_losses"])
    assert (own_run / "long_tail.png").read_bytes().startswith(b"\x89PNG")
    assert ask("report", own_run).code == 0
    page = (own_run / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "records of private data are never shown" in page


def test_private_pictures_are_neither_drawn_nor_shown(ask: Ask, own_run: Path) -> None:
    recipe = own_run / "recipe.toml"
    private = "data_is_public = false\n" + recipe.read_text().replace("evaluate_every = 2\n", "")
    recipe.write_text(private)
    found = ask("evaluate", own_run, "--long-tail", "--device", "cpu")
    assert found.code == 2
    assert "public test data only" in " ".join(found.err.split())
    assert not (own_run / "long_tail.png").exists()
    (own_run / "long_tail.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    ask("report", own_run)
    assert "data:image/png" not in (own_run / "report.html").read_text()


def test_a_file_that_is_no_picture_does_not_get_into_the_report(ask: Ask, own_run: Path) -> None:
    (own_run / "long_tail.png").write_bytes(b"<script>")
    found = ask("report", own_run)
    assert found.code == 1
    assert "not a picture" in found.err


def test_evaluation_shows_confidence_and_attacks_beside_their_limits(ask: Ask, own_run: Path) -> None:
    found = ask("evaluate", own_run, "--calibration", "--membership", "--bins", "10", "--device", "cpu")
    assert found.code == 0
    assert "expected calibration error, 10 bins" in found.out
    assert max(len(line) for line in found.out.splitlines()) <= 80
    assert "limits of the guarantee" in found.out
    assert "EXCEEDED" not in found.out


def test_evaluation_gives_the_same_figures_as_json(ask: Ask, own_run: Path) -> None:
    values = json.loads(ask("evaluate", own_run, "--calibration", "--membership", "--equal-mass", "--json").out)
    assert values["calibration"]["reliability"]["binning"] == "equal mass"
    assert len(values["membership"]) == 4  # two attacks, each also on a network that was never trained
    assert values["measures"][0]["name"] == "accuracy"


def test_evaluation_keeps_nothing_unless_asked(ask: Ask, own_run: Path) -> None:
    before = sorted(path.name for path in own_run.iterdir())
    ask("evaluate", own_run)
    assert sorted(path.name for path in own_run.iterdir()) == before
