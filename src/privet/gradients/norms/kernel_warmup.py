"""Kernel warm-up: the kernels that a first physical batch needs are built before they are launched, side by side.

A kernel that was never built on a machine takes a good part of a second at its first launch, most of it in other
programs, and a model needs up to a dozen. Rules and strategies therefore run once with meta tensors, which takes a
moment, and their launches are noted. Threads build those kernels while the trial runs. Nothing depends on it: a kernel
that was not foreseen is built when it is launched.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from privet.gradients.capture.in_place import Function
from privet.gradients.capture.recorded import Recording, Use
from privet.gradients.norms.kernels import Launch, rehearsal
from privet.gradients.norms.planner import Planner
from privet.gradients.rules.example_axis import candidates
from privet.gradients.rules.layer_rules import RULES
from privet.gradients.rules.rule_tools import Rule, resolved

_log = logging.getLogger("privet")

_MAX_THREADS = 8
# Triton sets itself up at its first use, which must happen once.
_SETTING_UP = Lock()


class KernelWarmup:
    """Builds kernels in background threads."""

    def __init__(self, launches: Iterable[Launch], device: torch.device) -> None:
        distinct = {_kind(launch): launch for launch in launches}
        self._built: list[Future[None]] = []
        if distinct:
            threads = ThreadPoolExecutor(min(len(distinct), os.cpu_count() or 1, _MAX_THREADS), "privet-build")
            self._built = [threads.submit(build, launch, device) for launch in distinct.values()]
            threads.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until every kernel is built."""
        wait(self._built)


def _kind(launch: Launch) -> Hashable:
    """Return the key of a kernel's specialisation: of a number, only whether it is 1, a multiple of 16, or neither."""
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
    """Build one kernel as its launch would; if that fails, the launch builds it."""
    try:
        with torch.cuda.device(device):
            _set_up()
            built = launch.kernel.warmup(*launch.arguments, grid=(1,), **launch.settings)
            _ = built.run  # asking for it also builds the code that passes the arguments on
    except Exception as error:  # noqa: BLE001 -- the launch raises it again, where the caller can handle it
        _log.debug("A kernel was not built ahead of time: %s.", error)


def _set_up() -> None:
    with _SETTING_UP:
        importlib.import_module("triton.runtime").driver.active.get_current_device()


def launches_of(recording: Recording, rules: Mapping[Function, Rule], planner: Planner) -> list[Launch]:
    """Return the kernel launches that norms and sums of a recorded forward pass will need, as far as they are known."""
    first = {_shape_of_use(use): use for use in reversed(recording.uses)}
    with rehearsal() as launches, torch.no_grad():
        for use in first.values():
            try:
                _rehearse(_without_memory(use), recording.batch_size, rules, planner)
            except Exception as error:  # noqa: BLE001 -- some operations need memory; their kernels are built later
                _log.debug("'%s' was not rehearsed: %s.", use.name, error)
    return launches


def _rehearse(use: Use, size: int, rules: Mapping[Function, Rule], planner: Planner) -> None:
    axes = candidates(use.output_shape, size)
    rule = RULES.get(use.function)
    if not axes or rule is None or rules.get(use.function) is not rule:  # a user's rule may do more than compute
        return
    for found in rule(use, axes[0], size):
        _, part = resolved(*found)
        weights = torch.empty(size, dtype=torch.float32, device="meta")
        for strategy in planner.options(part):
            kept = strategy.measure(part)[1]
            kept.add_weighted_sum(weights, torch.empty_like(kept[:1].in_full()[0]))


def _without_memory(use: Use) -> Use:
    """Return the use with meta tensors of the same shapes, and an output gradient that has arrived."""
    copies: dict[int, Tensor] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in copies:
            copies[id(value)] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return copies[id(value)]

    args, kwargs = pytree.tree_map(copied, (use.args, use.kwargs))
    return replace(
        use,
        args=args,
        kwargs=kwargs,
        sources=[replace(source, tensor=copied(source.tensor), made_from=None, undo=None) for source in use.sources],
        statistics=None if use.statistics is None else (copied(use.statistics[0]), copied(use.statistics[1])),
        out_grad=torch.empty(use.output_shape, dtype=use.output_dtype, device="meta"),
        edge=None,
        receive=None,
        versions=(),
    )


def _shape_of_use(use: Use) -> Hashable:
    def shape(value: Any) -> Hashable:
        return (value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else repr(value)

    leaves: Sequence[Any] = pytree.tree_leaves((use.args, use.kwargs))
    return use.function, use.output_shape, tuple(map(shape, leaves))
