"""Pack privet and its dependencies, except torch, numpy and scipy, into one folder.

It is for machines with an accelerator and a working torch on which nothing can be installed. Copy ``build/bundle``
there and put it on ``PYTHONPATH``::

    python scripts/bundle.py --python-version 3.12
    PYTHONPATH=build/bundle python3.12 -m privet.cli.main --help

Wheels are chosen for the *target* (x86-64 Linux with glibc, the given Python), not for the machine this script runs on,
and always in the versions of ``constraints.txt``. The script uses the standard library and the pip of its interpreter.
"""

from __future__ import annotations

import argparse
import email
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Packages of the target machine. Their dependencies are not followed and not bundled.
PROVIDED = frozenset({"numpy", "scipy", "torch"})
# The report is part of a run; plots are not (`--also matplotlib`).
ALWAYS = ("jinja2",)
# Newest first: pip takes exactly the tags it is given and does not derive the older ones from the newest.
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_12_x86_64",
    "manylinux2010_x86_64",
    "manylinux_2_5_x86_64",
    "manylinux1_x86_64",
)
DEAD_WEIGHT = ("bin", "absl/testing", "**/tests", "**/__pycache__")
LIMIT_MIB = 44


class BundleError(RuntimeError):
    """The bundle cannot be made; the message says why."""


def canonical(name: str) -> str:
    """Return a distribution name in the normal form of the packaging standard."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    """Return the canonical distribution name at the start of a requirement."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if match is None:
        raise BundleError(f"No distribution name in the requirement {requirement!r}.")
    return canonical(match.group(1))


def read_pins(path: Path) -> dict[str, str]:
    """Return the exact version of every distribution in a constraints file."""
    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            name, separator, version = text.partition("==")
            if not separator:
                raise BundleError(f"{path.name} must pin exact versions, found {text!r}.")
            pins[canonical(name)] = version
    return pins


def direct_requirements() -> set[str]:
    """Return the direct dependencies of privet, without the packages of the target machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {requirement_name(text) for text in project["dependencies"]} - PROVIDED


def requirements_of(metadata: Path, pins: Iterable[str]) -> Iterator[str]:
    """Yield the dependencies of one installed distribution.

    Markers other than extras are not evaluated: ``constraints.txt`` pins exactly the packages of a Linux machine, so a
    backport or a package for Windows is not in it and is left out.
    """
    for text in email.message_from_string(metadata.read_text(encoding="utf-8")).get_all("Requires-Dist") or []:
        requirement, _, marker = text.partition(";")
        name = requirement_name(requirement)
        if "extra" not in marker and name in pins and name not in PROVIDED:
            yield name


def install(names: Iterable[str], *, pins: dict[str, str], target: Path, python_version: str) -> None:
    """Unpack the pinned wheels of ``names``, and nothing they depend on, into ``target``."""
    platforms = [argument for platform in PLATFORMS for argument in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--target", str(target), "--python-version", python_version, "--implementation", "cp", *platforms]
    command += ["--only-binary=:all:", "--no-deps", "--no-warn-conflicts"]
    command += [f"{name}=={pins[name]}" for name in sorted(names)]
    if subprocess.run(command, check=False).returncode != 0:
        raise BundleError(f"pip found no wheels for Python {python_version} on x86-64 Linux; its message is above.")


def install_closure(roots: set[str], *, pins: dict[str, str], target: Path, python_version: str) -> list[str]:
    """Install ``roots`` and, level by level, everything they need; return all names in order."""
    done: set[str] = set()
    wanted = set(roots)
    while wanted:
        if unpinned := sorted(wanted - pins.keys()):
            raise BundleError(f"constraints.txt does not pin {', '.join(unpinned)}: add the tested versions first.")
        install(wanted, pins=pins, target=target, python_version=python_version)
        done |= wanted
        needed = {name for file in target.glob("*.dist-info/METADATA") for name in requirements_of(file, pins)}
        wanted = needed - done
    return sorted(done)


def strip(target: Path) -> None:
    """Remove files that privet does not need: caches, test suites, scripts of the build machine, long metadata."""
    for pattern in DEAD_WEIGHT:
        # Deepest first, so that no folder is removed twice.
        for folder in sorted(target.glob(pattern), reverse=True):
            if folder.is_dir():
                shutil.rmtree(folder)
    for info in target.glob("*.dist-info"):
        # Names, versions, entry points and licence texts stay: importlib.metadata and the licences require them.
        for leftover in ("RECORD", "REQUESTED", "INSTALLER", "direct_url.json"):
            (info / leftover).unlink(missing_ok=True)


def copy_privet(target: Path) -> None:
    """Copy the package with its data, and the metadata that answers ``importlib.metadata.version("privet")``."""
    shutil.copytree(ROOT / "src" / "privet", target / "privet", ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = target / f"privet-{project['version']}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: privet\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "LICENSE", info / "LICENSE")


def size_mib(folder: Path) -> float:
    """Return the size of all files below ``folder`` in MiB."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def build(*, target: Path, python_version: str, also: Iterable[str]) -> None:
    """Build the bundle from scratch and print its contents."""
    pins = read_pins(ROOT / "constraints.txt")
    roots = direct_requirements() | {canonical(name) for name in (*ALWAYS, *also)}
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    names = install_closure(roots - PROVIDED, pins=pins, target=target, python_version=python_version)
    strip(target)
    copy_privet(target)
    size = size_mib(target)
    for name in names:
        print(f"{name} {pins[name]}")
    print(f"{target}: {len(names)} distributions and privet, {size:.1f} MiB, for Python {python_version}")
    if size > LIMIT_MIB and not also:
        raise BundleError(f"The bundle is larger than {LIMIT_MIB} MiB: a dependency grew; see which with du.")


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description="Pack privet for a machine that has torch and cannot install.")
    parser.add_argument("--python-version", default="3.12", help="Python of the target machine (default: 3.12)")
    parser.add_argument("--also", action="append", default=[], metavar="NAME", help="one more pinned distribution")
    parser.add_argument("--target", type=Path, default=ROOT / "build" / "bundle", help="folder to replace")
    arguments = parser.parse_args()
    if not re.fullmatch(r"3\.\d+", arguments.python_version):
        parser.error(f"--python-version must look like 3.12, got {arguments.python_version!r}")
    try:
        build(target=arguments.target, python_version=arguments.python_version, also=arguments.also)
    except BundleError as error:
        sys.exit(f"bundle: {error}")


if __name__ == "__main__":
    main()
