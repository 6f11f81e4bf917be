"""Numbers of the examples that a program hands to Python, and the reasons why some of that is harmless."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from linecache import getline
from pathlib import PurePath
from types import FrameType
from typing import Any

import torch

from privet.isolation.lines import user_frame


@dataclass(frozen=True, slots=True)
class Read:
    """One read of private numbers by Python.

    Attributes:
        operation: The function that read them.
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
    """A place in a well-known library whose reads change no example's loss.

    Attributes:
        package: The last folders of the path of its files.
        files: Their names.
        because: Why the reads are harmless.
        line: How the line that reads begins; empty if all reads of the files are harmless.
    """

    package: tuple[str, ...]
    files: tuple[str, ...]
    because: str
    line: str = ""

    def allows(self, frame: FrameType) -> bool:
        """Whether a frame is at this place."""
        path = PurePath(frame.f_code.co_filename)
        if path.name not in self.files or path.parts[-1 - len(self.package) : -1] != self.package:
            return False
        return not self.line or getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith(self.line)


_PACKING = "sequences are packed by their lengths; where their rows lie is then tried at every batch"
_ALLOWED = (
    _Allowed(("torch", "nn", "utils"), ("rnn.py",), _PACKING),
    _Allowed(("torch", "nn", "modules"), ("rnn.py",), _PACKING),
    _Allowed(
        ("transformers",),
        ("masking_utils.py", "modeling_attn_mask_utils.py"),
        "a padding mask that hides nothing is left out, which gives the same attention",
    ),
    *(
        _Allowed(
            ("transformers", "models", name),
            (f"modeling_{name}.py",),
            "lengths are checked, which stops the program or changes nothing",
            line="assert lengths.max().item() <= slen",
        )
        for name in ("xlm", "flaubert")
    ),
    *(
        _Allowed(
            ("transformers", "models", name),
            (f"modeling_{name}.py",),
            "global attention that no token asks for is left out, which gives the same attention; "
            "what is read where some token does is not allowed",
            line="is_global_attn = is_index_global_attn.flatten().any().item()",
        )
        for name in ("longformer", "led")
    ),
)


def checks_only(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why the reads of a torch function are harmless; empty if no reason is known."""
    if function is torch.nn.functional.one_hot:
        num_classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        if isinstance(num_classes, int) and num_classes > 0:
            return "classes are checked against their number, which stops the program or changes nothing"
    return ""


def _line(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}, in {frame.f_code.co_name}"


def may_read(operation: str, serial: int, because: str = "") -> Read:
    """Note a read by the innermost line of the user's program, and find the rule that allows it."""
    user = user_frame()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not because:
        because = next((allowed.because for allowed in _ALLOWED if allowed.allows(frame)), "")
        frame = None if frame is user else frame.f_back
    return Read(operation, _line(user), because, serial)
