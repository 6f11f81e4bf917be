from __future__ import annotations

import math

import pytest

from privet.errors import ArgumentError, RecipeError
from privet_research.reproduction.entry import Claim, Entry, Profile, entries, find_entry, parse_entry
from privet_research.reproduction.pages import list_page
from privet_research.reproduction.running import _DATA_FOLDERS, _EXTRA_MODULES, availability
from privet_research.reproduction.verdicts import Finding, Verdict, judge
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
        "feature-noise-theorems",
        "feature-noise-augmentation",
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
# They show pictures and print no figure that could be judged.
PICTURES = {"feature-noise-figure-3"}
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
    assert entry.studies or name in PICTURES, "say in unavailable why it cannot be had, and list it here"


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
        (MINIMAL + CLAIM + "tolerance = 1\npaper = 1\n", "because"),
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
        "no reason for a tolerance",
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


def _claims() -> list[tuple[str, Claim]]:
    return [(name, claim) for name, entry in entries().items() for claim in entry.claims]


def _judged(claim: Claim, value: float) -> Finding:
    """Judge three seeds that agree on a value of the claim's quantity."""
    first = {key: value[0] if isinstance(value, list) else value for key, value in claim.of.items()}
    other = {key: value[0] if isinstance(value, list) else value for key, value in (claim.minus or {}).items()}
    shared = {} if claim.chosen_by is None else {claim.chosen_by: 1.0}
    rows = [{"seed": seed, claim.measure: value / claim.scale, **shared, **first} for seed in range(3)]
    if claim.minus is not None:
        rows += [{"seed": seed, claim.measure: 0.0, **shared, **other} for seed in range(3)]
    return judge(claim.model_copy(update={"stand_in": None}), rows, Profile.FULL)


@pytest.mark.parametrize(("name", "claim"), _claims(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_claim_fails_on_a_shifted_result(name: str, claim: Claim) -> None:
    least, most = claim.accepted
    room = claim.tolerance if claim.tolerance is not None else 0.0
    beyond = max(room, 1e-3 * max(1.0, abs(claim.compared_with)))
    assert _judged(claim, claim.compared_with).verdict is Verdict.HOLDS
    for value in (least - beyond, most + beyond):
        if math.isfinite(value):
            assert _judged(claim, value).verdict is Verdict.DIFFERS


@pytest.mark.parametrize(("name", "claim"), _claims(), ids=lambda value: value if isinstance(value, str) else "")
def test_the_published_figure_of_another_cell_does_not_fit_into_a_tolerance(name: str, claim: Claim) -> None:
    others = [one.paper for one in entries()[name].claims if one.paper is not None and one.measure == claim.measure]
    figures = {value for value in others if value != claim.paper}
    if claim.tolerance is None or claim.exact or not figures:
        return
    assert any(_judged(claim, value).verdict is Verdict.DIFFERS for value in figures)
