"""The study of shaped noise: its terms, its arms at one guarantee, and a table that says what the rows say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privet.accounting.calibration import spent_epsilon
from privet.mechanism.events import compose
from privet.training.private_statistics.private_geometry import geometry_event
from privet.vocabulary import Adjacency
from privet_research.studies import noise_shape
from privet_research.studies.noise_shape import ARMS, PLAIN, STEEP_PUBLIC, TUNED, run_noise_study
from privet_research.studies.noise_table import noise_table


@pytest.fixture
def made_up_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1797) % 10
    features = torch.rand(1797, 64, generator=generator)
    features[torch.arange(1797), labels] += 2.0
    monkeypatch.setattr(noise_shape, "_digits", lambda: (features, labels))


def test_every_task_has_settings_for_every_arm(made_up_digits: None) -> None:
    assert {task.name: set(ARMS) for task in noise_shape.tasks()} == {name: set(arms) for name, arms in TUNED.items()}
    sizes = {(len(task.train), len(task.public), len(task.test)) for task in noise_shape.tasks()}
    assert sizes == {(1257, 180, 360)}


def test_the_release_of_units_is_paid_for_by_the_steps() -> None:
    free = noise_shape.multiplier(3.0, 300, None, is_paid=False)
    paid = noise_shape.multiplier(3.0, 300, None, is_paid=True)
    assert free == pytest.approx(2.290, abs=0.002)
    assert paid / free == pytest.approx(1.046, abs=0.005)
    event = compose(
        [
            (noise_shape._sampled(noise_shape.Gaussian(noise_multiplier=paid).event(), 300), 1),
            (geometry_event(noise_shape.release_multiplier(3.0)), 1),
        ]
    )
    assert spent_epsilon(event, delta=1e-4, adjacency=Adjacency.ADD_REMOVE) == pytest.approx(3.0, rel=1e-3)


def test_all_arms_run_and_rows_say_what_ran(made_up_digits: None) -> None:
    settings: dict[str, Any] = {"epsilons": (8.0,), "steps": 12, "names": ["softmax, pixels badly scaled"]}
    rows = list(run_noise_study(seeds=[0], device=torch.device("cpu"), **settings))
    assert [row["arm"] for row in rows] == list(ARMS)
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    noise = {row["arm"]: row["noise_multiplier"] for row in rows}
    assert noise[noise_shape.PUBLIC] == noise[STEEP_PUBLIC] == noise[PLAIN]
    assert noise[noise_shape.PAID] == noise[noise_shape.STEEP_PAID] > noise[PLAIN], "units that are paid for cost noise"
    again = list(run_noise_study(seeds=[0], device=torch.device("cpu"), arms=[ARMS[-1]], **settings))
    assert again[0]["accuracy"] == rows[-1]["accuracy"], "seeded runs repeat"


def row(arm: str, accuracy: float, seed: int) -> dict[str, Any]:
    return {
        "task": "made up", "arm": arm, "epsilon": 1.0, "delta": 1e-4, "seed": seed, "accuracy": accuracy, "steps": 300
    }  # fmt: skip


def test_the_table_tells_gains_from_ties() -> None:
    rows = [row(PLAIN, 0.80 + 0.01 * seed, seed) for seed in range(3)]
    rows += [row(STEEP_PUBLIC, 0.90 + 0.01 * seed, seed) for seed in range(3)]
    rows += [row(ARMS[1], 0.805 + 0.01 * seed, seed) for seed in range(3)]
    text = noise_table(rows)
    assert f"{STEEP_PUBLIC} gains 10.0 points" in text
    assert f"{ARMS[1]} gains" not in text
    assert "| Gaussian | 81.00 ± 0.58 |" in text
    tied = noise_table([replaced for found in rows if (replaced := {**found, "accuracy": 0.5 + 0.01 * found["seed"]})])
    assert "No arm differs" in tied


def test_units_of_the_digits_follow_their_pixels() -> None:
    pytest.importorskip("sklearn")
    task = noise_shape.tasks()[1]
    torch.manual_seed(0)
    found = noise_shape._units(task, task.build(), 3.0, 0.5, 0, is_paid=False)
    columns = torch.tensor(found.columns[0])
    spread = task.public.features.square().mean(0).sqrt()
    live = spread > 0.2 * spread.max()
    assert float(columns[live].min()) > float(columns[~live].median())
    assert replace(task, unit_norm=2.0).unit_norm == 2.0
