from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from privet.errors import CheckpointError, DependencyError, LedgerCorrupt, LedgerError
from privet.reports import run_report
from privet.reports.content import _without_folders, gather
from privet.reports.run_report import render, write_report
from tests.reports.conftest import MakeRun

SOURCE = Path(__file__).resolve().parents[2] / "src"

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'onmouseover='alert(1)",
    "</pre></style><svg onload=alert(1)>",
    "a & b &lt; c &#x3c;script&#x3e;",
    "{{ 7 * 7 }} {% raw %} ${7*7}",
    "javascript:alert(1)",
    "]]> --> \u202e \u2028",
)


class Page(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def page_text(make_run: MakeRun) -> str:
    return render(gather(make_run()))


def assert_loads_and_runs_nothing(text: str) -> None:
    page = Page(text)
    allowed = {
        "html", "head", "meta", "title", "style", "body", "main", "header", "h1", "h2", "h3", "p", "ul", "li", "div",
        "b", "span", "section", "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "svg", "g", "path",
        "defs", "use", "clippath", "rect", "text", "details", "summary", "a", "pre", "code", "strong", "footer",
        "nav", "ol", "dl", "dt", "dd",
    }  # fmt: skip
    assert set(page.tags) <= allowed
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name != "src"
        if name in ("href", "xlink:href"):
            assert value.startswith(("data:text/csv;base64,", "#")), value
        if name == "style":
            assert "url(" not in value or "url(#" in value
    assert "@import" not in text
    styles = "".join(re.findall(r"<style.*?</style>", text, flags=re.DOTALL))
    assert "url(" not in styles


def test_a_report_says_the_same_as_the_ledger_and_loads_nothing(make_run: MakeRun, page_text: str) -> None:
    folder, text = make_run(), page_text
    assert_loads_and_runs_nothing(text)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in {
        value for tag, name, value in Page(text).attributes if (tag, name) == ("meta", "content")
    }
    words = Page(text).words
    assert "The ledger agrees with the plan" in words
    assert "4 charged" in words
    assert "benchmark data" in words
    assert "NOT PRIVATE" not in words
    for title in (
        "Privacy statement",
        "Plan and ledger",
        "Privacy profile",
        "Accuracy over the run",
        "Unprotected diagnostics",
    ):
        assert title in words
    measure = json.loads((folder / "metrics.json").read_text())["measures"][0]
    assert f"{100 * measure['value']:.1f} %" in words
    assert "n = 2,000" in words
    assert len(text.encode()) < 1_500_000


def test_the_same_run_always_gives_the_same_bytes(make_run: MakeRun, page_text: str) -> None:
    assert render(gather(make_run())) == page_text


def test_names_inside_pictures_are_unique_on_the_page_and_every_reference_is_answered(page_text: str) -> None:
    text = page_text
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names))
    references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)
    assert references
    assert {first or second for first, second in references} <= set(names)


def test_the_numbers_of_every_plot_can_be_taken_out(page_text: str) -> None:
    page = Page(page_text)
    links = [value for tag, name, value in page.attributes if tag == "a" and name == "href" and value[0] != "#"]
    assert len(links) == 11
    for link in links:
        lines = base64.b64decode(link.partition(",")[2]).decode().splitlines()
        assert len(lines) > 1
        assert len({line.count(",") for line in lines}) == 1
        assert all(re.fullmatch(r"[-+.e0-9,]+", line) for line in lines[1:])


def test_colours_follow_the_page(page_text: str) -> None:
    assert "prefers-color-scheme: dark" in page_text
    assert "currentColor" in page_text
    assert "var(--grid)" in page_text
    assert "#010203" not in page_text
    assert "#040506" not in page_text


