"""Which line of the user's program asked for an operation."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from types import FrameType

import torch

import privet

# Where torch writes methods of tensors in Python, and hands them to modes.
_METHODS = tuple(str(Path(torch.__file__).parent / name) for name in ("_tensor.py", "overrides.py"))
_ISOLATION = str(Path(__file__).parent) + os.sep
# Where a dry run that departs hands the user's calls on to the capture.
_DRY_RUNS = str(Path(privet.__file__).parent / "training" / "launch") + os.sep
# Methods of the capture through which every call of the user goes.
_HANDING_ON = ("__torch_function__", "_run_unusual", "_examine", "_run")
# Where torch turns tensors into bytes.
_REDUCING = ("__reduce_ex__", "_reduce_ex_internal")
_WRITING = (("torch", "serialization.py"), ("multiprocessing", "reductions.py"))
# The method of a mode that torch shows calls to.
_SHOWING = "__torch_function__"
# With a separator, so that the neighbours of a package are not taken for it.
_OWN = (str(Path(torch.__file__).parent) + os.sep, str(Path(privet.__file__).parent) + os.sep)
# Code without a file that no user has written; code that is typed at a prompt has no file either.
_GENERATED = ("<frozen ", "<eval_with_key>", "<__array_function__ ")


@lru_cache(maxsize=4096)
def _is_own(filename: str) -> bool:
    return filename.startswith((*_OWN, *_GENERATED))


@lru_cache(maxsize=4096)
def _name(filename: str) -> str:
    return Path(filename).name


def user_frame() -> FrameType | None:
    """Return the innermost frame that is neither torch's nor privet's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_within(path: tuple[str, ...]) -> bool:
    """Whether the user's line reached the present operation through a file, named by the end of its path."""
    user = user_frame()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not user:
        if Path(frame.f_code.co_filename).parts[-len(path) :] == path:
            return True
        frame = frame.f_back
    return False


def is_written_out() -> bool:
    """Whether torch writes tensors out at the present operation: into a file, a pickle or the queue of a process."""
    user = user_frame()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not user:
        if frame.f_code.co_name in _REDUCING or Path(frame.f_code.co_filename).parts[-2:] in _WRITING:
            return True
        frame = frame.f_back
    return False


def is_asked_by_torch() -> bool:
    """Whether torch's own Python code asks, on the way from the user's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OWN[1], *_METHODS)):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_OWN[0])


def is_asked_by_privet() -> bool:
    """Whether the present operation is the library's own, such as an engine's that works while a batch is open."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        is_own = name.startswith(_OWN[1])
        hands_on = name.startswith((_ISOLATION, _DRY_RUNS)) or (is_own and frame.f_code.co_name in _HANDING_ON)
        if not hands_on and not name.startswith((_OWN[0], *_GENERATED)):
            return is_own
        frame = frame.f_back
    return False


def user_line() -> str:
    """Return the line that asked for the present operation, as ``file:number, in function``."""
    frame = user_frame()
    if frame is None:
        return ""
    return f"{_name(frame.f_code.co_filename)}:{frame.f_lineno}, in {frame.f_code.co_name}"


def asked() -> tuple[str, bool]:
    """Return the line that asked for the present operation, and whether a call that torch shows asked for it."""
    frame: FrameType | None = sys._getframe(1)
    is_shown = False
    while frame is not None and _is_own(frame.f_code.co_filename):
        is_shown = is_shown or frame.f_code.co_name == _SHOWING
        frame = frame.f_back
    if frame is None:
        return "", is_shown
    return f"{_name(frame.f_code.co_filename)}:{frame.f_lineno}, in {frame.f_code.co_name}", is_shown


def is_inner() -> bool:
    """Whether the present call is made by the library's own code inside a call of the user's."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and _is_own(frame.f_code.co_filename):
        count += frame.f_code.co_name == _SHOWING and not frame.f_code.co_filename.startswith(_DRY_RUNS)
        frame = frame.f_back
    return count > 1
