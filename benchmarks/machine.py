"""The machine of the benchmark: description, peak performance and settings."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import torch

_LIBRARIES = (
    "torch",
    "triton",
    "privet",
    "opacus",
    "fastDP",
    "opake-engine",
    "numpy",
    "transformers",
    "torchvision",
    "peft",
)
# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER_TRIM = 2**31 - 1


class Precision(Enum):
    """Precision of float32 matrix products."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"

    @property
    def autocast(self) -> torch.dtype | None:
        """The type of products under autocast, or None."""
        return torch.bfloat16 if self is Precision.BF16 else None

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Set torch's switches for matrix products and convolutions, and restore them."""
        matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest" if self is Precision.FP32 else "high")
        torch.backends.cudnn.allow_tf32 = self is not Precision.FP32
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.allow_tf32 = convolution


def use_arena() -> bool:
    """Let glibc keep freed memory instead of returning it after every large tensor; return whether it does.

    Without this, memory mapping by the kernel is a visible part of every step on a processor, for all contenders.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER_TRIM))


def environment(device: torch.device, *, num_threads: int) -> dict[str, Any]:
    """Return the device and the versions of the libraries."""
    versions = {}
    for library in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": f"{device.type}: {name}",
        "python": platform.python_version(),
        "versions": versions | {"torch": torch.__version__},
        "threads": num_threads,
    }


def ceilings(device: torch.device) -> dict[str, float]:
    """Measure the peak performance of the device: copies, matrix products, normal random numbers."""
    is_gpu = device.type == "cuda"
    side, length = (8192, 1 << 28) if is_gpu else (1024, 1 << 24)
    source = torch.zeros(length, device=device)
    target = torch.empty_like(source)
    left = torch.randn(side, side, device=device)
    product = torch.empty_like(left)
    draws = torch.empty(length // 4, device=device)
    double = torch.empty(length // 8, device=device, dtype=torch.float64)
    return {
        "copy_gigabytes_per_second": 8e-9 * length / _best_seconds(lambda: target.copy_(source), is_gpu),
        "mm_teraflops": 2e-12 * side**3 / _best_seconds(lambda: torch.mm(left, left, out=product), is_gpu),
        "normal_float32_gigadraws_per_second": 1e-9 * draws.numel() / _best_seconds(draws.normal_, is_gpu),
        "normal_float64_gigadraws_per_second": 1e-9 * double.numel() / _best_seconds(double.normal_, is_gpu),
    }


def _best_seconds(work: Callable[[], object], is_gpu: bool) -> float:
    found = []
    for _ in range(5):
        if is_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if is_gpu:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found[1:])
