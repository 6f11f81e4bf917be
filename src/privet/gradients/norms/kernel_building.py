"""Kernels built before they are launched, side by side.

A kernel that was never built on a machine takes a good part of a second at its first launch, most of it in other
programs, and a model needs up to a dozen. What is known to be launched soon is therefore built by several threads while
other things are done. Nothing depends on it: a kernel that was not foreseen is built when it is launched.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any

import torch

from privet.gradients.norms.kernels import Launch

_log = logging.getLogger("privet")

_MAX_THREADS = 8
# What triton sets up at its first use must be set up once.
_SETTING_UP = Lock()


class Building:
    """Kernels that are being built."""

    def __init__(self, launches: Iterable[Launch], device: torch.device) -> None:
        """Begin, in threads that end by themselves."""
        distinct = {_kind(launch): launch for launch in launches}
        self._built: list[Future[None]] = []
        if distinct:
            threads = ThreadPoolExecutor(min(len(distinct), os.cpu_count() or 1, _MAX_THREADS), "privet-build")
            self._built = [threads.submit(build, launch, device) for launch in distinct.values()]
            threads.shutdown(wait=False)

    def wait(self) -> None:
        """Return when nothing is being built any more."""
        wait(self._built)


def _kind(launch: Launch) -> Hashable:
    """Name what a kernel is built for: of a number only whether it is one, a multiple of 16, or neither."""
    parameters = getattr(launch.kernel, "params", ())
    fixed = {at for at, parameter in enumerate(parameters) if getattr(parameter, "do_not_specialize", False)}
    kinds = tuple(_number_kind(value, at in fixed) for at, value in enumerate(launch.arguments))
    return id(launch.kernel), kinds, tuple(sorted(launch.settings.items()))


def _number_kind(value: Any, is_fixed: bool) -> Hashable:
    if not isinstance(value, int):
        return str(value) if isinstance(value, torch.dtype) else type(value).__name__
    width = 64 if value >= 1 << 31 else 32
    return (width, None) if is_fixed else (width, value == 1, value % 16 == 0)


def build(launch: Launch, device: torch.device) -> None:
    """Build one kernel as it would be at its launch; if that fails, leave it to the launch."""
    try:
        with torch.cuda.device(device):
            _set_up()
            built = launch.kernel.warmup(*launch.arguments, grid=(1,), **launch.settings)
            _ = built.run  # asking for it builds what passes the arguments on, too
    except Exception as error:  # noqa: BLE001 -- whatever it is comes again, with a place to go, at the launch
        _log.debug("A kernel was not built ahead of time: %s.", error)


def _set_up() -> None:
    with _SETTING_UP:
        importlib.import_module("triton.runtime").driver.active.get_current_device()
