"""Every block of code in docs/ is run as it stands, page by page, or says on the page why it is not."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from privet.cli.console import run
from privet.cli.main import privet
from privet.datasets.images import CIFAR10_FILES, FASHION_MNIST_FILES, MNIST_FILES
from privet.datasets.known import KNOWN_DATASETS, SCATTERED
from privet.datasets.sentences import SST2_FILES
from privet.datasets.svhn import SVHN_FILES
from privet.datasets.tabular import ADULT_TEST_FILE, ADULT_TRAIN_FILE, CALIFORNIA_FILE, WINE_FILE
from privet.runs.evaluation import groups_and_robustness, run_reconstruction
from tests.docs_blocks import REASON, Block, blocks

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def _sampling(setting: str) -> tuple[str, str]:
    return "--set", f"privacy.sampling.{setting}"


# A page shows what one would type; here the same commands do little work.
SMALLER = {
    # A recipe counts in steps or in epochs: epochs are set before they are removed.
    "train": [
        "--quiet",
        "--device",
        "cpu",
        *(word for one in ("epochs=1", "epochs=", "steps=4") for word in _sampling(one)),
    ],
    "audit": ["--canaries", "20", "--rounds", "2"],
    "federated": ["--rounds", "1"],
}
# Examinations that a page shows with their own defaults.
SMALLER_EXAMINATIONS: list[tuple[types.ModuleType, str, dict[str, int]]] = [
    (groups_and_robustness, "examine_robustness", {"num_attacked": 20}),
    (run_reconstruction, "examine_reconstruction", {"num_images": 2, "num_steps": 20}),
]
# Figures that no result file has, because a test computes them: the gain over draws in research/tests/studies.
TESTED_ELSEWHERE = {"9.2 ± 6.0"}


def name(page: Path) -> str:
    return page.stem


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, with everything random fixed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "state"))
    for piece, name, smaller in SMALLER_EXAMINATIONS:
        monkeypatch.setattr(piece, name, partial(getattr(piece, name), **smaller))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_code_of_a_page_runs_in_order(page: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_page(page, capfd)


def run_page(page: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Run all blocks of a page whose packages are installed."""
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module  # dataclasses and annotations look their module up
    try:
        for block in blocks(page):
            if not block.is_marked and all(importlib.util.find_spec(module) for module in block.needs):
                _run(page, block, module.__dict__, capfd)
    finally:
        del sys.modules[module.__name__]


def _smaller(words: list[str]) -> list[str]:
    """Return options that make a command short. The recipe for a table of one's own is short as it is."""
    if "--help" in words:
        return []
    return SMALLER["train"][:3] if words[:1] == ["train"] and words[1].endswith(".csv") else SMALLER.get(words[0], [])


