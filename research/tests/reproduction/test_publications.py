"""The publications behind the entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from privet_research.reproduction.entry import Entry, entries, find_entry
from privet_research.reproduction.publications import PUBLICATIONS, by_publication
from privet_research.studies.noise_arms import PROCEDURE_ARMS

REFERENCES = Path(__file__).parents[3] / "docs" / "references.md"


def test_every_entry_belongs_to_a_publication_that_is_named_in_full() -> None:
    assert {entry.paper for entry in entries().values()} == set(PUBLICATIONS)
    grouped = by_publication(entries())
    assert sorted(name for found in grouped.values() for name in found) == sorted(entries())
    assert set(grouped) == set(PUBLICATIONS.values())


@pytest.mark.parametrize("short", sorted(PUBLICATIONS))
def test_publications_are_cited_as_in_the_references(short: str) -> None:
    told = " ".join(REFERENCES.read_text("utf-8").replace("*", "").split())
    # The list of references leaves out nothing but the place where a publication appeared.
    assert PUBLICATIONS[short].removesuffix(" Preprint.") in told
    assert short.split(" ")[0] in PUBLICATIONS[short]


def test_a_publication_that_is_not_known_goes_by_its_short_name() -> None:
    entry = Entry(paper="Nobody (2030)", title="t", shows="s", unavailable="it is not written yet")
    assert dict(by_publication({"x": entry})) == {"Nobody (2030)": {"x": entry}}


def test_claims_about_noise_are_about_arms_that_the_study_runs() -> None:
    arms = {arm.name for arm in PROCEDURE_ARMS}
    for claim in find_entry("optimized-noise-accuracy").claims:
        assert claim.of["arm"] in arms
        assert claim.minus is not None
        assert claim.minus["arm"] in arms
