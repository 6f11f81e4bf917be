"""Unprotected values: collected only when asked for, right when collected, and never part of what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from privet.accounting.ledger import Ledger
from privet.errors import ArgumentError
from privet.mechanism.clipping import KeepOrDrop
from privet.mechanism.noise import Gaussian
from privet.training import telemetry as telemetry_module
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.training.telemetry import NORM_LEVELS, Unprotected, norm_quantiles
from tests.training.tools import examples, flat, full_batch, losses_of, network, plain_sgd, poisson, run, walk


def share_above(model: nn.Module, bound: float) -> float:
    """The share of examples whose gradient is longer than the bound, one example at a time."""
    above = 0
    for inputs, labels in examples():
        gradients = torch.autograd.grad(
            losses_of(model)(inputs.unsqueeze(0), labels.unsqueeze(0)).sum(), list(model.parameters())
        )
        above += float(torch.cat([part.reshape(-1) for part in gradients]).norm()) > bound
    return above / 8


@pytest.mark.parametrize("physical_batch_size", [3, 256])
@pytest.mark.parametrize("bound", [0.05, 1.2, 100.0])
def test_the_receiver_is_told_what_a_loop_over_the_examples_finds(bound: float, physical_batch_size: int) -> None:
    model = network()
    told: list[Unprotected] = []
    session = privatize(
        model,
        plain_sgd(model),
        examples(),
        full_batch(3, norm=bound),
        performance=Performance(physical_batch_size=physical_batch_size),
        telemetry=told.append,
    )
    with session:
        for step in session.steps():
            mean_loss = float(losses_of(model)(*examples().tensors).detach().mean())
            share = share_above(model, bound)
            walk(step, model)
            step.update()
            assert told[-1].mean_loss == pytest.approx(mean_loss, rel=1e-5)
            assert told[-1].clipped_share == share
    assert [(one.step, one.batch_size) for one in told] == [(0, 8), (1, 8), (2, 8)]


def test_some_but_not_all_examples_are_clipped_in_the_middle_case() -> None:
    """Keeps the test above honest: a share that is always 0 or 1 would be easy to get right."""
    assert 0 < share_above(network(), 1.2) < 1


@pytest.mark.parametrize("cutoff", [1.0, 1.2, 100.0])
def test_dropped_examples_are_the_clipped_ones_where_others_keep_their_proportions(cutoff: float) -> None:
    model = network()
    told: list[Unprotected] = []
    plan = replace(full_batch(1), clipping=KeepOrDrop(norm=0.5, cutoff=cutoff))
    dropped = share_above(model, cutoff)
    with privatize(model, plain_sgd(model), examples(), plan, telemetry=told.append) as session:
        run(session, model)
    assert [one.clipped_share for one in told] == [dropped]


def test_an_empty_batch_has_no_mean_loss_and_no_clipped_share() -> None:
    model = network()
    told: list[Unprotected] = []
    with privatize(model, plain_sgd(model), examples(0), poisson(2), telemetry=told.append) as session:
        run(session, model)
    assert told == [Unprotected(step=step, mean_loss=None, clipped_share=None, batch_size=0) for step in range(2)]


def test_lengths_of_gradients_are_told_before_clipping_and_noise_beside_the_clipped_sum() -> None:
    model = network()
    told: list[Unprotected] = []
    lengths, clipped = [], 0.0
    for inputs, labels in examples():
        loss = losses_of(model)(inputs.unsqueeze(0), labels.unsqueeze(0)).sum()
        gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(model.parameters()))])
        lengths.append(float(gradient.norm()))
        clipped = clipped + gradient * min(1.0, 1.2 / lengths[-1])
    plan = full_batch(1, norm=1.2)
    with privatize(
        model, plain_sgd(model), examples(), plan, performance=Performance(physical_batch_size=3), telemetry=told.append
    ) as session:
        run(session, model)
    expected = torch.tensor(lengths).double().quantile(torch.tensor(NORM_LEVELS).double()).tolist()
    assert told[0].norm_quantiles == pytest.approx(expected, rel=1e-4)
    assert isinstance(plan.noise, Gaussian)
    assert plan.noise.noise_multiplier is not None
    noise = plan.noise.noise_multiplier * 1.2 * len(flat(model)) ** 0.5
    assert told[0].noise_to_signal == pytest.approx(noise / float(torch.as_tensor(clipped).norm()), rel=1e-4)


def test_lengths_that_are_not_finite_are_left_out() -> None:
    assert norm_quantiles([]) is None
    assert norm_quantiles([torch.tensor([float("nan"), float("inf")])]) is None
    assert norm_quantiles([torch.tensor([1.0, float("inf")]), torch.tensor([3.0])]) == pytest.approx(
        [1 + 0.2 * tenth for tenth in range(11)], rel=1e-4
    )


def test_nothing_is_collected_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("collected")

    monkeypatch.setattr(telemetry_module, "Unprotected", refuse)
    model = network()
    with privatize(model, plain_sgd(model), examples(), poisson(3)) as session:
        assert run(session, model) == 3


def test_listening_changes_neither_the_model_nor_what_is_kept(tmp_path: Path) -> None:
    found = {}
    for name, receiver in (("silent", None), ("listening", lambda _: None)):
        model = network()
        folder = tmp_path / name
        with privatize(
            model, plain_sgd(model), examples(), poisson(12), folder=folder, telemetry=receiver, seed=5
        ) as session:
            run(session, model)
        view = Ledger.read(folder / "ledger.jsonl")
        found[name] = (flat(model), view.charged, view.num_rows, sorted(path.name for path in folder.iterdir()))
    assert torch.equal(found["silent"][0], found["listening"][0])
    assert found["silent"][1:] == found["listening"][1:]
    assert found["silent"][3] == ["checkpoint.safetensors", "checkpoint.safetensors.1", "ledger.jsonl"]


def test_the_files_of_a_run_do_not_depend_on_the_data(tmp_path: Path) -> None:
    """Names, sizes and ledger rows are the same for two data sets; only the weights may differ."""
    found = []
    for name, num in (("one", 8), ("two", 30)):
        model = network()
        with privatize(model, plain_sgd(model), examples(num), poisson(12), folder=tmp_path / name) as session:
            run(session, model)
        found.append({path.name: path.stat().st_size for path in (tmp_path / name).iterdir()})
    assert found[0] == found[1]


def test_telemetry_that_cannot_be_called_is_refused_at_once() -> None:
    model = network()
    with pytest.raises(ArgumentError, match="telemetry=print"):
        privatize(model, plain_sgd(model), examples(), poisson(2), telemetry=True)  # type: ignore[arg-type]
