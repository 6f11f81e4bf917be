"""Taking a capture on and off torch's stacks of modes."""

from __future__ import annotations

import sys

import torch
from torch.overrides import _pop_mode, _push_mode

from privet.gradients.capture.capture import Capture


def enter(capture: Capture) -> None:
    """Watch from now on. Compiled parts of a model run uncompiled meanwhile: nobody can look into compiled code."""
    if "torch._dynamo" in sys.modules:
        capture.stance = torch.compiler.set_stance("force_eager")
    capture.__enter__()  # type: ignore[no-untyped-call]


def leave(capture: Capture) -> None:
    """Take one mode out of torch's stack, wherever it lies: two sessions may have physical batches open at once."""
    above = []
    if capture.stance is not None:
        capture.stance.__exit__(None, None, None)
        capture.stance = None
    if capture.recording.follower is not None:
        capture.recording.follower.leave()
    while (top := _pop_mode()) is not capture:  # type: ignore[no-untyped-call]
        above.append(top)
    for mode in reversed(above):
        _push_mode(mode)  # type: ignore[no-untyped-call]
