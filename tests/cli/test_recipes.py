"""``privet init``: recipes that are accepted as they are printed, with a comment on every value."""

from __future__ import annotations

import csv
import os
import random
import re
import tomllib
from pathlib import Path

import pytest

from privet.cli.recipes import TEMPLATES
from privet.runs.recipes.recipe_files import load_recipe, recipe_templates
from tests.cli.conftest import Ask


@pytest.fixture
def printed(ask: Ask, tmp_path: Path) -> Path:
    """The folder of a newcomer who has just written every kind of recipe into a file."""
    for kind in TEMPLATES:
        (tmp_path / f"{kind}.toml").write_text(ask("init", kind).out)
    return tmp_path


def test_every_template_is_a_kind_and_the_first_is_the_default(ask: Ask) -> None:
    assert set(recipe_templates()) == set(TEMPLATES)
    assert ask("init").out == ask("init", TEMPLATES[0]).out
    assert ask("init", "video").code == 2


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_printed_recipe_can_be_planned_unchanged(ask: Ask, printed: Path, kind: str) -> None:
    found = ask("plan", printed / f"{kind}.toml")
    assert found.code == 0, found.err
    assert "\N{GREEK SMALL LETTER EPSILON}=3" in found.out


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_value_has_its_word(printed: Path, kind: str) -> None:
    lines = (printed / f"{kind}.toml").read_text().split("[quick")[0].splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if re.match(r"[a-z_]+ = |\[", line) and not line.startswith("description"):
            assert "#" in line or before.startswith("#"), line
        assert len(line) <= 120


def test_the_demo_is_the_packaged_one(printed: Path) -> None:
    assert load_recipe(printed / "demo.toml") == load_recipe("demo")


def begin(recipe: Path, run: Path) -> None:
    from privet.runs.runner import train

    outcome = train(load_recipe(recipe), run, should_stop=lambda: True)
    assert outcome.steps_done == 1


def test_the_tabular_recipe_trains_unchanged(printed: Path) -> None:
    declared = tomllib.loads((printed / "tabular.toml").read_text())["table"]
    random.seed(0)
    for name, count in (("train", 300), ("test", 50)):
        with (printed / declared[name]).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([column["name"] for column in (*declared["columns"], declared["label"])])
            for _ in range(count):
                writer.writerow(
                    random.choice(column["categories"]) if "categories" in column else random.randint(0, 99)
                    for column in (*declared["columns"], declared["label"])
                )
    begin(printed / "tabular.toml", printed / "run")


def test_the_image_recipe_trains_unchanged(printed: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for part in ("images", "images_test"):
        for name in ("cat", "dog"):
            (printed / part / name).mkdir(parents=True)
            for number in range(4):
                image.new("RGB", (40, 40), (50 * number, 9, 9)).save(printed / part / name / f"{number}.png")
    begin(printed / "images.toml", printed / "run")


def test_the_demo_recipe_trains_unchanged(printed: Path) -> None:
    begin(printed / "demo.toml", printed / "run")


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif("PRIVET_DATA" not in os.environ, reason="needs the files of SST-2")
def test_the_text_recipe_trains_unchanged(printed: Path) -> None:
    pytest.importorskip("transformers")
    begin(printed / "text.toml", printed / "run")
