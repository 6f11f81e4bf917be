"""Reports in a real browser: they fit a desk and a telephone, ask for nothing, complain about nothing, read well.

Skipped where no Chromium is installed; ``make test-browser`` says what is missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from privet.reports.comparison import write_comparison
from privet.reports.content import gather
from privet.reports.messages import LANGUAGES
from privet.reports.run_report import write_report
from privet.runs.project import with_schema
from privet.runs.recipes.table_settings import ReleasedSettings
from tests.browser.chromium import Browser, find_browser, opened, running
from tests.browser.missing import AXE
from tests.reports.conftest import MakeRun, make_run  # noqa: F401 (a fixture is found by its name)
from tests.reports.examined import examined

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")

PAGES = ("report", "comparison", "hostile", "signed-en")
CHECKED = (("report", "desk", "light"), ("report", "telephone", "dark"), ("comparison", "telephone", "light"))
WIDTHS = {"desk": 1280, "telephone": 390}
HOSTILE = """"><script>document.title='owned'</script><img src=x onerror="document.title='owned'"> {{ 7*7 }}"""

_WIDER_THAN_THE_PAGE = """
(() => {
  const limit = document.documentElement.clientWidth;
  const scrolls = (node) => { for (let at = node; at; at = at.parentElement) {
    if (['auto', 'scroll'].includes(getComputedStyle(at).overflowX)) return true; } return false; };
  return [...document.querySelectorAll('main *:not(.away)')]
    .filter((node) => node.getBoundingClientRect().right > limit + 1 && !scrolls(node) && !node.closest('svg'))
    .map((node) => node.outerHTML.slice(0, 120));
})()
"""
_TABLES_THAT_SCROLL = """
[...document.querySelectorAll('.wide:has(table)')]
  .filter((node) => node.scrollWidth > node.clientWidth + 1)
  .map((node) => node.getAttribute('aria-label'))
"""
_CUT_OFF = """
[...document.querySelectorAll('main *')]
  .filter((node) => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== 'inline'
    && !node.closest('svg') && !node.closest('.away') && !node.closest('details'))
  .map((node) => node.outerHTML.slice(0, 120))
"""
_CONTRAST = """
(() => {
  const channel = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const back = (node) => { for (let at = node; at; at = at.parentElement) {
    const c = parts(getComputedStyle(at).backgroundColor); if (c.length < 4 || c[3] === 1) return c; }
    return [255, 255, 255]; };
  let least = 100;
  for (const node of document.querySelectorAll('main *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.closest('style') || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const fill = node.closest('svg') && style.fill !== 'none' ? style.fill : style.color;
    const [a, b] = [light(parts(fill)), light(back(node))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()
"""
_STRUCTURE = """
(() => ({
  lang: document.documentElement.lang,
  mains: document.querySelectorAll('main').length,
  headings: [...document.querySelectorAll('h1, h2, h3, h4')].map((node) => Number(node.tagName[1])),
  unnamed_pictures: [...document.querySelectorAll('img, figure svg')]
    .filter((node) => !(node.getAttribute('alt') || node.getAttribute('aria-label'))).length,
  headers_without_scope: document.querySelectorAll('th:not([scope])').length,
  tables_without_headers: [...document.querySelectorAll('table')].filter((node) => !node.querySelector('th')).length,
  scripts: document.querySelectorAll('script').length,
}))()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:  # noqa: F811
    folder = tmp_path_factory.mktemp("pages")
    first = gather(examined(make_run(), folder / "first"))
    second = gather(examined(make_run("privacy.epsilon=0.5"), folder / "second", skill=0.6))
    hostile = gather(examined(make_run(), folder / "third", word=HOSTILE))
    hostile = replace(hostile, recipe=hostile.recipe.model_copy(update={"name": HOSTILE, "description": HOSTILE}))
    released = ReleasedSettings(
        ledger="ab" * 32, spent_epsilon=0.5, spent_delta=1e-5, noise_ratio=7.0, protects="record",
        neighbours="add_or_remove",
    )  # fmt: skip
    spent = replace(first.ledger.spent, assumptions=(*first.ledger.spent.assumptions, released.assumption))
    signed = replace(first, in_all=with_schema(first.ledger, released), ledger=replace(first.ledger, spent=spent))
    return {
        **{
            f"signed-{each}": write_report(folder, folder / f"{each}.html", content=signed, language=each)
            for each in LANGUAGES
        },
        "report": write_report(folder, folder / "report.html", content=first, baseline=second),
        "comparison": write_comparison([first, second, hostile], folder / "comparison.html"),
        "hostile": write_report(folder, folder / "hostile.html", content=hostile),
    }


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_fits_its_window_asks_for_nothing_and_complains_about_nothing(
    browser: Browser, pages: dict[str, Path], page: str, width: str
) -> None:
    with opened(browser, pages[page], width=WIDTHS[width]) as tab:
        assert tab.evaluate(_WIDER_THAN_THE_PAGE) == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]
        assert tab.evaluate("document.title") != "owned"
        assert tab.requests == []
        assert tab.complaints == []


@pytest.mark.parametrize("page", PAGES)
def test_tables_need_no_scrolling_on_a_telephone(browser: Browser, pages: dict[str, Path], page: str) -> None:
    with opened(browser, pages[page], width=WIDTHS["telephone"]) as tab:
        assert tab.evaluate("document.querySelectorAll('.wide table').length") >= 2
        assert tab.evaluate(_TABLES_THAT_SCROLL) == []
        # A cell that left its column names it.
        assert tab.evaluate("[...document.querySelectorAll('.wide td')].filter((td) => !td.dataset.label).length") == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_first_page_is_one_sheet_of_letter_paper_in_every_language(
    browser: Browser, pages: dict[str, Path], language: str
) -> None:
    # 8.5 by 11 inches without margins of 13 mm: 718 by 958 dots. A sheet of A4 is 6 % longer and 3 % narrower.
    with opened(browser, pages[f"signed-{language}"], width=694) as tab:
        tab.show_on_paper()
        assert 400 < tab.evaluate("document.getElementById('first-page').getBoundingClientRect().bottom") < 958


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_cut_off_on_paper(browser: Browser, pages: dict[str, Path], page: str) -> None:
    # The width of a printed sheet, 96 dots to the inch; paper cannot be scrolled.
    with opened(browser, pages[page], width=720) as tab:
        tab.show_on_paper()
        assert tab.evaluate(_CUT_OFF) == []
        assert tab.evaluate("getComputedStyle(document.querySelector('section')).breakInside") == "auto"
        assert tab.evaluate("getComputedStyle(document.querySelector('tbody tr')).breakInside") == "avoid"


@pytest.mark.parametrize("page", PAGES)
def test_all_words_stand_out_from_what_is_behind_them(browser: Browser, pages: dict[str, Path], page: str) -> None:
    with opened(browser, pages[page], width=1280) as tab:
        for scheme, background in (("light", "rgb(245, 246, 248)"), ("dark", "rgb(18, 22, 29)")):
            tab.show_as(scheme)
            assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == background
            assert tab.evaluate(_CONTRAST) >= 4.5


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_found_around_in_by_ear(browser: Browser, pages: dict[str, Path], page: str) -> None:
    with opened(browser, pages[page], width=1280) as tab:
        found: dict[str, Any] = tab.evaluate(_STRUCTURE)
    headings = found.pop("headings")
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(headings))
    assert found == {
        "lang": "en",
        "mains": 1,
        "unnamed_pictures": 0,
        "headers_without_scope": 0,
        "tables_without_headers": 0,
        "scripts": 0,
    }


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm install --prefix tests/browser")
@pytest.mark.parametrize(("page", "width", "scheme"), CHECKED)
def test_the_accessibility_checker_finds_nothing(
    browser: Browser, pages: dict[str, Path], page: str, width: str, scheme: str
) -> None:
    with opened(browser, pages[page], width=WIDTHS[width]) as tab:
        tab.show_as(scheme)
        tab.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
        # Rows of numbers are all alike: one table stands for them.
        tab.evaluate("document.querySelector('details').open = true")
        found = json.loads(tab.evaluate("axe.run().then((found) => JSON.stringify(found))"))
    assert len(found["passes"]) > 15
    told = [
        (rule["id"], node["target"], node["failureSummary"]) for rule in found["violations"] for node in rule["nodes"]
    ]
    assert told == []


def test_links_to_numbers_hold_them_within_the_page(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["comparison"], width=1280) as tab:
        links = tab.evaluate(
            "[...document.querySelectorAll('a')].map((node) => [node.download, node.href.slice(0, 13)])"
        )
    assert len(links) > 5
    assert all(name.endswith(".csv") and start == "data:text/csv" for name, start in links)


def test_pages_are_small_and_soon_written(pages: dict[str, Path], tmp_path: Path) -> None:
    assert all(path.stat().st_size < 1_500_000 for path in pages.values())
    content = gather(pages["report"].parent / "first")
    began = time.process_time()
    write_report(tmp_path, tmp_path / "again.html", content=content)
    assert time.process_time() - began < 10
