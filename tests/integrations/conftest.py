"""These tests need packages that have an environment of their own; elsewhere they are not collected."""

from __future__ import annotations

import importlib.util

# A file is collected where all packages that it needs are installed.
NEEDS = {
    "test_hugging_face_*.py": ("transformers", "peft", "trl", "datasets"),
    "tiny.py": ("transformers",),
    "words.py": ("transformers",),
    "lightning_jobs.py": ("lightning",),
}
collect_ignore_glob = [
    file for file, packages in NEEDS.items() if any(importlib.util.find_spec(package) is None for package in packages)
]
