"""The wheel that users install: built without a network, installed into an environment of its own, and used there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="needs hatchling, which the extra dev brings")

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "privet"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def run(*command: str | Path, cwd: Path) -> str:
    """Return what a command prints; fail with all that it said."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=cwd, env=clean, timeout=300)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of a new environment: the wheel, and this one's other packages behind it."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    programs = folder / "bin"
    install = ("install", "--quiet", "--no-index", "--no-deps", "--no-compile", wheel)
    run(sys.executable, "-m", "pip", "--python", programs / "python", *install, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is added as it is: .pth files inside it, such as that of an editable privet, are not read.
    (site / "the_others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = {f"privet/{path.relative_to(SOURCE).as_posix()}" for path in SOURCE.rglob("*") if path.is_file()}
    kept = {name for name in kept if "__pycache__" not in name and not name.endswith(".pyc")}
    assert {name for name in names if name.startswith("privet/")} == kept
    assert {name.split("/")[0] for name in names} == {"privet", f"privet-{VERSION}.dist-info"}
    assert not [name for name in names if re.search(r"stud(y|ies)|reproduc|research", name)]
    data = {Path(name).suffix for name in kept} - {".py"}
    assert {".toml", ".j2", ".pyi", ".typed"} <= data, data


def test_the_wheel_imports_from_its_own_files_and_finds_every_public_name(environment: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.metadata, pathlib, privet;"
        "[getattr(privet, name) for name in privet.__all__];"
        "print(privet.__file__, privet.__version__, importlib.metadata.version('privet'))"
    )
    file, version, installed = run(environment / "python", "-W", "error", "-c", code, cwd=tmp_path).split()
    assert Path(file).is_relative_to(environment.parent)
    assert version == installed == VERSION


def test_the_installed_command_plans_and_trains_on_the_data_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    assert run(environment / "privet", "--version", cwd=tmp_path).split()[-1] == VERSION
    assert "-DP" in run(environment / "privet", "plan", "demo", cwd=tmp_path)
    steps = ("--set", "privacy.sampling.epochs=", "--set", "privacy.sampling.steps=2", "--device", "cpu")
    run(environment / "privet", "train", "demo", "-o", "runs/demo", "--quiet", *steps, cwd=tmp_path)
    assert "-DP" in run(environment / "privet", "account", "runs/demo", cwd=tmp_path)
