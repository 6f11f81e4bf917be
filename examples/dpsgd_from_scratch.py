"""One differentially private training run, built from the pieces of the library without its session.

The library's session does all of this for you, with a durable ledger and many guards. Here each part is visible: the
plan's pieces, the accounting, and the private step, written out for a logistic regression whose per-example gradients
have a closed form.

Run it:  python examples/dpsgd_from_scratch.py
"""

from __future__ import annotations

import secrets

import numpy as np
import torch

from privet import Adjacency, Gaussian, Poisson, Threshold, Unit
from privet.accounting import calibrate_noise, guarantee_of
from privet.grouping import OneGroup
from privet.mechanism import ClippedSum, Layout, compose

NUM_FEATURES, LEARNING_RATE = 10, 2.0


class SystemNoise:
    """Normal noise in double precision from a generator seeded by the operating system."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(secrets.randbits(63))

    def add_normal(self, flat: torch.Tensor, std: float) -> None:
        """Add a draw to every element."""
        flat += torch.empty(flat.shape, dtype=torch.float64).normal_(0.0, std, generator=self.generator)


def make_data(num_examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two classes separated by a plane, with label noise, in place of private data."""
    inputs = torch.randn(num_examples, NUM_FEATURES)
    return inputs, (inputs[:, 0] + 0.3 * torch.randn(num_examples) > 0).float()


def per_example_gradients(weights: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Gradient of the logistic loss for each example: residual times input, shape [batch, features]."""
    residuals = torch.sigmoid(inputs @ weights) - labels
    return residuals.unsqueeze(1) * inputs


def main() -> None:
    """Plan, account, train, compare."""
    # 1. The plan: public constants. None of them is computed from the private data.
    sampling = Poisson.for_dataset(dataset_size=5_000, batch_size=250, epochs=10)
    clipping = Threshold(norm=1.0)
    adjacency, unit, delta = Adjacency.ADD_REMOVE, Unit.RECORD, 1e-5

    # 2. The accounting: the cost of one step and of all steps, and the least noise for epsilon 1.
    def run_cost(noise_multiplier: float):
        step = sampling.amplify(Gaussian(noise_multiplier=noise_multiplier).event())
        return compose([(step, sampling.num_rounds)])

    multiplier = calibrate_noise(run_cost, epsilon=1.0, delta=delta, adjacency=adjacency)
    noise = Gaussian(noise_multiplier=multiplier)
    promised = guarantee_of(run_cost(multiplier), delta=delta, adjacency=adjacency, unit=unit)
    print(f"Before any data is read: {promised}")

    # 3. The run. Keys come from the operating system and are never stored.
    inputs, labels = make_data(5_000)
    weights = torch.zeros(NUM_FEATURES)
    layout = Layout.of([("weights", (NUM_FEATURES,))], OneGroup())
    rule = clipping.for_groups(layout.num_groups)
    rng, source = np.random.default_rng(secrets.randbits(128)), SystemNoise()
    charged = []
    for _ in range(sampling.num_rounds):
        (indices,) = sampling.round_batches(len(inputs), rng)  # private; an empty batch is a step too
        gradients = per_example_gradients(weights, inputs[indices], labels[indices])
        norms = gradients.norm(dim=1, keepdim=True)
        clipped = ClippedSum(
            flat=(rule.factors(norms) * gradients).sum(0),  # one example changes this sum by at most the bound
            layout=layout,
            sensitivity=rule.sensitivity,
        )
        private = noise.add(clipped, source)  # only the noisy sum may reach the optimizer
        charged.append((sampling.amplify(private.event), 1))  # computed from the noise and bound actually used
        weights -= LEARNING_RATE * private.flat / sampling.expected_batch_size  # a public divisor, not len(indices)

    # 4. The guarantee of the steps that ran equals the promise.
    spent = guarantee_of(compose(charged), delta=delta, adjacency=adjacency, unit=unit)
    print(f"From the charged steps:  {spent}")
    assert spent.epsilon == promised.epsilon
    test_inputs, test_labels = make_data(2_000)
    accuracy = ((test_inputs @ weights > 0).float() == test_labels).float().mean()
    print(f"Test accuracy: {accuracy:.1%}")


if __name__ == "__main__":
    main()
