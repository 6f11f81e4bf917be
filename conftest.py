"""What every test shares: one thread, and the rules by which marked tests skip themselves."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before torch is imported anywhere: small matrices are slower, and sums less repeatable, when threads share a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
# The same examples on every run: a failure seen once is seen again.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def state_of_no_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What stays on a machine stays out of the home folder of whoever runs the tests, also in processes they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVET_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def a_machine_for_every_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test knows how far another has taken a copy of the same run."""
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVET_STATE", f"{os.environ['PRIVET_STATE']}/{name}")
        yield


@pytest.fixture
def go_to_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Return what leaves this machine: a copy of a folder can go on there, and stands in for a crash."""
    return lambda: monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "another machine"))


@pytest.fixture(autouse=True, scope="session")
def verbs_of_research(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """``privet study`` and ``privet reproduce`` are found although research/ is on the path only, not installed."""
    try:
        importlib.metadata.distribution("privet-research")
    except importlib.metadata.PackageNotFoundError:
        research = Path(__file__).parent / "research"
        found = tmp_path_factory.mktemp("site")
        _write_metadata(found, tomllib.loads((research / "pyproject.toml").read_text(encoding="utf-8"))["project"])
        paths = [str(found), str(research / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path, str(found)])
            patch.setenv("PYTHONPATH", os.pathsep.join(paths))
            yield
    else:
        yield


def _write_metadata(folder: Path, project: dict[str, Any]) -> None:
    """Write what an installer would write of a project: its name, its version and its entry points."""
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n\n".join(groups) + "\n", encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def _wants_slow(config: pytest.Config) -> bool:
    return bool(config.getoption("--slow")) or "slow" in str(config.getoption("markexpr"))


def _has_data() -> bool:
    folder = os.environ.get("PRIVET_DATA")
    return folder is not None and Path(folder).is_dir()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = {
        "slow": None if _wants_slow(config) else "slow: give --slow or -m slow to run it",
        "gpu": None if torch.cuda.is_available() else "needs a CUDA device",
        "data": None if _has_data() else "needs the folder named by PRIVET_DATA",
    }
    for item in items:
        for name, reason in reasons.items():
            if reason is not None and item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
