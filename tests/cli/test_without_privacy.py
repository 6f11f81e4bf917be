from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Ask

SET = [word for override in TINY for word in ("--set", override)]
# The same with a learning rate to be found.
SHORT = [word for override in TINY if "optimizer" not in override for word in ("--set", override)]


@pytest.fixture
def open_run(ask: Ask, tmp_path: Path) -> Path:
    answer = ask("train", "demo", "--without-privacy", "-o", tmp_path / "open", "-q", *SET)
    assert answer.code == 0
    assert answer.out.count("NOT PRIVATE") == 2
    return tmp_path / "open"


def test_a_run_without_privacy_is_stamped_and_shows_what_privacy_costs(
    ask: Ask, open_run: Path, tmp_path: Path
) -> None:
    assert ask("train", "demo", "-o", tmp_path / "run", "-q", *SET).code == 0
    page = tmp_path / "report.html"
    assert ask("report", tmp_path / "run", "--baseline", open_run, "-o", page).code == 0
    assert "The price of privacy" in page.read_text()
    assert ask("report", open_run, "-o", page).code == 0
    text = page.read_text()
    assert "NOT PRIVATE" in text
    assert "No privacy is promised" in text


def test_the_search_for_a_learning_rate_is_announced_before_it_begins(ask: Ask, tmp_path: Path) -> None:
    words = ("train", "demo", "--without-privacy", "-o", tmp_path / "open", *SHORT)
    first, again = ask(*words), ask(*words)
    assert first.err.index("Trying a few learning rates") < first.err.index("learning rate 0.")
    assert "Trying" not in again.err


def test_a_run_without_privacy_resumes_and_keeps_its_points(ask: Ask, open_run: Path) -> None:
    before = (open_run / "metrics.json").read_text()
    assert '"epsilon": "infinity"' in before
    again = ask("train", "demo", "--without-privacy", "-o", open_run, "-q", *SET)
    assert again.code == 0
    assert "was finished before, and no step was added" in again.err
    assert (open_run / "metrics.json").read_text() == before


def test_a_limit_on_epsilon_refuses_a_run_without_privacy(ask: Ask, tmp_path: Path) -> None:
    answer = ask("train", "demo", "--without-privacy", "--max-epsilon", "8", "-o", tmp_path / "open", "-q", *SET)
    assert answer.code == 3
    assert not (tmp_path / "open").exists()


def test_rebuilt_pictures_are_drawn_kept_and_shown(ask: Ask, open_run: Path) -> None:
    answer = ask("evaluate", open_run, "--reconstruction")
    assert answer.code == 0
    assert "Pictures rebuilt from gradients" in answer.out
    assert max(len(line) for line in answer.out.splitlines()) <= 80
    assert (open_run / "reconstruction.png").read_bytes().startswith(b"\x89PNG")
    assert ask("report", open_run).code == 0
    assert "Pictures rebuilt from gradients" in (open_run / "report.html").read_text()