def _run(page: Path, block: Block, names: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    if block.file is not None:
        Path(block.file).write_text(block.code, encoding="utf-8")
    elif block.language == "python":
        # as many empty lines first as the page has lines before, so that an error names the line of the page
        exec(compile("\n" * block.line + block.code, page.name, "exec"), names)
    for words in block.commands:
        capfd.readouterr()
        code = run(privet, [*words, *_smaller(words)])
        said = capfd.readouterr()
        assert code == 0, f"{page.name}, line {block.line}: privet {' '.join(words)}\n{said.out}\n{said.err}"


def test_the_guarantee_on_the_first_page_is_the_one_that_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    page = DOCS / "index.md"
    (code, *_) = blocks(page)
    exec(compile(code.code, page.name, "exec"), {})
    before, after = capfd.readouterr().out.splitlines()
    assert before == after
    assert before in page.read_text(encoding="utf-8")


def test_where_the_files_of_every_known_data_set_go_is_told() -> None:
    words = (DOCS / "own-data.md").read_text(encoding="utf-8").split("## Data sets that privet knows")[1]
    told = set(re.findall(r"`([^`]+)`", words))
    ranges = {f"data_batch_{number}.bin" for number in (2, 3, 4)}  # "data_batch_1.bin to data_batch_5.bin"
    files = (
        *MNIST_FILES, *FASHION_MNIST_FILES, *CIFAR10_FILES, *SVHN_FILES, *SST2_FILES,
        CALIFORNIA_FILE, WINE_FILE, ADULT_TRAIN_FILE, ADULT_TEST_FILE,
    )  # fmt: skip
    assert {f"{file.folder}/" for file in files} | {file.name for file in files} - ranges <= told
    assert {info.name for info in KNOWN_DATASETS.values()} - told == {"fashion_mnist_small", *SCATTERED.values()}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_is_not_run_says_why_and_is_still_well_formed(page: Path) -> None:
    for block in blocks(page):
        if block.is_marked:
            where = f"{page.name}, line {block.line}"
            assert block.caption.startswith(REASON), f"{where}: give it a caption that begins with {REASON!r}"
            assert len(block.caption) > len(REASON) + 10, where
            if block.language == "python":
                compile(block.code, page.name, "exec")
            for words in block.commands:
                _parse(words, where)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_needs_an_optional_package_says_so(page: Path) -> None:
    for block in blocks(page):
        assert not block.needs or "privet[" in block.caption, f"{page.name}, line {block.line}: name the extra"


def _parse(words: list[str], where: str) -> None:
    """Read a command's options without running it; files that it names need not exist."""
    command, context = privet.get_command(click.Context(privet), words[0]), click.Context(privet)
    assert command is not None, f"{where}: no verb {words[0]!r}"
    said = ""
    try:
        command.make_context(words[0], words[1:], parent=context)
    except click.UsageError as error:
        said = error.format_message()
    assert not said or "does not exist" in said, f"{where}: {said}"


def test_few_blocks_are_not_run() -> None:
    found = [block for page in PAGES for block in blocks(page) if block.language in {"python"} or block.commands]
    assert len(found) > 30
    assert sum(block.is_marked for block in found) <= len(found) / 3


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_to_pages_and_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for path in re.findall(r"`((?:examples|results|scripts|docs|src|tests)/[\w./-]+\w)`", text):
        assert (DOCS.parent / path).exists(), f"{page.name} names {path}"


def _extension(file: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(file, DOCS / "extensions" / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file] = module
    spec.loader.exec_module(module)
    return module


def test_a_fence_may_be_a_directive_with_options(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\nx = 1\n```\n\n```{code-block} console\n:class: not-run\n"
        f":caption: {REASON}needs data\n\nprivet train mnist \\\n  -o runs/mnist  # long\nls\n```\n\n"
        "```{toctree}\nother\n```\n"
    )
    first, second = blocks(page)
    assert (first.language, first.code, first.line, first.is_marked) == ("python", "x = 1\n", 3, False)
    assert second.is_marked
    assert second.caption == f"{REASON}needs data"
    assert second.commands == [["train", "mnist", "-o", "runs/mnist"]]


def test_a_command_with_an_option_that_does_not_exist_is_noticed() -> None:
    _parse(["train", "demo", "-o", "runs/demo"], "here")
    with pytest.raises(AssertionError, match="No such option"):
        _parse(["train", "demo", "--outptu", "runs/demo"], "here")


TWO_TABLES = (
    "# Title\n\n| arm | a % | b |\n| --- | --- | --- |\n| one | 1 ± 2 | 3 |\n| two | 4 | 5 |\n\n| x |\n|---|\n| y |\n"
)


@pytest.fixture(scope="module")
def measured() -> types.ModuleType:
    pytest.importorskip("sphinx")
    return _extension("measured")


def test_columns_and_rows_are_those_of_the_file(measured: types.ModuleType) -> None:
    table = measured.chosen(TWO_TABLES, columns=("b", "arm"), pattern="^two")
    assert table.markdown() == ["| b | arm |", "| --- | --- |", "| 5 | two |"]
    assert measured.chosen(TWO_TABLES, number=2).markdown()[-1] == "| y |"


@pytest.mark.parametrize(
    "wish",
    [{"columns": ("c",)}, {"pattern": "three"}, {"number": 3}],
    ids=["column", "row", "table"],
)
def test_a_figure_that_is_gone_is_an_error(measured: types.ModuleType, wish: dict[str, Any]) -> None:
    with pytest.raises(measured.MissingFigure):
        measured.chosen(TWO_TABLES, **wish)


def test_every_result_file_is_on_the_page(measured: types.ModuleType) -> None:
    page = measured.results_page(DOCS / "results.md")
    for file in [file for folder in measured.RESULTS for file in folder.rglob("*.md")]:
        assert f"`{file.relative_to(DOCS.parent).as_posix()}`" in page


def test_every_table_that_a_page_asks_for_exists(measured: types.ModuleType) -> None:
    asked = re.compile(r"^```\{result-table\} (\S+)\n(.*?)```", re.MULTILINE | re.DOTALL)
    for page in PAGES:
        for file, body in asked.findall(page.read_text(encoding="utf-8")):
            options = dict(re.findall(r"^:(\w+): (.*)$", body, re.MULTILINE))
            columns = [cell.strip() for cell in options.get("columns", "").split(";") if cell.strip()]
            text = measured.result_file(file).read_text(encoding="utf-8")
            number, pattern = int(options.get("table", 1)), options.get("rows", "")
            assert measured.chosen(text, number=number, columns=columns, pattern=pattern).rows, (page.name, file)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_figures_with_an_interval_are_those_of_a_result_file(page: Path) -> None:
    results = "\n".join(file.read_text(encoding="utf-8") for file in DOCS.parent.glob("**/results/**/*.md"))
    shown = re.findall(r"\d+(?:\.\d+)? ± \d+(?:\.\d+)?", page.read_text(encoding="utf-8"))
    assert [figure for figure in shown if figure not in results and figure not in TESTED_ELSEWHERE] == []


def test_every_public_name_is_in_the_reference() -> None:
    pytest.importorskip("sphinx")
    import privet as package

    reference = _extension("public_names")
    page = reference.api_page()
    for public in package._WHERE:
        assert f":: privet.{public}\n" in page
    for module in package._MODULES:
        for public in reference.public_names(module):
            assert f"privet.{module}.{public}" in page
        assert f"`pv.{module}`" in (DOCS / "api.md").read_text(encoding="utf-8")


def test_patterns_of_the_index_that_match_nothing_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    (tmp_path / "trust.md").touch()
    clean = _extension("optional_pages").without_empty_patterns
    assert clean("* a list\ntrust*\nreport*\nclipping", tmp_path) == "* a list\ntrust*\nclipping"
