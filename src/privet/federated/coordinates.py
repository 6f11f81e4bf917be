"""The coordinates that the mask of a round keeps: selecting their values from a vector, and the reverse."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from privet.errors import UnsupportedModel
from privet.federated.agreement import Agreement
from privet.federated.messages import Values
from privet.gradients.engines.support import find_wrappers
from privet.mechanism.granularity import Kept
from privet.mechanism.layout import Layout
from privet.training.trained import trainable_parameters


def layout_of(model: nn.Module, agreement: Agreement) -> Layout:
    """Return the layout of the trainable parameters in one vector; refuse a distributed model."""
    wrappers = find_wrappers(model)
    if wrappers:
        raise UnsupportedModel("\n".join(str(finding) for finding in wrappers))
    named = [(name, tuple(value.shape)) for name, value in trainable_parameters(model)]
    return Layout.of(named, agreement.plan.grouping)


def read_weights(model: nn.Module) -> Tensor:
    """Return a copy of all trainable weights as one vector."""
    return torch.cat([value.detach().reshape(-1).float().cpu() for _, value in trainable_parameters(model)])


@torch.no_grad()
def write_weights(model: nn.Module, flat: Tensor) -> None:
    """Set all trainable weights from one vector."""
    start = 0
    for _, value in trainable_parameters(model):
        value.copy_(flat[start : start + value.numel()].view(value.shape))
        start += value.numel()


class SharedCoordinates:
    """The masks of an agreement on a model, identical for all parties."""

    def __init__(self, agreement: Agreement, layout: Layout, device: torch.device) -> None:
        """Bind the mask to the layout, on the device of the sums."""
        plan = agreement.plan
        self._run = plan.mask.start(
            layout=layout, num_steps=plan.num_steps, steps_per_epoch=plan.sampling.steps_per_epoch
        )
        self._like = torch.zeros(layout.num_coordinates, device=device)
        self._steps_per_round = agreement.contribution.steps_per_round
        # public masks do not use it
        self._unused = np.random.Generator(np.random.PCG64(0))

    @property
    def number(self) -> int:
        """Number of coordinates of the model."""
        return len(self._like)

    def kept(self, number: int) -> Kept | None:
        """Return the kept coordinates of a round; None for all."""
        return self._run.begin(number * self._steps_per_round, self._unused, self._like)

    def num_kept(self, number: int) -> int:
        """Return the number of values in an answer to a round."""
        kept = self.kept(number)
        return self.number if kept is None else len(kept.index)

    def changed(self, since: int, number: int) -> Tensor:
        """Return, in order, the coordinates that may differ between the models at the starts of two rounds."""
        union = torch.zeros_like(self._like, dtype=torch.bool)
        for between in range(since, number):
            kept = self.kept(between)
            if kept is None:
                return torch.arange(self.number)
            union |= kept.coordinates
        return union.nonzero().squeeze(1).cpu()

    def gather(self, flat: Tensor, number: int) -> Values:
        """Return the values of the kept coordinates of a round."""
        kept = self.kept(number)
        flat = flat.to(self._like.device)
        values: Values = (flat if kept is None else flat[kept.index]).float().cpu().numpy()
        return values

    def scatter(self, values: Values, number: int) -> Tensor:
        """Return the full vector of a round's values, zero at masked coordinates."""
        kept = self.kept(number)
        found = torch.from_numpy(np.array(values, dtype=np.float32)).to(self._like.device)
        return found if kept is None else torch.zeros_like(self._like).index_copy_(0, kept.index, found)
