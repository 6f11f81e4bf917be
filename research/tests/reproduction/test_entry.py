from __future__ import annotations

import pytest

from privet.errors import ArgumentError, RecipeError
from privet_research.reproduction.entry import Entry, Profile, entries, find_entry, parse_entry
from privet_research.reproduction.pages import list_page
from privet_research.reproduction.running import _DATA_FOLDERS, _EXTRA_MODULES, availability
from privet_research.studies.catalogue import STUDIES

# Every table and figure of the five publications that shows a result; notations and drawings are left out.
PUBLISHED = {
    "Romijnders and Koskela (2025)": ["hidden-state-table-1", "hidden-state-figure-3", "hidden-state-waste"],
    "Xu and Chen (2026)": [
        "feature-noise-figure-1",
        "feature-noise-figure-2",
        "feature-noise-figure-2b",
        "feature-noise-figure-3",
        "feature-noise-padding",
        "feature-noise-rotation",
        "feature-noise-class-size",
        "feature-noise-vit",
        "feature-noise-freezing",
    ],
    "Zhu and Blaschko (2023)": [
        *(f"sparsification-figure-{number}" for number in range(1, 13)),
        "sparsification-table-2",
        "sparsification-table-2-svhn",
        "sparsification-table-3",
    ],
    "Bu et al. (2021)": [
        *(f"clipping-table-{number}" for number in range(1, 4)),
        *(f"clipping-figure-{number}" for number in range(2, 10)),
    ],
    "Xiang (2019)": ["optimized-noise-accuracy"],
}
MINIMAL = 'paper = "A (2020)"\ntitle = "Table 1"\nshows = "something"\nstudies = ["x"]\n'
CLAIM = '[[claims]]\nsays = "s"\nmeasure = "m"\n'


def test_every_published_table_and_figure_is_listed_and_nothing_else() -> None:
    found: dict[str, set[str]] = {}
    for name, entry in entries().items():
        found.setdefault(entry.paper, set()).add(name)
    assert found == {paper: set(names) for paper, names in PUBLISHED.items()}


@pytest.mark.parametrize("name", list(entries()))
def test_an_entry_names_studies_data_and_extras_that_exist(name: str) -> None:
    entry = entries()[name]
    assert set(entry.studies) <= set(STUDIES)
    assert set(entry.data) <= set(_DATA_FOLDERS)
    assert set(entry.extras) <= set(_EXTRA_MODULES)
    assert entry.studies, "say in unavailable why it cannot be had, and in this test that it may be so"


def test_names_are_in_the_order_of_their_numbers() -> None:
    names = list(entries())
    assert names.index("sparsification-figure-2") < names.index("sparsification-figure-10")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINIMAL, "claims to judge"),
        (MINIMAL + CLAIM, "exactly one"),
        (MINIMAL + CLAIM + "at_least = 1\nat_most = 2\n", "exactly one"),
        (MINIMAL + CLAIM + "tolerance = 1\n", "paper's figure"),
        (MINIMAL + CLAIM + "at_least = nan\n", "at_least"),
        (MINIMAL + CLAIM + 'at_least = "1"\n', "at_least"),
        (MINIMAL + CLAIM + "at_least = 1\nsurprise = 1\n", "surprise"),
        (MINIMAL + "full_seeds = 0\n" + CLAIM + "at_least = 1\n", "full_seeds"),
        (MINIMAL.replace('["x"]', "[]"), "unavailable"),
        ("paper = ", "not valid TOML"),
    ],
    ids=[
        "no claims",
        "no rule",
        "two rules",
        "no paper",
        "nan",
        "text",
        "unknown key",
        "no seeds",
        "no reason",
        "toml",
    ],
)
def test_a_wrong_entry_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        parse_entry(text, where="x.toml")


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ArgumentError, match="clipping-table-2"):
        find_entry("cliping-table-2")


def test_profiles_have_seeds_of_their_own() -> None:
    entry = parse_entry(MINIMAL + "full_seeds = 7\nquick_seeds = 2\n" + CLAIM + "at_least = 1\n", where="x.toml")
    assert (entry.num_seeds(Profile.FULL), entry.num_seeds(Profile.QUICK)) == (7, 2)


def test_availability_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory) -> None:
    entry = Entry.model_validate(find_entry("clipping-figure-4").model_dump())
    monkeypatch.delenv("PRIVET_DATA", raising=False)
    assert availability(entry) == "needs mnist"
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path))
    assert availability(entry) == "needs mnist"
    (tmp_path / "MNIST").mkdir()  # type: ignore[operator]
    assert availability(entry) == "ready"
    hopeless = Entry(paper="p", title="t", shows="s", unavailable="the data are lost")
    assert availability(hopeless) == "not available"


def test_the_list_for_the_documentation_has_a_line_for_every_entry() -> None:
    lines = list_page(entries()).splitlines()
    assert len(lines) == 2 + len(entries())
    assert all(line.count(" | ") == 3 for line in lines[2:])
