"""Words of files, on every page and in every place that shows them, stay words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from privet.reports.comparison import render_comparison
from privet.reports.content import gather
from privet.reports.run_report import render
from tests.reports.conftest import MakeRun
from tests.reports.examined import examined
from tests.reports.test_run_report import HOSTILE, Page

CORPUS = " ".join(
    (
        *HOSTILE,
        "</title><script src=//evil.example/x.js></script>",
        "<iframe srcdoc='<script>parent.alert(1)</script>'>",
        "<a href=javascript:alert(1)>x</a>",
        "<base href=//evil.example/><meta http-equiv=refresh content=0;url=//evil.example>",
        "<math><mi xlink:href='data:x,<script>alert(1)</script>'>",
        "<svg><animate onbegin=alert(1) attributeName=x><foreignObject>",
        "<style>@import '//evil.example/x.css';</style><link rel=stylesheet href=//evil.example>",
        "%3Cscript%3E \\u003cscript\\u003e &lt;script&gt; <!--<script>",
        "=HYPERLINK(0) \x00\x1b[31m \u200b\ufeff",
    )
)


def assert_only_own_markup(text: str, clean: str) -> None:
    """The page has exactly the elements and attributes of a page with a harmless word, and none that acts."""
    page, reference = Page(text), Page(clean)
    assert page.tags == reference.tags
    assert [(tag, name) for tag, name, _ in page.attributes] == [(tag, name) for tag, name, _ in reference.attributes]
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("href", "xlink:href", "src"):
            assert value.startswith(("data:text/csv;base64,", "data:image/png;base64,", "#")), value
    styles = "".join(re.findall(r"<style.*?</style>", text, flags=re.DOTALL))
    assert "evil" not in styles
    for picture in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        assert "evil" not in picture.partition(">")[2], "words of a file are never drawn"


@pytest.mark.parametrize("kind", ["report", "comparison"])
def test_the_corpus_adds_no_element_and_no_attribute(make_run: MakeRun, tmp_path: Path, kind: str) -> None:
    found = []
    for folder, word in (("clean", "plain"), ("hostile", CORPUS)):
        content = gather(examined(make_run(), tmp_path / folder, word=word))
        content = replace(
            content,
            recipe=content.recipe.model_copy(update={"name": word, "description": word}),
            recipe_text=word,
            environments=({word: word},),
            ledger=replace(content.ledger, mismatch=word),
        )
        found.append(render(content) if kind == "report" else render_comparison([content, content]))
    clean, hostile = found
    assert_only_own_markup(hostile, clean)
    assert "evil.example" in Page(hostile).words
