"""The first page: the same messages in every language, figures of the ledger, and fields that people fill in."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from privet.effects.noisy_counts.figures import Figure
from privet.errors import ArgumentError, RecipeError
from privet.reports import messages
from privet.reports.content import gather
from privet.reports.first_page import first_page
from privet.reports.messages import LANGUAGES, Messages
from privet.reports.run_report import render
from privet.runs.recipes.data_sheet import DataSheet, read_data_sheet

CATALOGUES = {
    language: json.loads((resources.files(messages) / f"{language}.json").read_text("utf-8")) for language in LANGUAGES
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_catalogue_has_all_messages_with_the_places_of_the_english_one(language: str) -> None:
    english, found = CATALOGUES["en"], CATALOGUES[language]
    assert list(found) == list(english)
    for name, text in english.items():
        places = sorted(set(re.findall(r"\{(\w+)\}", text)))
        assert sorted(set(re.findall(r"\{(\w+)\}", found[name]))) == places, name
        assert found[name].strip() == found[name] != ""
    if language != "en":
        same = [name for name in english if found[name] == english[name]]
        assert set(same) <= {"word_epsilon", "word_delta", "sheet_contact", "sign", "sign_name", "sign_signature"}, same


def test_numbers_have_the_decimal_mark_of_the_language_and_measures_its_words() -> None:
    german, english = Messages.of("de"), Messages.of("en")
    assert "höchstens 3,067." in german("scale_text", epsilon="3.067")
    assert "at most 3.067." in english("scale_text", epsilon="3.067")
    assert german.number("1e-05 and 5.56 % v1.") == "1e-05 and 5,56 % v1."
    assert german.measure("accuracy") == "Anteil richtiger Antworten"
    assert german.measure("cross entropy") == "cross entropy"


def test_catalogues_that_lie_there_are_those_that_are_offered() -> None:
    files = {path.name for path in resources.files(messages).iterdir() if path.name.endswith(".json")}
    assert files == {f"{language}.json" for language in LANGUAGES}
    with pytest.raises(ArgumentError, match="en, de, fr, es"):
        Messages.of("tlh")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_says_the_figures_of_the_ledger_in_every_language(finished_run: Path, language: str) -> None:
    content = gather(finished_run)
    page = first_page(content, language=language)
    text = " ".join(sentence for _, sentences in page.parts for sentence in sentences)
    assert "{" not in text
    assert page.epsilon in page.scale_text
    assert sum(zone.holds for zone in page.zones) == 1
    assert sum(zone.width for zone in page.zones) == pytest.approx(100, abs=0.5)
    html = render(content, language=language)
    assert f'<section id="first-page" lang="{language}">' in html
    for anchor in re.findall(r'<a href="#([a-z-]+)"', html):
        assert f'<section id="{anchor}"' in html


@pytest.mark.parametrize(
    ("epsilon", "zone"), [(0.01, 0), (1.0, 0), (1.1, 1), (8.0, 1), (12.0, 2), (21.0, 3), (900.0, 3)]
)
def test_the_scale_marks_the_zone_of_epsilon(finished_run: Path, epsilon: float, zone: int) -> None:
    content = gather(finished_run)
    spent = replace(content.ledger.spent, epsilon=epsilon)
    page = first_page(replace(content, ledger=replace(content.ledger, spent=spent)))
    assert [part.holds for part in page.zones].index(True) == zone
    assert 0 <= page.place <= 100


@pytest.mark.parametrize(
    ("measure", "words"), [("accuracy", "better than one that always"), ("log loss", "in some measures")]
)
def test_a_caution_says_whether_it_is_about_the_figure_above_it(finished_run: Path, measure: str, words: str) -> None:
    first = Figure(name="accuracy", value=0.9, low=0.8, high=0.95)
    warning = f"The model is no better in {measure} than one that always says 'no'."
    figures = SimpleNamespace(headline=(first,), constant=(), warnings=(warning,))
    page = first_page(replace(gather(finished_run), evaluation=cast(Any, SimpleNamespace(figures=figures))))
    caution = [each for _, sentences in page.parts for each in sentences if each.startswith("Caution")]
    assert len(caution) == 1
    assert words in caution[0]


def test_a_run_that_is_not_private_promises_nothing_on_its_first_page(finished_run: Path) -> None:
    content = gather(finished_run)
    spent = replace(content.ledger.spent, not_private_because=("it was seeded",))
    page = first_page(replace(content, ledger=replace(content.ledger, spent=spent)))
    assert not page.zones
    assert "Nothing is promised" in page.parts[0][1][0]
    assert "it was seeded" in page.parts[0][1][0]


def test_the_data_sheet_shows_what_was_filled_in_escaped_and_asks_for_the_rest(
    finished_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "sheet.toml").write_text('controller = "St. Anna <b>Hospital</b>"\npurpose = "aftercare"\n')
    sheet = read_data_sheet(tmp_path / "sheet.toml")
    assert sheet == DataSheet(controller="St. Anna <b>Hospital</b>", purpose="aftercare")
    html = render(gather(finished_run), sheet=sheet)
    assert "St. Anna &lt;b&gt;Hospital&lt;/b&gt;" in html
    assert html.count("to be filled in") == 4
    assert "Data protection officer" in html


@pytest.mark.parametrize(
    ("content", "word"), [("owner = 'x'", "owner"), ("purpose = 3", "purpose"), ("purpose = ", "not TOML")]
)
def test_a_data_sheet_with_other_fields_is_refused(tmp_path: Path, content: str, word: str) -> None:
    (tmp_path / "sheet.toml").write_text(content)
    with pytest.raises(RecipeError, match=word):
        read_data_sheet(tmp_path / "sheet.toml")
