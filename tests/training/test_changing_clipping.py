"""Clipping that changes during a run: charged as planned, told to the user, and taken up again after a stop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import Automatic, Clipping, KeepOrDrop, PerSampleAdaptive, Threshold
from privet.mechanism.grouping import PerLayer
from privet.plan import Plan
from privet.training.session import Session
from privet.training.start import privatize
from tests.training.tools import (
    examples,
    flat,
    flat_gradient,
    full_batch,
    network,
    plain_sgd,
    poisson,
    run,
    shuffle,
    walk,
)

ADAPTIVE = AdaptiveQuantile(norm=0.05, count_noise_std=0.5)
SWITCHING = Scheduled(parts=(Threshold(norm=0.5), KeepOrDrop(norm=0.25, cutoff=8.0)), switches=(0.5,))
FREE: list[Clipping] = [
    KeepOrDrop(norm=1.0, cutoff=9.0),
    Automatic(norm=1.0),
    PerSampleAdaptive(norm=1.0),
    SWITCHING,
]
each_plan = pytest.mark.parametrize("plan", [full_batch(6), poisson(6), shuffle()], ids=["full", "poisson", "shuffle"])


def session_of(plan: Plan, *, folder: Path | None = None, seed: int | None = None) -> tuple[Session, torch.nn.Module]:
    model = network()
    return privatize(model, plain_sgd(model), examples(), plan, folder=folder, seed=seed, checkpoint_every=2), model


@each_plan
@pytest.mark.parametrize("clipping", FREE, ids=lambda piece: type(piece).__name__)
def test_rules_that_release_nothing_cost_what_a_threshold_costs(plan: Plan, clipping: Clipping) -> None:
    changed = replace(plan, clipping=clipping)
    assert changed.guarantee().epsilon == plan.guarantee().epsilon
    session, model = session_of(changed)
    with session:
        run(session, model)
    assert session.guarantee().epsilon == plan.guarantee().epsilon


@each_plan
def test_a_learned_threshold_costs_more_by_its_count_and_no_more_than_planned(plan: Plan) -> None:
    changed = replace(plan, clipping=ADAPTIVE)
    fused = (1.0**-2 + (2 * 0.5) ** -2) ** -0.5
    same = replace(plan, noise=plan.noise.with_multiplier(fused))
    assert changed.guarantee().epsilon == pytest.approx(same.guarantee().epsilon, rel=1e-9)
    assert changed.guarantee().epsilon > plan.guarantee().epsilon
    session, model = session_of(changed)
    with session:
        run(session, model)
    assert session.guarantee().epsilon == changed.guarantee().epsilon


def test_calibration_counts_the_count() -> None:
    plan = replace(poisson(20), clipping=replace(ADAPTIVE, count_noise_std=5.0))
    calibrated, plain = plan.calibrated(epsilon=2.0), poisson(20).calibrated(epsilon=2.0)
    assert 1.99 < calibrated.guarantee().epsilon <= 2.0
    assert calibrated.noise.noise_multiplier > plain.noise.noise_multiplier  # type: ignore[attr-defined]


def bounds_of(session: Session, model: torch.nn.Module, *, at_most: int | None = None) -> list[tuple[float, ...]]:
    found = []
    for step in session.steps():
        found.append(step.sensitivity.bounds)
        walk(step, model)
        step.update()
        if len(found) == at_most:
            break
    return found


def test_a_learned_threshold_rises_when_every_gradient_is_longer_group_by_group() -> None:
    plan = replace(
        full_batch(20), clipping=replace(ADAPTIVE, norm=(1e-3, 1e-2), count_noise_std=1e-9), grouping=PerLayer()
    )
    session, model = session_of(plan)
    with session:
        bounds = bounds_of(session, model)
    for group, first in enumerate((1e-3, 1e-2)):
        course = [step[group] for step in bounds]
        assert course[0] == first
        # all eight of eight are long: the share is zero and the quantile one half
        assert course[1] == pytest.approx(first * torch.tensor(0.1).exp().item(), rel=1e-5)
        assert course[:10] == sorted(course[:10])


def test_the_noise_follows_the_learned_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    session, model = session_of(replace(full_batch(5), clipping=ADAPTIVE))
    with session:
        source = session._run.streams.noise
        add = type(source).add_normal

        def noted(self: object, vector: Tensor, std: float) -> None:
            asked.append(std)
            add(self, vector, std)  # type: ignore[arg-type]

        monkeypatch.setattr(type(source), "add_normal", noted)
        bounds = bounds_of(session, model)
    assert asked[0::2] == pytest.approx([1.0 * bound for (bound,) in bounds])
    assert asked[1::2] == [0.5] * 5
    assert len(set(bounds)) == 5


def test_a_resumed_run_goes_on_from_the_threshold_it_had_learned(tmp_path: Path) -> None:
    plan = replace(full_batch(9), clipping=ADAPTIVE)
    session, model = session_of(plan, folder=tmp_path)
    with session:
        bounds_of(session, model, at_most=4)
        learned = session._run.state.clipping.state()["bounds"]
    again, model = session_of(plan, folder=tmp_path)
    with again:
        assert bounds_of(again, model)[0] == learned != (0.05,)
    assert again.guarantee().epsilon == plan.guarantee().epsilon


def test_a_resumed_run_switches_at_the_same_step(tmp_path: Path) -> None:
    plan = replace(full_batch(8), clipping=SWITCHING)
    found = []
    for _ in range(4):
        session, model = session_of(plan, folder=tmp_path)
        with session:
            found += bounds_of(session, model, at_most=2)
    assert found == [(0.5,)] * 4 + [(0.25,)] * 4


def test_a_checkpoint_tells_no_more_of_a_threshold_than_its_value(tmp_path: Path) -> None:
    session, model = session_of(replace(full_batch(4), clipping=ADAPTIVE), folder=tmp_path)
    with session:
        run(session, model)
    with safe_open(tmp_path / "checkpoint.safetensors", framework="pt") as file:
        facts = json.loads(file.metadata()["privet"])
    assert facts["clipping"] == {"bounds": list(session._run.state.clipping.state()["bounds"])}


@pytest.mark.parametrize("grouped", [False, True], ids=["flat", "layerwise"])
def test_keep_or_drop_trains_as_a_threshold_at_the_cutoff_with_a_smaller_rate(grouped: bool) -> None:
    """The factor-scale identity on whole runs: global(R, Z, rate) is local(Z, rate * R / Z) when nothing is dropped."""
    bound, cutoff, rate, num_groups = 0.5, 40.0, 2.0, 2 if grouped else 1
    share = bound / num_groups**0.5
    weights = []
    for clipping, learning_rate in (
        (KeepOrDrop(norm=bound, cutoff=cutoff), rate),
        (Threshold(norm=(cutoff,) * num_groups), rate * share / cutoff),
    ):
        model = network().double()
        data = torch.utils.data.TensorDataset(examples().tensors[0].double(), examples().tensors[1])
        plan = replace(full_batch(6), clipping=clipping)
        plan = replace(plan, grouping=PerLayer()) if grouped else plan
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
        with privatize(model, optimizer, data, plan, seed=3) as session:
            run(session, model)
        weights.append(flat(model))
        assert bool(flat_gradient(model).isfinite().all())
    assert torch.allclose(weights[0], weights[1], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(weights[0], flat(network().double()), atol=1e-3)
