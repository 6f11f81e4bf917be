"""The same random numbers for every run of an experiment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def repeatable(device: torch.device, seed: int) -> Iterator[None]:
    """Seed every global generator for the block, and restore their states after it."""
    outer, global_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(outer)
            np.random.set_state(global_numpy)
