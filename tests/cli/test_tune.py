"""``privet tune``: one total before and after, a folder that goes on, and refusals before anything is charged."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Ask

SMALL = (
    "--set",
    "privacy.sampling.epochs=",
    "--set",
    "privacy.sampling.steps=1",
    "--set",
    "privacy.sampling.batch_size=64",
)
TINY = (*SMALL, "--set", "training.evaluate_every=", "--set", "training.device=cpu")
RATE = ("--vary", "training.optimizer.learning_rate=0.5:8:log")


def test_a_search_states_one_total_and_goes_on_where_it_was(ask: Ask, tmp_path: Path) -> None:
    folder = str(tmp_path / "t")
    found = ask("tune", "demo", "--trials", "1", *RATE, *TINY, "-o", folder)
    assert found.code == 0, found.err
    assert found.out.count("add-or-remove one record") == 2
    assert "training.optimizer.learning_rate" in found.out
    again = ask("tune", "demo", "--trials", "1", *RATE, *TINY, "-o", folder, "--json")
    assert again.code == 0, again.err
    told = json.loads(again.out)
    assert told["guarantee"]["epsilon"] <= 3.0
    assert (Path(told["folder"]) / "statement.txt").exists()
    other = ask("tune", "demo", "--trials", "2", *RATE, *TINY, "-o", folder)
    assert other.code == 3
    assert "another search" in other.err


def test_a_search_without_settings_or_with_charged_ones_is_refused(ask: Ask, tmp_path: Path) -> None:
    folder = ("-o", str(tmp_path / "t"))
    assert "--vary" in ask("tune", "demo", "--trials", "3", *folder).err
    charged = ask("tune", "demo", "--trials", "3", "--vary", "privacy.noise.noise_multiplier=1,2", *folder)
    assert charged.code == 2
    assert "cannot vary" in charged.err
    assert not (tmp_path / "t").exists()
