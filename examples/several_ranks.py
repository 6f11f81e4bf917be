"""One private run on several ranks, on the packaged Fashion-MNIST subset.

Run it with ``torchrun --nproc-per-node 2 examples/several_ranks.py``; with ``python`` it trains in one process.
"""

from __future__ import annotations

import os

import torch
import torch.distributed.nn  # before there is a group: torch would keep a group that it meets here to the end
from torch import distributed
from torch.nn import functional

import privet as pv
from privet.datasets import load
from privet.models import dp_cnn_small


def main(steps: int = 20) -> None:
    """Train as one of the processes that torchrun started."""
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    is_first = not distributed.is_initialized() or distributed.get_rank() == 0
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"

    split = load("fashion_mnist_small")
    torch.manual_seed(0)  # every rank begins with the same weights
    model = dp_cnn_small().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # The batch is the plan's, whatever the number of ranks: each of them takes its part of one draw.
    plan = pv.Plan.dpsgd(
        dataset_size=split.info.train_size, batch_size=400, steps=steps, epsilon=3.0, delta=1e-5, clip_norm=0.1
    )
    if is_first:
        print(plan.guarantee())

    def losses(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(images), labels, reduction="none")

    with pv.privatize(model, optimizer, split.train, plan) as session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()
    if is_first:
        print(session.guarantee())
        print([word for word in session.guarantee().assumptions if "ranks" in word] or "one process")
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(os.environ.get("STEPS", "20")))
