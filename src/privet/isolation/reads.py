"""Numbers of the examples that a program hands to Python, and the reasons why some of that is harmless."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import PurePath
from types import FrameType

from privet.isolation.lines import user_frame


@dataclass(frozen=True, slots=True)
class Read:
    """One read of private numbers by Python.

    Attributes:
        operation: What read them.
        line: The line that asked.
        allowed_because: The name of the rule that allows it; empty if none does.
        serial: How many tensors there were by then; losses that were there already do not depend on it.
    """

    operation: str
    line: str
    allowed_because: str = ""
    serial: int = 0


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A place in a well-known library whose reads change no example's loss."""

    package: tuple[str, ...]
    files: tuple[str, ...]
    because: str


_PACKING = "sequences are packed by their lengths; where their rows lie is then tried at every batch"
_ALLOWED = (
    _Allowed(("torch", "nn", "utils"), ("rnn.py",), _PACKING),
    _Allowed(("torch", "nn", "modules"), ("rnn.py",), _PACKING),
    _Allowed(
        ("transformers",),
        ("masking_utils.py", "modeling_attn_mask_utils.py"),
        "a padding mask that hides nothing is left out, which gives the same attention",
    ),
)


def _line(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}, in {frame.f_code.co_name}"


def may_read(operation: str, serial: int) -> Read:
    """Note a read by the innermost line of the user's program, and find the rule that allows it."""
    user = user_frame()
    frame: FrameType | None = sys._getframe(1)
    because = ""
    while frame is not None and not because:
        path = PurePath(frame.f_code.co_filename)
        for allowed in _ALLOWED:
            if path.name in allowed.files and path.parts[-1 - len(allowed.package) : -1] == allowed.package:
                because = allowed.because
        frame = None if frame is user else frame.f_back
    return Read(operation, _line(user), because, serial)
