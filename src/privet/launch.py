"""How the operations of a step are launched on a device. No launch can change a guarantee."""

from __future__ import annotations

from privet.training.launch.replay import Compiled, CudaGraph, Eager

__all__ = [
    "Compiled",
    "CudaGraph",
    "Eager",
]
