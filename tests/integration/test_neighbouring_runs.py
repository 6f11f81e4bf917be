"""The same run on two data sets that differ in one record, all randomness frozen: nothing but released values differs.

What may differ are the weights, the optimizer's state, the learned clipping bound (released by its own charged
mechanism), and the digest over these. Everything else an observer can see is compared byte for byte: file names, sizes,
permissions, ledgers, plans, reports, log lines, printed lines and exit codes.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.optim import SGD, Adam
from torch.utils.data import TensorDataset

from privet.accounting.ledger import ledger as ledger_module
from privet.cli import progress_line
from privet.cli.console import run as run_command
from privet.cli.main import privet
from privet.datasets import load
from privet.datasets.arrays import ArrayDataset, Split
from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import Automatic, KeepOrDrop, PerSampleAdaptive, Threshold
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.grouping import PerLayer
from privet.mechanism.laplace import L2Laplace
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import RandomMask
from privet.mechanism.release_masks import RankedMask
from privet.mechanism.sampling import FixedSize
from privet.mechanism.shaped_noise import GroupwiseGaussian
from privet.mechanism.truncated import TruncatedPoisson
from privet.plan import Plan
from privet.runs import building, runner
from privet.training.averaging import ExponentialAverage
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Adjacency
from tests.training.tools import examples, full_batch, losses_of, network, plan_of, poisson

Neighbour = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def spoilt(value: float) -> Neighbour:
    def change(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        inputs = inputs.clone()
        inputs[2] = value
        return inputs, labels

    return change


def relabelled(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    labels = labels.clone()
    labels[2] = 1 - labels[2].clamp(max=1)
    return inputs, labels


REPLACED: dict[str, Neighbour] = {
    "not a number": spoilt(float("nan")),
    "huge": spoilt(1e30),
    "infinite": spoilt(float("inf")),
    "relabelled": relabelled,
}
MORE_OR_LESS: dict[str, Neighbour] = {
    "one less": lambda inputs, labels: (inputs[:-1], labels[:-1]),
    "one more": lambda inputs, labels: (torch.cat([inputs, 100 * inputs[:1]]), torch.cat([labels, labels[:1]])),
}

REPLACE_ONE = Adjacency.REPLACE_ONE
SIZE = 3 * 4 + 4 + 4 * 2 + 2
PLANS: dict[str, Plan] = {
    "poisson": poisson(6),
    "full batch": full_batch(6),
    "rare batches, mostly empty": poisson(6, rate=0.02),
    "shuffled": plan_of(Shuffle(batches=3, epochs=2, expected_batch_size=3.0), adjacency=Adjacency.ZERO_OUT),
    "fixed size": plan_of(FixedSize(dataset_size=8, batch_size=3, steps=6), adjacency=REPLACE_ONE),
    "cyclic": plan_of(Cyclic(batches=3, epochs=2, expected_batch_size=3), adjacency=REPLACE_ONE),
    "truncated": plan_of(TruncatedPoisson(rate=0.5, steps=6, dataset_size=10, max_batch_size=3)),
    "keep or drop": replace(poisson(6), clipping=KeepOrDrop(norm=0.3, cutoff=1.0)),
    "automatic": replace(poisson(6), clipping=Automatic(norm=1.0)),
    "per sample adaptive": replace(poisson(6), clipping=PerSampleAdaptive(norm=1.0)),
    "scheduled": replace(poisson(6), clipping=Scheduled(parts=(Threshold(norm=1), Automatic(norm=1)), switches=(0.5,))),
    "learned threshold": replace(poisson(6), clipping=AdaptiveQuantile(norm=0.1, count_noise_std=0.5)),
    "random mask": replace(poisson(6), mask=RandomMask(schedule=Constant(value=0.5))),
    "ranked mask": replace(poisson(6), mask=RankedMask(schedule=Constant(value=0.5), refresh_every=2)),
    "groupwise noise": replace(
        poisson(6),
        grouping=PerLayer(),
        clipping=Threshold(norm=(1.0, 2.0)),
        noise=GroupwiseGaussian(noise_multiplier=1.5),
    ),
    "laplace noise": replace(poisson(6), noise=L2Laplace(num_coordinates=SIZE, noise_multiplier=1.5)),
}
NEEDS_THE_SAME_NUMBER = {"shuffled", "fixed size", "cyclic"}


def _pairs() -> Iterator[Any]:
    """Every plan with every neighbour; one neighbour of each plan, another in turn, for every run of the tests."""
    for place, plan in enumerate(PLANS):
        neighbours = [*REPLACED] if plan in NEEDS_THE_SAME_NUMBER else [*REPLACED, *MORE_OR_LESS]
        for neighbour in neighbours:
            is_quick = neighbour == neighbours[place % len(neighbours)]
            yield pytest.param(plan, neighbour, id=f"{plan}, {neighbour}", marks=() if is_quick else pytest.mark.slow)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what starts every stream of random numbers, every random name and every clock from the same point."""

    def freeze() -> None:
        words = itertools.count()
        monkeypatch.setattr(secrets, "randbits", lambda bits: 12345)
        monkeypatch.setattr(ledger_module, "new_process_word", lambda _: b"%016x" % next(words))
        monkeypatch.setattr(ledger_module, "new_run_word", lambda: f"{next(words):032x}")
        torch.manual_seed(0)

    return freeze


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    def taken() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name == "privet"]
        caplog.clear()
        return lines

    with caplog.at_level(logging.DEBUG, "privet"):
        yield taken


