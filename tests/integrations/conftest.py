"""These tests need packages that have an environment of their own; elsewhere they are not collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

# A file is collected where all packages that it needs are installed.
NEEDS = {
    "test_hugging_face_*.py": ("transformers", "peft", "trl", "datasets"),
    "test_texts_of_persons.py": ("transformers",),
    "tiny.py": ("transformers",),
    "words.py": ("transformers",),
    "lightning_jobs.py": ("lightning",),
}
collect_ignore_glob = [
    file for file, packages in NEEDS.items() if any(importlib.util.find_spec(package) is None for package in packages)
]


@pytest.fixture(autouse=True)
def equal_runs_end_with_equal_bits() -> Iterator[None]:
    """Choose nothing by the clock: these tests compare the weights of two runs bit for bit."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
