"""The public surface: what is at the top, what is in the modules of a family, and that every name in a text exists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

import privet

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "privet"
TEXTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "src/privet/**/*.py",
        "src/privet/**/*.toml",
        "src/privet/**/*.j2",
        "examples/**/*.py",
        "benchmarks/*.py",
        "research/**/*.py",
        "scripts/*.py",
        ".github/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
PAGES = sorted(
    path for pattern in ("README.md", "docs/*.md", "examples/*.py", "examples/*.ipynb") for path in ROOT.glob(pattern)
)
SHORT = re.compile(r"(?<![\w.])pv\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
ROLE = re.compile(r"(?::(?:class|func|meth|mod|data|attr):`~?|``)privet\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`")
# Every name that was at the top in 0.1.
FORMER = re.findall(
    r"\w+",
    """
    AdaptiveGaussian AdaptiveQuantile Adjacency Automatic BlockL2 Blocks BookKeeping ByName Check ChosenMask
    Compiled Constant ConvexReluClassifier Coordinates Cosine CosineDecay CudaGraph Cyclic DPAdam DPAdamW
    Diagonal Eager EllipticalGaussian ExponentialAverage Factored FixedSize FrozenMask FullBatch Functional
    Gaussian GradualCooling GroupwiseGaussian Guarantee Isotropic KeepOrDrop L2Laplace LearningRate Ledger
    Linear LinearDecay NoMask NoNoise NoisyCGD OneGroup OneItemPerPerson PastGradients PerGroup PerLayer
    PerParameter PerSampleAdaptive Plan Poisson PrivateClassifier PrivateNormalisation PrivateRegressor
    PrivetError ProductLaplace RandomMask RankedMask Release ReleasedSquares Rows Scheduled Session
    SharedRandomMask ShiftAndFlip Shuffle Step StepDecay StronglyConvexDescent SufficientStatistics Threshold
    TruncatedPoisson Truncation Unclipped Unit Unprotected Views Waiver mean_over_views optimal_block_l2
    optimal_product_laplace preflight privatize public_geometry release_geometry replace_batchnorm sgd
    suggest_physical_batch
