from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from privet.datasets.arrays import ArrayDataset
from privet.mechanism.clipping import KeepOrDrop
from privet.models import tutorial_cnn
from privet_research.studies.catalogue import STUDIES
from privet_research.studies.clipping_course import (
    _rows_of,
    cifar10_course,
    course_table,
    mnist_course,
    run_course_study,
)
from privet_research.studies.momentum_grid import interaction
from privet_research.studies.poisson_waste import run_waste_study
from privet_research.studies.tangent_kernels import run_kernel_study

CPU = torch.device("cpu")
needs_data = pytest.mark.skipif("PRIVET_DATA" not in os.environ, reason="needs PRIVET_DATA")


def rows_of(name: str) -> list[Mapping[str, Any]]:
    study = STUDIES[name]
    rows = list(study.run([0], CPU, True))
    assert all(study.measure in row or "part" in row for row in rows)
    assert study.table(rows).startswith(("|", "#"))
    return rows


def test_an_epoch_of_poisson_sampling_misses_a_share_of_one_over_e() -> None:
    found = {(row["setting"], row["arm"]): row for row in run_waste_study(seeds=[0])}
    assert found["64 of 100,000", "Poisson"]["never_seen"] == pytest.approx(1 / math.e, abs=5e-4)
    assert found["64 of 100,000", "Cyclic"]["never_seen"] == 0
    assert found["230 in slots of 256", "Poisson"]["stragglers"] == pytest.approx(0.042, abs=1e-3)


def test_local_layerwise_clipping_can_turn_an_eigenvalue_negative_and_flat_clipping_cannot() -> None:
    found = {row["arm"]: row for row in run_kernel_study(seeds=[0], device=CPU, num_draws=5_000)}
    assert found["local, layerwise"]["least_eigenvalue"] < -0.01
    assert found["local, flat"]["positive_in_eigenvalues"] == 1
    assert found["local, flat"]["least_quadratic"] < -0.01
    for arm in ("no clipping", "global, flat", "global, layerwise"):
        assert found[arm]["positive_kernel"] == 1


def test_a_sum_of_rows_and_columns_has_no_interaction_and_a_product_has() -> None:
    places = [(float(row), float(column)) for row in range(3) for column in range(4)]
    assert interaction({place: place[0] + 10 * place[1] for place in places}) == pytest.approx(0, abs=1e-12)
    # (row - 1)(column - 1.5) over a 3 x 4 grid: variances 2/3 and 5/4
    assert interaction({place: place[0] * place[1] for place in places}) == pytest.approx(math.sqrt(2 / 3 * 5 / 4))


def test_layerwise_arms_have_one_bound_for_every_tensor_and_smaller_ones_for_biases() -> None:
    arms = cifar10_course().arms(tutorial_cnn())
    clipping, _ = arms["global, layerwise"]
    assert isinstance(clipping, KeepOrDrop)
    assert clipping.norm == (1.5, pytest.approx(0.3)) * 5
    assert set(mnist_course().arms(tutorial_cnn())) == {"local, flat", "global, flat"}


def test_mask_statistics_look_at_every_mask_and_projection_and_rank_like_chance() -> None:
    pytest.importorskip("sklearn")
    rows = rows_of("mask-statistics")
    clouds = [row for row in rows if row["part"] == "deviations"]
    assert {(row["mask"], row["projection"]) for row in clouds} == {
        (mask, projection) for mask in ("no mask", "random mask") for projection in ("first", "second")
    }
    assert max(row["epoch"] for row in clouds) == 15, "epoch 79 of 100, in a run of 20"
    distances = {row["mask"]: row["value"] for row in rows if row["part"] == "frequency"}
    assert distances["random mask"] < 0.02
    assert distances["ranked"] < 0.05 < distances["ranked without noise"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparsification-momentum", "sparsification-plugged-in", "sparsification-partition"])
def test_quick_studies_of_masks_run_to_their_tables(name: str) -> None:
    pytest.importorskip("sklearn")
    assert all(0 <= row["accuracy"] <= 1 for row in rows_of(name))


@pytest.mark.slow
def test_shuffled_batches_have_the_noise_of_poisson_ones_and_a_weaker_guarantee() -> None:
    rows = {row["arm"]: row for row in rows_of("sparsification-partition")}
    assert rows["partition, no mask"]["epsilon"] > 2 * rows["Poisson, no mask"]["epsilon"]


@needs_data
@pytest.mark.data
@pytest.mark.slow
def test_a_course_has_a_row_for_every_epoch_its_end_and_its_bins() -> None:
    settings = mnist_course().shortened()
    rows = list(run_course_study(settings, seeds=[0], device=CPU))
    for arm in ("non-private", "local, flat", "global, flat"):
        own = [row for row in rows if row["arm"] == arm]
        assert [row["epoch"] for row in own if row["part"] == "course"] == [1, 2, 3]
        assert sum(row["num_examples"] for row in own if row["part"] == "bins") == 10_000
        (end,) = (row for row in own if row["part"] == "end")
        assert 0 <= end["ece"] <= end["mce"] <= 1
    assert [row["cutoff"] for row in rows if row["part"] == "cutoff"] == list(settings.cutoffs)


@needs_data
@pytest.mark.data
@pytest.mark.slow
def test_padded_digits_keep_the_share_of_ink_that_their_area_has() -> None:
    rows = rows_of("digit-pictures")
    for row in rows:
        if row["part"] == "padding":
            assert row["ink_left"] == pytest.approx((1 - row["padding_ratio"]) ** 2, abs=0.02)
    distances = {row["arm"]: row["distance"] for row in rows if row["part"] == "digits"}
    assert distances["wrong"] > distances["right"]


def test_a_run_that_diverges_says_so_and_has_no_end() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    data = ArrayDataset(features=torch.randn(20, 4), labels=torch.randint(0, 3, (20,)))

    def epochs() -> Iterator[tuple[int, nn.Module]]:
        yield 1, model
        model[1].weight.data.fill_(torch.nan)
        yield 2, model

    rows = list(_rows_of("non-private", epochs(), data, data, seed=4))
    assert [row["part"] for row in rows] == ["course", "diverged"]
    assert rows[1]["accuracy"] is None
    assert "non-private, seed 4, epoch 2" in course_table(rows)
