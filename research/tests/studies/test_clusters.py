from __future__ import annotations

import pytest
import torch

from privet.errors import ArgumentError
from privet_research.studies.clusters import clustered_classes


def test_the_same_seed_gives_the_same_task_and_another_seed_another() -> None:
    first, second, other = (clustered_classes(seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.train.features, second.train.features)
    assert not torch.equal(first.train.features, other.train.features)


def test_features_have_unit_deviation_and_classes_are_about_even() -> None:
    split = clustered_classes()
    features = torch.cat([split.train.features, split.test.features])
    torch.testing.assert_close(features.std(0), torch.ones(20), atol=1e-3, rtol=0)
    shares = torch.bincount(split.train.labels, minlength=5) / len(split.train)
    assert float((shares - 0.2).abs().max()) < 0.03


def test_the_declared_share_of_labels_is_wrong() -> None:
    clean, noisy = (clustered_classes(flipped_share=share) for share in (0.0, 0.5))
    changed = (clean.train.labels != noisy.train.labels).double().mean()
    assert float(changed) == pytest.approx(0.5 * 4 / 5, abs=0.03)


@pytest.mark.parametrize(
    "change", [{"num_features": 5}, {"num_informative": 3, "num_redundant": 0}], ids=["features", "corners"]
)
def test_a_task_that_does_not_fit_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match="Ask for more features"):
        clustered_classes(**change)
