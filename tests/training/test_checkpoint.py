"""Checkpoints: nothing more than needed, nothing lost on the way, and damage is noticed."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

from privet.accounting.ledger import LedgerHead
from privet.errors import CheckpointError
from privet.training.checkpoint import as_bytes, contents, load_checkpoint, write_checkpoint
from tests.training.tools import examples, flat, losses_of, network, plain_sgd

HEAD = LedgerHead(seq=3, sha256="ab" * 32)
MAKERS: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1),
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda parameters: Adam(parameters, lr=0.01, betas=(0.8, 0.95)),
    "amsgrad": lambda parameters: Adam(parameters, lr=0.01, amsgrad=True),
    "adamw": lambda parameters: AdamW(parameters, lr=0.01, weight_decay=0.3),
    "rmsprop": lambda parameters: RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda parameters: Adagrad(parameters, lr=0.1),
    "nadam": lambda parameters: NAdam(parameters, lr=0.01),
}


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        losses_of(model)(*examples().tensors).mean().backward()
        optimizer.step()


def save(path: Path, model: nn.Module, optimizer: Optimizer, *, step: int = 1) -> None:
    found = contents(
        model=model, optimizer=optimizer, step=step, steps_taken=step, head=HEAD, plan_hash="p", clipping={}, average={}
    )
    write_checkpoint(path, as_bytes(*found))


def two_generations(path: Path) -> tuple[Tensor, Tensor]:
    """Write two checkpoints of different weights; return the weights, older first."""
    weights = []
    for step in (1, 2):
        model = network(seed=step)
        save(path, model, plain_sgd(model), step=step)
        weights.append(flat(model))
    return weights[0], weights[1]


def weights_at(path: Path) -> tuple[int, Tensor]:
    found = load_checkpoint(path)
    assert found is not None
    model = network()
    found.restore(model, plain_sgd(model))
    return found.step, flat(model)


@pytest.mark.parametrize("name", MAKERS)
def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(name: str, tmp_path: Path) -> None:
    model = network()
    optimizer = MAKERS[name](model.parameters())
    train(model, optimizer, 3)
    save(tmp_path / "c", model, optimizer)
    train(model, optimizer, 3)

    resumed = network(seed=9)
    fresh = MAKERS[name](resumed.parameters())
    found = load_checkpoint(tmp_path / "c")
    assert found is not None
    found.restore(resumed, fresh)
    train(resumed, fresh, 3)
    assert torch.equal(flat(resumed), flat(model))


def test_groups_names_and_changed_rates_come_back(tmp_path: Path) -> None:
    model = network()
    groups = [{"params": list(model[0].named_parameters()), "lr": 0.3}, {"params": list(model[2].named_parameters())}]
    optimizer = Adam(groups, lr=0.1)
    optimizer.param_groups[1]["lr"] = 0.025
    train(model, optimizer, 1)
    save(tmp_path / "c", model, optimizer)

    fresh = Adam(groups, lr=0.1)
    found = load_checkpoint(tmp_path / "c")
    assert found is not None
    found.restore(model, fresh)
    assert [group["lr"] for group in fresh.param_groups] == [0.3, 0.025]
    before, after = optimizer.state_dict(), fresh.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert after["state"].keys() == before["state"].keys()


def test_buffers_tied_weights_and_half_precision_come_back(tmp_path: Path) -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3).eval(), nn.Linear(3, 2).bfloat16())
        model[1].weight = model[0].weight
        model[2].running_mean.uniform_()
        return model

    model, other = build(0), build(1)
    save(tmp_path / "c", model, plain_sgd(model))
    found = load_checkpoint(tmp_path / "c")
    assert found is not None
    found.restore(other, plain_sgd(other))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert other[1].weight is other[0].weight


def test_a_checkpoint_holds_weights_optimizer_state_and_six_facts_and_nothing_else(tmp_path: Path) -> None:
    model = network()
    optimizer = Adam(model.parameters())
    train(model, optimizer, 2)
    save(tmp_path / "c", model, optimizer, step=2)
    with safe_open(tmp_path / "c", framework="pt") as file:
        names, metadata = set(file.keys()), file.metadata()
    moments = {f"optimizer.{i}.{key}" for i in range(4) for key in ("step", "exp_avg", "exp_avg_sq")}
    assert names == {f"model.{name}" for name in model.state_dict()} | moments
    assert set(metadata) == {"privet", "digest"}
    facts = json.loads(metadata["privet"])
    assert {key: value for key, value in facts.items() if key != "optimizer"} == {
        "format": 1,
        "step": 2,
        "steps_taken": 2,
        "head": {"seq": 3, "sha256": "ab" * 32},
        "plan": "p",
        "clipping": {},
    }
    assert set(json.loads(facts["optimizer"])) == {"state", "param_groups"}


def test_no_checkpoint_at_all_is_a_fresh_start(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "c") is None


def test_the_newest_generation_is_loaded_and_the_previous_one_kept(tmp_path: Path) -> None:
    older, newer = two_generations(tmp_path / "c")
    step, weights = weights_at(tmp_path / "c")
    assert step == 2
    assert torch.equal(weights, newer)
    os.replace(tmp_path / "c.1", tmp_path / "c")
    step, weights = weights_at(tmp_path / "c")
    assert step == 1
    assert torch.equal(weights, older)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def damages(data: bytes) -> Iterable[bytes]:
    chance = random.Random(0)
    for place in [*range(16), *(chance.randrange(len(data)) for _ in range(150))]:
        yield data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    for _ in range(40):
        yield data[: chance.randrange(len(data))]
    yield data + b"\0"
    yield bytes(len(data))
    yield b"\xff" * 8 + data[8:]
    yield b"\x80\x04cos\nsystem\n"


def test_any_damage_to_the_newest_checkpoint_leads_to_the_previous_one(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    older, newer = two_generations(tmp_path / "c")
    whole = (tmp_path / "c").read_bytes()
    num_noticed = num_damages = 0
    for damaged in damages(whole):
        num_damages += 1
        (tmp_path / "c").unlink()
        (tmp_path / "c").write_bytes(damaged)
        step, weights = weights_at(tmp_path / "c")
        # a flip that leaves everything readable unchanged (in the padding, say) is not damage
        assert torch.equal(weights, {1: older, 2: newer}[step])
        num_noticed += step == 1
    assert num_noticed > 0.95 * num_damages
    assert num_damages >= 200
    record_property("damaged checkpoints survived", num_damages)


def test_damage_to_both_generations_is_refused_and_never_a_fresh_start(tmp_path: Path) -> None:
    two_generations(tmp_path / "c")
    for name in ("c", "c.1"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"c: .*c\.1: .*ledger still holds"):
        load_checkpoint(tmp_path / "c")


def test_a_single_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"")
    with pytest.raises(CheckpointError, match="intact"):
        load_checkpoint(tmp_path / "c")


def test_a_link_in_the_place_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    model = network()
    save(tmp_path / "elsewhere", model, plain_sgd(model))
    (tmp_path / "c").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="regular file"):
        load_checkpoint(tmp_path / "c")


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    monkeypatch.setattr("privet.training.checkpoint._FORMAT", 2)
    save(tmp_path / "c", model, plain_sgd(model))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format 2"):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_disk_that_refuses_leaves_the_previous_checkpoint_untouched(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, newer = two_generations(tmp_path / "c")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    model = network(seed=3)
    with pytest.raises(CheckpointError, match="No space left"):
        save(tmp_path / "c", model, plain_sgd(model), step=3)
    monkeypatch.undo()
    step, weights = weights_at(tmp_path / "c")
    assert step == 2
    assert torch.equal(weights, newer)
    assert not (tmp_path / "c.new").exists()


def test_a_checkpoint_of_another_model_is_refused_as_such(tmp_path: Path) -> None:
    model, other = network(), nn.Linear(3, 2)
    save(tmp_path / "c", model, plain_sgd(model))
    found = load_checkpoint(tmp_path / "c")
    assert found is not None
    with pytest.raises(CheckpointError):
        found.restore(other, plain_sgd(other))


def test_a_checkpoint_of_another_optimizer_is_refused_as_such(tmp_path: Path) -> None:
    model = network()
    save(tmp_path / "c", model, plain_sgd(model))
    found = load_checkpoint(tmp_path / "c")
    assert found is not None
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    with pytest.raises(CheckpointError):
        found.restore(model, SGD(groups, lr=0.1))


@pytest.mark.parametrize("where", ["model", "optimizer"])
def test_state_that_is_neither_tensor_nor_number_is_refused(where: str, tmp_path: Path) -> None:
    class WithExtra(nn.Linear):
        def get_extra_state(self) -> object:
            return {"set": {1, 2}}

        def set_extra_state(self, state: object) -> None:
            pass

    model = WithExtra(3, 2) if where == "model" else nn.Linear(3, 2)
    optimizer = plain_sgd(model)
    if where == "optimizer":
        optimizer.state[model.weight]["set"] = {1, 2}
    with pytest.raises(CheckpointError):
        save(tmp_path / "c", model, optimizer)
    assert list(tmp_path.iterdir()) == []
