"""Sampling tables by a declared size."""

from __future__ import annotations

import tomllib

import pytest

from privet.errors import RecipeError
from privet.mechanism import codec
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.sampling import FixedSize, Sampling
from privet.mechanism.truncated import TruncatedPoisson
from privet.runs.recipes.declared_size import with_fields


@pytest.mark.parametrize(
    ("text", "sampling"),
    [
        (
            '{ kind = "fixed_size", dataset_size = 1000, batch_size = 100, epochs = 3 }',
            FixedSize.for_dataset(dataset_size=1000, batch_size=100, epochs=3),
        ),
        (
            '{ kind = "truncated_poisson", dataset_size = 1000, batch_size = 100, max_batch_size = 128, epochs = 3 }',
            TruncatedPoisson.for_dataset(dataset_size=1000, batch_size=100, max_batch_size=128, epochs=3),
        ),
        (
            '{ kind = "cyclic", dataset_size = 1000, batch_size = 100, epochs = 3, secret_partition = true }',
            Cyclic.for_dataset(dataset_size=1000, batch_size=100, epochs=3, secret_partition=True),
        ),
    ],
)
def test_every_sampler_that_follows_from_a_declared_size_can_be_written_by_it(text: str, sampling: Sampling) -> None:
    table = tomllib.loads(f"sampling = {text}")["sampling"]
    assert codec.decode_piece(with_fields(table), codec.SAMPLING, where="sampling") == sampling


def test_a_declared_size_without_the_length_of_the_run_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"privacy\.sampling lacks epochs"):
        with_fields({"kind": "cyclic", "dataset_size": 1000, "batch_size": 100})
