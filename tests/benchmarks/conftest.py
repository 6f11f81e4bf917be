from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _quick_and_honest() -> Iterator[None]:
    """Run on one thread, and keep what the test session holds out of the benchmark's garbage collections."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(before)
