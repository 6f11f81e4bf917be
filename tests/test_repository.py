"""Laws about the repository itself: what may be imported or called where, and that its files agree with each other."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "privet"
MAX_LINES = 450

FORBIDDEN_IMPORTS = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "timm", "torchvision"}
FORBIDDEN_BUILTINS = {"compile", "eval", "exec"}
# numpy.load is missing on purpose: it is safe with allow_pickle=False, which has its own law below.
FORBIDDEN_METHODS = {("torch", "load"), ("torch", "save"), ("torch.jit", "load"), ("torch.hub", "load")}


RESEARCH = ROOT / "research" / "src" / "privet_research"
COMMAND_LINES = {SOURCE / "cli", RESEARCH / "commands"}


def sources() -> list[Path]:
    return sorted([*SOURCE.rglob("*.py"), *RESEARCH.rglob("*.py")])


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Every module a file imports by statement, full path, at any depth of nesting."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def called_names(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that is called, as written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def violations(tree: ast.AST) -> list[str]:
    """What a file imports or calls although no file of the library may."""
    found = [f"imports {name}" for name in imported_modules(tree) if name.split(".")[0] in FORBIDDEN_IMPORTS]
    methods = {f"{module}.{name}" for module, name in FORBIDDEN_METHODS}
    found += [f"imports {name}" for name in imported_modules(tree) if name in methods]
    found += [f"calls {name}" for name in called_names(tree) if name in FORBIDDEN_BUILTINS | methods]
    return found


def unsafe_array_reads(tree: ast.AST) -> list[str]:
    """Calls of numpy.load that do not say ``allow_pickle=False``."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"np.load", "numpy.load"}
        and not any(
            word.arg == "allow_pickle" and isinstance(word.value, ast.Constant) and word.value.value is False
            for word in node.keywords
        )
    ]


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    entries = [line.split("#")[0].strip() for line in lines]
    return dict(entry.split("==", 1) for entry in entries if entry)


def project() -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def test_the_laws_below_look_at_the_real_package() -> None:
    names = {relative(path) for path in sources()}
    assert {"src/privet/__init__.py", "src/privet/errors.py", "src/privet/vocabulary.py"} <= names
    assert "research/src/privet_research/studies/catalogue.py" in names


def test_the_library_holds_no_study_and_does_not_know_the_laboratory() -> None:
    laboratory = {"studies", "study", "reproduction", "reproduce", "research"}
    named = [file for file in SOURCE.rglob("*") if {*file.relative_to(SOURCE).with_suffix("").parts} & laboratory]
    assert [relative(file) for file in named] == []
    for path in SOURCE.rglob("*.py"):
        assert "privet_research" not in path.read_text(encoding="utf-8"), relative(path)


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_every_source_file_is_short_enough_to_be_read_at_once(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{relative(path)} has {lines} lines, more than {MAX_LINES}: split it by family."


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_no_source_file_unpickles_evaluates_text_or_needs_torchvision(path: Path) -> None:
    assert violations(parse(path)) == []


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_arrays_are_read_with_pickle_switched_off(path: Path) -> None:
    assert unsafe_array_reads(parse(path)) == []


@pytest.mark.parametrize(
    "path", [p for p in sources() if not {SOURCE / "cli", RESEARCH / "commands"} & {*p.parents}], ids=relative
)
def test_only_the_command_line_prints(path: Path) -> None:
    assert "print" not in set(called_names(parse(path)))


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_source_code_is_ascii_outside_of_strings(path: Path) -> None:
    tree = parse(path)
    identifiers = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    identifiers |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    identifiers |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert [name for name in sorted(identifiers) if not name.isascii()] == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from torchvision import datasets",
        "def f():\n    import torchvision.models",
        "from torch import load",
        "import torch\ntorch.load('x')",
        "eval('1')",
        "import joblib as j",
    ],
)
def test_the_forbidden_things_are_recognised_where_they_occur(code: str) -> None:
    assert violations(ast.parse(code)) != []


@pytest.mark.parametrize("code", ["model.eval()", "import re\nre.compile('x')", "from safetensors.torch import load"])
def test_harmless_namesakes_of_forbidden_things_are_allowed(code: str) -> None:
    assert violations(ast.parse(code)) == []


@pytest.mark.parametrize(
    ("code", "safe"),
    [
        ("np.load(path)", False),
        ("np.load(path, allow_pickle=True)", False),
        ("np.load(path, allow_pickle=flag)", False),
        ("np.load(path, allow_pickle=False)", True),
    ],
)
def test_an_array_read_is_safe_only_when_it_refuses_pickle(code: str, safe: bool) -> None:
    assert (unsafe_array_reads(ast.parse(code)) == []) is safe