def test_hostile_words_stay_words(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    recipe = (folder / "recipe.toml").read_text(encoding="utf-8")
    recipe = re.sub(r"^(name|description) = .*\n", "", recipe, flags=re.MULTILINE)
    words = json.dumps(" ".join(HOSTILE), ensure_ascii=True)
    recipe = f"name = {words}\ndescription = {words}\n# {' '.join(' '.join(HOSTILE).split())}\n{recipe}"
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    environment = {"processes": [{each: each, "packages": {each: each}} for each in HOSTILE]}
    (folder / "env.json").write_text(json.dumps(environment), encoding="utf-8")
    metrics = json.loads((folder / "metrics.json").read_text())
    row = metrics["measures"][0]
    metrics["measures"] = [row | {"name": each, "interval": each} for each in HOSTILE]
    for point, each in zip(metrics["curve"], HOSTILE, strict=False):
        point["measure"]["name"] = each
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    text = render(gather(folder))
    assert_loads_and_runs_nothing(text)
    shown = Page(text).words
    for each in HOSTILE:
        # title, heading, description, recipe, name and value of two facts, name and interval of a measure
        assert shown.count(" ".join(each.split())) >= 9


def test_a_seeded_run_is_stamped_not_private(make_run: MakeRun) -> None:
    words = Page(render(gather(make_run("training.seed=1")))).words
    assert "NOT PRIVATE" in words
    assert "No privacy is promised" in words
    assert "no figure on this page is a promise" in words
    assert "not promised" in words
    assert "an upper bound" not in words
    assert "It assumes that" not in words


def test_private_data_show_no_diagnostics_and_no_benchmark_stamp(make_run: MakeRun) -> None:
    words = Page(render(gather(make_run("data_is_public=false", "training.evaluate_every=")))).words
    assert "benchmark data" not in words
    assert "Unprotected diagnostics" not in words
    assert "No figures on test data" in words


def test_a_report_names_no_folder_of_the_machine(make_run: MakeRun, page_text: str) -> None:
    assert str(make_run().parent) not in page_text
    assert str(SOURCE.parent) not in page_text


def test_an_unfinished_run_is_stamped_and_shows_what_it_spent(tmp_path: Path) -> None:
    from privet.runs.recipes.recipe_files import load_recipe
    from privet.runs.runner import train
    from tests.reports.conftest import TINY

    outcome = train(load_recipe("demo", TINY), tmp_path / "run", should_stop=lambda: True)
    content = gather(tmp_path / "run")
    assert content.ledger.spent.epsilon == outcome.spent.epsilon < content.promised.epsilon
    words = Page(render(content)).words
    assert "unfinished run" in words
    assert "1 charged" in words
    assert "joins each of 1 step with probability 0.004; 1 of 4 planned steps are charged" in words
    assert "each of 4 steps" not in words


def test_a_finished_run_says_its_steps_once(page_text: str) -> None:
    words = Page(page_text).words
    assert "joins each of 4 steps with probability 0.004" in words
    assert "planned steps are charged" not in words


def numbers_of(text: str, column: str) -> list[list[str]]:
    """Return the rows of the first plot whose numbers begin with this column."""
    links = [value for tag, name, value in Page(text).attributes if name == "href" and value.startswith("data:")]
    tables = [base64.b64decode(link.partition(",")[2]).decode().splitlines() for link in links]
    return next([line.split(",") for line in table[1:]] for table in tables if table[0].startswith(column))


def test_an_epsilon_beside_a_measurement_is_no_larger_than_the_table_of_the_budget_and_the_page_says_so(
    page_text: str,
) -> None:
    by_round = {row[0]: float(row[1]) for row in numbers_of(page_text, "round,epsilon")}
    by_step = {row[0]: float(row[1]) for row in numbers_of(page_text, "step,epsilon")}
    assert set(by_step) <= set(by_round)
    assert all(epsilon <= by_round[step] for step, epsilon in by_step.items())
    assert "the epsilon of a measurement at the same step may be smaller, and both hold" in Page(page_text).words


def test_a_run_that_was_planned_and_never_begun_can_be_reported(make_run: MakeRun, tmp_path: Path) -> None:
    from privet.accounting.ledger import Ledger

    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    plan = gather(folder).plan
    for name in ("ledger.jsonl", "checkpoint.safetensors", "status.json"):
        (folder / name).unlink()
    Ledger.create(folder / "ledger.jsonl", plan=plan.to_dict(), plan_hash=plan.hash).close()
    assert "0 charged" in Page(render(gather(folder))).words


def test_a_ledger_under_another_plan_is_shown_red(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    shutil.copy(make_run("privacy.epsilon=2.0") / "ledger.jsonl", folder / "ledger.jsonl")
    with pytest.raises(LedgerCorrupt, match="belongs to another run"):
        gather(folder)
    (folder / "checkpoint.safetensors").unlink()
    content = gather(folder)
    assert not content.agrees
    assert "ledger mismatch" in Page(render(content)).words


def test_a_broken_chain_or_a_missing_ledger_gives_no_report(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(LedgerCorrupt):
        gather(folder)
    (folder / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError):
        gather(folder)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.json", "{}"),
        ("metrics.json", '{"measures": [{"name": 1}]}'),
        ("unprotected.jsonl", '{"step": "one"}\n'),
        ("unprotected.jsonl", "nonsense\n"),
        ("env.json", "[1]"),
        ("plan.json", "{}"),
    ],
)
def test_damaged_files_are_named(make_run: MakeRun, tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    (folder / name).write_text(damage)
    with pytest.raises(CheckpointError, match=re.escape(name)):
        gather(folder)


def test_a_report_is_written_into_the_run_unless_told_otherwise(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    monkeypatch.setattr(run_report, "render", lambda content, **_: f"report of {content.recipe.title}")
    assert write_report(folder) == folder / "report.html"
    assert write_report(folder, tmp_path / "other.html").read_bytes() == b"report of demo"
    with pytest.raises(CheckpointError, match="folder does not exist"):
        write_report(folder, tmp_path / "no" / "report.html")


def test_missing_packages_are_named_with_the_remedy(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    content = gather(make_run())
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DependencyError, match=re.escape("pip install 'privet[report]'")):
        render(content)


def test_reporting_needs_no_torch(make_run: MakeRun) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from privet.reports.run_report import render; "
        f"from privet.reports.content import gather; render(gather({str(make_run())!r})); print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize("place", ["/home/anna/secret/", "C:\\\\Users\\\\anna\\\\", ""])
def test_the_recipe_of_a_report_names_data_files_without_their_folders(place: str) -> None:
    kept = f'[table]\ntrain = "{place}stays.csv"\ntest = "{place}held out.csv"\nlabel = "a/b"\n'
    assert _without_folders(kept) == '[table]\ntrain = "stays.csv"\ntest = "held out.csv"\nlabel = "a/b"\n'
