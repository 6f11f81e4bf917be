"""A learned clipping threshold, averaged weights and four views of every image, on the packaged Fashion-MNIST subset.

Run it with ``python examples/changing_clipping.py``; it takes about a minute on two cores.
"""

from __future__ import annotations

import torch
from torch.nn import functional

import privet as pv
from privet.datasets import load
from privet.models import dp_cnn_small


def main(steps: int = 60) -> None:
    """Train, then compare the last weights with the averaged ones."""
    split = load("fashion_mnist_small")
    model = dp_cnn_small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    plan = pv.Plan(
        sampling=pv.Poisson.for_dataset(dataset_size=split.info.train_size, batch_size=400, steps=steps),
        # The threshold follows the median norm; the private count that adapts it is charged with the step.
        clipping=pv.clipping.AdaptiveQuantile(norm=0.1, quantile=0.5, count_noise_std=20.0),
        noise=pv.Gaussian(),
        delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    ).calibrated(epsilon=3.0)
    print(plan.guarantee())

    views = pv.augmentation.Views(dataset=split.train, transform=pv.augmentation.ShiftAndFlip(max_shift=2), num_views=4)
    rate = pv.optim.LearningRate(optimizer, pv.optim.CosineDecay(warm_up=0.1), num_steps=plan.num_steps)
    losses = pv.augmentation.mean_over_views(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
    averaging = pv.optim.ExponentialAverage(decay=0.9)
    with pv.privatize(model, optimizer, views, plan, averaging=averaging) as session:
        for step in session.steps():
            rate.set(step.index)
            step.accumulate(losses)
            step.update()
            if step.index % 10 == 0:
                print(f"step {step.index}: threshold {step.sensitivity.total:.3f}")  # public: a released value

    print(f"accuracy of the last weights: {pv.runs.measure_model(model, split.test, split.info)[0].value:.3f}")
    with session.averaged():
        print(f"accuracy of the averaged weights: {pv.runs.measure_model(model, split.test, split.info)[0].value:.3f}")
    print(session.guarantee())


if __name__ == "__main__":
    main()