""",
)
# Names of modules that need a package which has an environment of its own.
NEEDS = {
    "flwr": {"Patience", "client_app", "server_app"},
    "transformers": {"PrivateTrainer", "PrivateTraining"},
    "lightning": {"PrivateModule", "PrivateSteps"},
}
MISSING = {name for package, names in NEEDS.items() if importlib.util.find_spec(package) is None for name in names}


def exists(dotted: str) -> bool:
    """Follow a name from the package on; modules that need packages which are not installed are looked up only."""
    found: object = privet
    path = "privet"
    for part in dotted.split("."):
        path += f".{part}"
        if part in MISSING:
            return True
        try:
            found = getattr(found, part)
            continue
        except DeprecationWarning:
            return False  # a text gives the new name
        except AttributeError:
            pass
        if not hasattr(found, "__path__") or importlib.util.find_spec(path) is None:
            return False
        found = importlib.import_module(path)
    return True


def public_names(module: str) -> list[str]:
    """Return what a public module offers."""
    found = importlib.import_module(f"privet.{module}")
    return [name for name in getattr(found, "__all__", None) or dir(found) if not name.startswith("_")]


@pytest.mark.parametrize("pattern", [SHORT, ROLE], ids=["pv.NAME", "references"])
def test_every_name_that_a_text_gives_the_reader_exists(pattern: re.Pattern[str]) -> None:
    named = {(path, name) for path in TEXTS for name in pattern.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    known = {name: exists(name) for name in {name for _, name in named}}
    assert sorted(f"{path.relative_to(ROOT)}: {name}" for path, name in named if not known[name]) == []


def test_a_name_that_does_not_exist_is_noticed() -> None:
    assert not exists("NoSuchPiece")
    assert not exists("noise.NoSuchPiece")
    assert not exists("Poisson.no_such_method")
    assert exists("Poisson.for_dataset")
    assert exists("masks.RandomMask")


def test_no_file_hides_a_name_of_the_top() -> None:
    assert not set(privet._WHERE) & {path.stem for path in SOURCE.iterdir()}


def test_the_top_has_few_names_and_none_that_torch_uses_for_something_else() -> None:
    names = set(privet._WHERE)
    assert len(names) <= 35
    torch_names = {*dir(torch.nn), *dir(torch.optim), *dir(torch.optim.lr_scheduler), *dir(torch.utils.data)}
    assert names & torch_names == {"Threshold"}  # also an activation, which nobody looks for in a plan


@pytest.mark.parametrize("name", FORMER)
def test_names_of_the_last_version_work_and_the_warning_names_the_new_one(name: str) -> None:
    if name in privet._WHERE:
        assert exists(name)
        return
    home = privet._MOVED[name]
    with pytest.warns(
        DeprecationWarning, match=rf"privet\.{name} is now privet\.{home}\.{name}; .* will be removed in 0\.3"
    ):
        former = getattr(privet, name)
    assert former is getattr(getattr(privet, home), name)
    assert name not in dir(privet)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("privet.attacks.canary_audit", "CanaryAudit sharpened"),
        ("privet.convex.descent", "NoisyCGD"),
        ("privet.effects.mitigation", "charged_for_group_rates"),
        ("privet.effects.sparsification", "ConvergenceTerms equivalent_clipping"),
        ("privet.experiments.evaluation", "measure_model"),
        ("privet.experiments.predicting", "model_of predict_new"),
        ("privet.federated.agreement", "Agreement"),
        ("privet.federated.contributions", "ClippedSums"),
        ("privet.federated.coordinator", "Coordinator"),
        ("privet.federated.party", "Party"),
        ("privet.mechanism.release_masks", "ChosenMask"),
        ("privet.vocabulary", "Adjacency Unit"),
        ("privet.models.adapters", "adapter_weights add_adapters merge_adapters"),
        ("privet.plan", "Plan"),
        ("privet.reports.comparison", "write_comparison"),
        ("privet.reports.content", "gather"),
        ("privet.reports.report", "write_report"),
    ],
)
def test_imports_that_pages_of_the_last_version_showed_still_work(module: str, names: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [getattr(importlib.import_module(module), name) for name in names.split()]
    assert all(callable(value) for value in found)
    assert all(
        re.search(r" is now privet\.\S+; .* will be removed in 0\.3", str(warning.message)) for warning in caught
    )
    is_former = "will be removed in 0.3" in str(importlib.import_module(module).__doc__)
    assert len(caught) == len(found) * is_former


def test_only_former_names_are_moved_names() -> None:
    assert set(privet._MOVED) <= set(FORMER)


def test_the_warning_points_at_the_line_that_uses_the_name() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        privet.KeepOrDrop  # noqa: B018
    assert [Path(warning.filename).name for warning in caught] == ["test_names.py"]


@pytest.mark.parametrize("module", privet._MODULES)
def test_every_name_of_a_public_module_exists_and_is_no_module(module: str) -> None:
    names = public_names(module)
    assert names
    for name in names:
        if name not in MISSING:
            assert not isinstance(getattr(importlib.import_module(f"privet.{module}"), name), ModuleType), name
    if not hasattr(importlib.import_module(f"privet.{module}"), "__all__"):
        hidden = set(names) & {path.stem for path in (SOURCE / module).glob("*.py")}
        assert not hidden, f"submodules would hide {hidden}: take them as other names"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("__init__.pyi")), ids=lambda path: path.parent.name)
def test_type_checkers_see_the_names_that_are_looked_up_at_run_time(path: Path) -> None:
    module = importlib.import_module(".".join(["privet", *path.relative_to(SOURCE).parent.parts]))
    stub = ast.parse(path.read_text(encoding="utf-8"))
    imports = [alias for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    listed = [ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign)]
    # a stub re-exports names with a redundant alias, or those that it lists
    seen = {alias.asname for alias in imports if alias.asname == alias.name}.union(*listed)
    assert seen == {name for name in dir(module) if not name.startswith("_")}


def test_public_modules_are_attributes_and_the_half_that_plans_loads_no_torch() -> None:
    planning = ["accounting", "clipping", "errors", "grouping", "masks", "mechanism", "noise", "sampling", "schedules"]
    code = (
        "import sys, privet\n"
        f"modules = [getattr(privet, name) for name in {planning}]\n"
        "[getattr(module, name) for module in modules for name in getattr(module, '__all__', None) or dir(module)]\n"
        "assert 'torch' not in sys.modules\n"
        "[getattr(privet, name) for name in privet._MODULES]\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=None)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_and_examples_import_public_modules_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for module, names in re.findall(r"^\s*from privet\.([\w.]+) import (\([^)]*\)|[^\n]+)", text, flags=re.MULTILINE):
        assert module in privet._MODULES, f"{path.name} imports from privet.{module}, which is not public"
        asked = {name.split(" as ")[0].strip() for name in names.strip("()").split(",") if name.strip()}
        assert asked <= {*public_names(module)}, f"{path.name}: {asked - {*public_names(module)}} of privet.{module}"
    assert re.findall(r"^\s*import privet\.[\w.]+", text, flags=re.MULTILINE) == []