def seen_of(path: Path) -> Any:
    """Return what may be seen of a file: everything, but of tensors only names, types and shapes."""
    if ".safetensors" not in path.name:
        return path.read_bytes()
    with safe_open(path, framework="pt") as file:
        shapes = {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        facts = json.loads((file.metadata() or {}).get("privet", "{}"))
    released = {name: len(values) for name, values in facts.pop("clipping", {}).items()}
    size = None if released else path.stat().st_size  # a released number has as many digits as it has
    return shapes, facts, released, size


def seen_in(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (oct(path.stat().st_mode), seen_of(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def train(folder: Path, data: tuple[Tensor, Tensor], plan: Plan, *, accumulates: bool) -> Any:
    """Train, stop in the middle, and go on; return what was charged on the way."""
    said = []
    for at_most in (3, None):
        model = network()
        optimizer = Adam(model.parameters()) if accumulates else SGD(model.parameters(), lr=0.5, momentum=0.9)
        session = privatize(
            model,
            optimizer,
            TensorDataset(*data),
            plan,
            folder=folder,
            checkpoint_every=2,
            performance=Performance(physical_batch_size=2),
            averaging=ExponentialAverage() if accumulates else None,
        )
        with session:
            for taken, step in enumerate(session.steps(), start=1):
                if accumulates:
                    step.accumulate(losses_of(model))
                else:
                    for inputs, labels in step.microbatches():
                        step.backward(losses_of(model)(inputs, labels))
                step.update()
                if taken == at_most:
                    break
        said.append((session.ledger.charged_rounds, session.steps_charged, session.steps_taken))
    return said


@pytest.mark.parametrize(("name", "neighbour"), list(_pairs()))
def test_a_session_shows_the_same_for_neighbouring_data(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen: Callable[[], None],
    log: Callable[[], list[str]],
    record_property: Callable[[str, object], None],
    name: str,
    neighbour: str,
) -> None:
    first = examples().tensors
    second = {**REPLACED, **MORE_OR_LESS}[neighbour](*first)
    found: list[tuple[Any, ...]] = []
    for place, data in (("one", first), ("two", second)):
        folder = tmp_path / place / "run"
        monkeypatch.setenv("PRIVET_STATE", str(tmp_path / f"state of {place}"))
        frozen()
        said = train(folder, data, PLANS[name], accumulates=neighbour in ("huge", "one more"))
        lines = [line.replace(str(folder), "FOLDER") for line in log()]
        found.append((said, lines, seen_in(folder)))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]
    assert differences(found[0][2], found[1][2]) == []
    assert "ledger.jsonl" in found[0][2]
    record_property("scenarios", f"{name}, {neighbour}")


def test_the_comparison_has_teeth(tmp_path: Path, frozen: Callable[[], None]) -> None:
    """A single byte that depends on the data is found, wherever it is."""
    folders = []
    for place in ("one", "two"):
        folders.append(tmp_path / place)
        frozen()
        train(folders[-1], examples().tensors, poisson(6), accumulates=False)
    assert differences(*map(seen_in, folders)) == []
    (folders[0] / "ledger.jsonl").write_bytes(
        (folders[0] / "ledger.jsonl").read_bytes().replace(b'"count":', b'"count": ')
    )
    (folders[1] / "loss.txt").write_text("0.1")
    assert differences(*map(seen_in, folders)) == ["ledger.jsonl", "loss.txt"]


# ---------------------------------------------------------------------------------------------------- the command line

RECIPE = (
    "data_is_public=false",
    "training.evaluate_every=",
    "model=logistic_regression",
    "privacy.sampling={kind='poisson', dataset_size=10_000, batch_size=40, steps=6}",
    "privacy.delta=1e-3",
    "privacy.epsilon=",
    "privacy.noise.noise_multiplier=1.0",
    "training.optimizer={kind='sgd', learning_rate=0.5}",
    "training.checkpoint_every=2",
    "training.device=cpu",
)
RUNS: dict[str, tuple[tuple[str, ...], str]] = {
    "plain": ((), "not a number"),
    "averaged": (("training.averaging={decay=0.9}",), "huge"),
    "momentum": (("training.optimizer={kind='sgd', learning_rate=0.5, momentum=0.9}",), "one more"),
    "views": (("training.augmentation={max_shift=1, flip=true, num_views=2}",), "one less"),
    "adam": (("training.optimizer={kind='adam', learning_rate=0.01}",), "relabelled"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "plain" else pytest.mark.slow) for name in RUNS]
)
def test_the_command_line_shows_the_same_for_neighbouring_data(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    frozen: Callable[[], None],
    record_property: Callable[[str, object], None],
    name: str,
) -> None:
    """Training, asking for it again, and its report: output, exit codes and every file."""
    overrides, neighbour = RUNS[name]
    whole = load("fashion_mnist_small")
    change = {**REPLACED, **MORE_OR_LESS}[neighbour]
    monkeypatch.setenv("COLUMNS", "100")
    found: list[tuple[Any, ...]] = []
    # Time passes faster on the neighbour, as if its steps had other numbers of examples: no line may tell.
    for place, pace, changes in (("one", 0.01, lambda *data: data), ("two", 400.0, change)):
        ticks = itertools.count()
        monkeypatch.setattr(runner.time, "monotonic", lambda ticks=ticks, pace=pace: pace * next(ticks))
        monkeypatch.setattr(progress_line.ProgressLine.__init__, "__kwdefaults__", {"clock": runner.time.monotonic})
        features, labels = changes(whole.train.features, whole.train.labels)
        split = Split(train=ArrayDataset(features=features, labels=labels), test=whole.test, info=whole.info)
        monkeypatch.setattr(building, "load", lambda *_, split=split, **__: split)
        monkeypatch.setenv("PRIVET_STATE", str(tmp_path / f"state of {place}"))
        folder = tmp_path / place / "run"
        frozen()
        sets = [word for override in (*RECIPE, *overrides) for word in ("--set", override)]
        training = ["train", "demo", "-o", str(folder), *sets]
        commands = (training, training, ["report", str(folder)])
        codes = [run_command(privet, command) for command in commands]
        out, err = capfd.readouterr()
        found.append((codes, out.replace(str(folder), "FOLDER"), err.replace(str(folder), "FOLDER"), seen_in(folder)))
    assert found[0][0] == found[1][0]
    assert found[0][0] == [0, 0, 0]
    assert "step 6/6" in found[0][2]
    assert found[0][1] == found[1][1]
    assert found[0][2] == found[1][2]
    assert differences(found[0][3], found[1][3]) == []
    record_property("scenarios", f"command line, {name}, {neighbour}")
