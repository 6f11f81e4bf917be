"""The environment of a run: versions and device, without names of users, machines or folders."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch

from privet import __version__

_PACKAGES = ("dp-accounting", "numpy", "safetensors", "scipy", "torch")


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return the versions and hardware facts that may explain a difference between two runs."""
    return {
        "privet": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "system": platform.system(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
