"""Rows that a parameter grows for every example: where the examples lie in them."""

from __future__ import annotations

from torch import Tensor

from privet.gradients.capture.recorded import Recording
from privet.isolation.place import Place, single


def declare_if_public(recording: Recording, source: Tensor, output: Tensor) -> None:
    """Say that a table looked up at constants that were made in the shape of the examples has rows of theirs."""
    follower = recording.follower
    is_public = follower is not None and follower.tracer is not None and follower.verdict(output) is None
    if is_public and output.dim() and output.shape[0] == recording.batch_size:
        declare_rows(recording, source, output)


def declare_rows(recording: Recording, source: Tensor, output: Tensor) -> None:
    """Say of copies of a parameter, one for each example, that they are the examples'."""
    if recording.follower is not None:
        size = recording.batch_size
        is_first = output.shape[0] == size and (source.dim() < output.dim() or source.shape[0] == 1)
        axis = 0 if is_first or output.dim() < 3 else 1
        recording.follower.declare(output, single(0) if size == 1 else Place(axis, 1, 1, 0, size))
