"""The same random numbers for every run of an experiment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from privet.training.batching import Draws


@contextmanager
def repeatable(device: torch.device, seed: int) -> Iterator[None]:
    """Seed every global generator for the block, and restore their states after it."""
    before = Draws.now(device)
    if device.type == "cpu":
        # torch.manual_seed seeds every kind of device, and writes down the whole stack for those not in use.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        before.restore()
