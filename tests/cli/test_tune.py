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


VISITS = """
dataset = "own_visits"
model = "table_linear"

[table]
train = "visits.csv"
train_size = 40
person = "patient"
label = { name = "ill", categories = ["no", "yes"] }
columns = [{ name = "age", low = 20.0, high = 100.0 }]

[privacy]
epsilon = 3.0
delta = 1e-3
adjacency = "add_or_remove"
unit = "person"
clipping = { kind = "threshold", norm = 1.0 }
noise = { kind = "gaussian" }

[privacy.sampling]
kind = "sampled_persons"
max_records = 4
sampling = { kind = "poisson", dataset_size = 10, batch_size = 5, steps = 2 }

[training]
device = "cpu"
optimizer = { kind = "sgd", learning_rate = 0.5 }
"""


def visits(places: range) -> str:
    rows = (f"p{place // 4},{20 + place % 70},{('no', 'yes')[place % 2]}\n" for place in places)
    return "patient,age,ill\n" + "".join(rows)


def test_a_search_over_records_of_persons_compares_on_public_records_that_are_not_its_own(
    ask: Ask, tmp_path: Path
) -> None:
    (tmp_path / "visits.csv").write_text(visits(range(40)))
    (tmp_path / "same.csv").write_text(visits(range(40)))
    (tmp_path / "public.csv").write_text(visits(range(100, 160)))
    recipe, folder = tmp_path / "visits.toml", tmp_path / "t"
    recipe.write_text(VISITS)
    job = ("tune", recipe, "--trials", "1", *RATE, "-o", folder)
    assert "compared on public data" in ask(*job).err
    for own in ("visits.csv", "same.csv"):
        assert "records that are trained on" in ask(*job, "--compare-on", tmp_path / own).err
    assert not folder.exists()
    found = ask(*job, "--compare-on", tmp_path / "public.csv")
    assert found.code == 0, found.err
    assert found.out.count("add-or-remove one person") == 2
    assert "one person" in (folder / "chosen" / "statement.txt").read_text()
    predicted = ask("predict", folder / "chosen", tmp_path / "public.csv")
    assert predicted.out.count("\n") == 61
