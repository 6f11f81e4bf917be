"""Figures of a step over all ranks. They are not private, and go to the receiver of each rank alone."""

from __future__ import annotations

import json

import numpy as np
import torch

from privet.training.distributed.ranks import Point, Ranks
from privet.training.telemetry import Receiver, Telemetry


class SharedTelemetry(Telemetry):
    """Collects the figures of each step from all ranks; every receiver gets those of the whole batch."""

    def __init__(self, receiver: Receiver, ranks: Ranks) -> None:
        """Hand the figures of each step to ``receiver``; all ranks have one."""
        super().__init__(receiver)
        self._ranks = ranks

    def after_update(self, step: int, num_examples: int) -> None:
        norms = torch.cat(self._norms).float().cpu() if self._norms else torch.zeros(0)
        sums = json.dumps([self._loss_sum, self._clipped, num_examples, list(norms.shape)]).encode()
        notes = self._ranks.meet(Point.REPORTING, note=sums + b"\n" + norms.contiguous().numpy().tobytes())
        self._loss_sum, self._clipped, total = 0.0, 0, 0
        self._norms = []
        for note in notes:
            figures, _, numbers = note.partition(b"\n")
            loss, clipped, number, shape = json.loads(figures)
            self._loss_sum, self._clipped, total = self._loss_sum + loss, self._clipped + clipped, total + number
            if number:
                self._norms.append(torch.from_numpy(np.frombuffer(numbers, np.float32).reshape(shape).copy()))
        super().after_update(step, total)
