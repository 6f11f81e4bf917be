"""Ways to launch the operations of a step on a device. The launch does not change the guarantee."""

from __future__ import annotations

from privet.training.launch.replay import Automatic, Compiled, CudaGraph, Eager

__all__ = [
    "Automatic",
    "Compiled",
    "CudaGraph",
    "Eager",
]
