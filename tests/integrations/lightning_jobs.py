"""A small job, in Lightning and in the own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import privet as pv
from privet.integrations import PrivateModule, PrivateRun, PrivateSteps


def data(num: int = 40) -> TensorDataset:
    inputs = torch.randn(num, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def plan(*, batch_size: float = 4.0, epochs: int = 2) -> pv.Plan:
    return pv.Plan.dpsgd(dataset_size=40, batch_size=batch_size, epochs=epochs, noise_multiplier=1.0, delta=1e-3)


class Job(PrivateModule):
    def __init__(self, *, schedule: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.schedule = schedule

    def compute_losses(self, batch: Any) -> Tensor:
        x, y = batch
        return functional.cross_entropy(self.network(x), y, reduction="none")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", functional.cross_entropy(self.network(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        if not self.schedule:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def steps(**changes: Any) -> PrivateSteps:
    return PrivateSteps(data(), PrivateRun(**({"plan": plan(), "seed": 5} | changes)))


def trainer(folder: Path, **changes: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    given = {"max_epochs": 50, "default_root_dir": folder, "enable_checkpointing": False} | quiet | changes
    return lightning.Trainer(**given)


def own_loop(model: nn.Module, *, schedule: bool = False, **changes: Any) -> pv.Session:
    """Train the same network in the loop of privet."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9) if schedule else None
    chosen = {"plan": plan(), "seed": 5} | changes
    with pv.privatize(model, optimizer, data(), chosen.pop("plan"), **chosen) as private:
        for step in private.steps():
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
            if rates is not None:
                rates.step()
    return private