def test_constraints_pin_one_exact_version_of_everything() -> None:
    assert pins()
    for name, version in pins().items():
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", name), name
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)+", version), f"{name}=={version}"


def test_constraints_pin_torch_and_the_accountant() -> None:
    assert pins()["torch"] == "2.13.0"
    assert pins()["dp-accounting"] == "0.6.0"


def test_the_constraints_of_flower_differ_only_in_what_flower_asks_for() -> None:
    flower = pins("constraints-flower.txt")
    assert {name for name, version in flower.items() if pins().get(name, version) != version} == {"packaging", "rich"}
    assert flower["torch"] == pins()["torch"]


def test_the_constraints_of_integrations_add_versions_and_change_none() -> None:
    added = pins("constraints-integrations.txt")
    assert {name for name, version in added.items() if pins().get(name, version) != version} == set()
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    asked = [
        text
        for name in ("transformers", "peft", "trl", "lightning", "sklearn", "trackers", "tables", "sql")
        for text in extras[name]
    ]
    names = {re.split(r"[<>=!~ ]", text)[0] for text in asked if not text.startswith("privet[")}
    assert names - added.keys() == set()


def test_constraints_cover_what_the_library_its_report_and_its_developers_ask_for() -> None:
    table = project()
    dependencies, extras = table["dependencies"], table["optional-dependencies"]
    assert isinstance(dependencies, list)
    assert isinstance(extras, dict)
    names = {re.split(r"[<>=!~ ]", text)[0] for text in [*dependencies, *extras["report"], *extras["dev"]]}
    assert names - pins().keys() == set()


def test_the_version_is_the_same_everywhere() -> None:
    version = project()["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [version]
    research = tomllib.loads((ROOT / "research" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert research["version"] == version
    package = importlib.import_module("privet")
    assert getattr(package, "__version__", version) == version


@pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="needs README.md")
@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_the_command(command: str) -> None:
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "target",
    [
        "check",
        "clean",
        "contracts",
        "demo",
        "dist",
        "bundle",
        "integrations",
        "lint",
        "quick",
        "test",
        "test-slow",
        "types",
        "unit",
    ],
)
def test_the_makefile_has_the_target(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_install_of_the_makefile_is_constrained() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    installs = [line for line in lines if re.search(r"\bpip\b.*\binstall\b|\$\(PIP\) install", line)]
    assert installs
    constrained = r"--constraint (\$\(CONSTRAINTS\)|constraints-(flower|integrations)\.txt)"
    assert [line for line in installs if not re.search(constrained, line)] == []
    assert "CONSTRAINTS ?= constraints.txt" in lines


def test_hosted_checks_cover_every_python_and_the_oldest_and_newest_torch() -> None:
    workflow = (ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8")
    table = project()
    classifiers, dependencies = table["classifiers"], table["dependencies"]
    assert isinstance(classifiers, list)
    assert isinstance(dependencies, list)
    pythons = [text.split()[-1] for text in classifiers if re.search(r":: 3\.\d+$", text)]
    (oldest,) = [text.split(">=")[1] for text in dependencies if text.startswith("torch>=")]
    (tried,) = re.findall(r"^ +python: \[(.+)\]$", workflow, flags=re.MULTILINE)
    (torches,) = re.findall(r"^ +torch: \[(.+)\]$", workflow, flags=re.MULTILINE)
    assert re.findall(r"[\d.]+", tried) == pythons
    assert re.findall(r"[\d.]+", torches) == [f"{oldest}.0", pins()["torch"]]


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_hosted_jobs_run_targets_and_files_that_exist(path: Path) -> None:
    workflow, makefile = path.read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake ([\w-]+)", workflow.replace("make ${{ matrix.target }}", "")))
    targets |= {name for names in re.findall(r"target: \[(.+)\]", workflow) for name in names.split(", ")}
    assert targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, flags=re.MULTILINE)] == []
    for file in re.findall(r"(?:scripts|\.ci)/[\w./]+", workflow):
        assert (ROOT / file).exists(), file


def test_the_changelog_has_notes_for_this_version() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "release_notes.py"), str(project()["version"])]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("### ")
    assert "\n## " not in result.stdout
    unknown = subprocess.run([*command[:-1], "9.9.9"], capture_output=True, text=True, check=False)
    assert unknown.returncode != 0
    assert "9.9.9" in unknown.stderr


def test_the_linter_looks_at_every_source_file() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert {path.as_posix() for path in sources()} <= set(listed.splitlines())


def test_importing_the_library_loads_nothing_heavy() -> None:
    heavy = "{'dp_accounting', 'matplotlib', 'numpy', 'scipy', 'torch'}"
    code = f"import sys, privet; print(sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); {code}"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
