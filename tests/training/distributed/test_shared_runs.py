"""Runs on ranks: batches of every size, one ledger, checkpoints for any number of ranks, and refusals."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.special import chdtri
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.data import TensorDataset

from privet.accounting.ledger import Ledger
from privet.errors import LedgerWriteError, PrivetError
from privet.gradients.engines.functional import Functional
from privet.mechanism.changing_clipping import AdaptiveQuantile
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import RandomMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.performance import Performance
from privet.training.private_statistics.normalisation import PrivateNormalisation
from privet.training.private_statistics.private_geometry import release_geometry
from privet.training.randomness import KeystreamNoise
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from tests.training.distributed.kills import BOUNDARIES, Kill, carry_out, kills
from tests.training.distributed.tools import results
from tests.training.tools import examples, losses_of, network, plain_sgd, plan_of, poisson, run
from tests.training.worker_data import Files

Weights = list[float]


def flat(model: nn.Module) -> Weights:
    return torch.cat([value.detach().flatten() for value in model.parameters()]).tolist()


def adaptive(steps: int = 6) -> Plan:
    return Plan(
        sampling=Poisson(rate=0.5, steps=steps, expected_batch_size=4.0), noise=Gaussian(noise_multiplier=1.0),
        clipping=AdaptiveQuantile(norm=0.5, count_noise_std=0.5), mask=RandomMask(schedule=Constant(value=0.3)),
        delta=1e-5, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD,
    )  # fmt: skip


def trained(plan: Plan, *, num: int = 8, at_most: int | None = None, optimizer: Any = plain_sgd, **others: Any) -> Any:
    model = network()
    others = {"seed": 5} | others
    told: list[Any] = []
    session = privatize(
        model, optimizer(model), examples(num), plan, telemetry=told.append, averaging=ExponentialAverage(), **others
    )
    with session:
        run(session, model, at_most=at_most)
    return {
        "weights": flat(model), "sizes": [each.batch_size for each in told],
        "losses": [each.mean_loss for each in told],
        "quantiles": [each.norm_quantiles for each in told], "signal": [each.noise_to_signal for each in told],
        "charged": session.ledger.charged_rounds, "steps": session.steps_taken, "tried": list(session.ledger.tried),
        "assumptions": list(session.ledger.assumptions),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------- batches of all sizes

SIZES: dict[str, Callable[[], Any]] = {
    "mostly empty": lambda: trained(poisson(steps=12, rate=0.01)),
    "fewer examples than ranks": lambda: trained(poisson(steps=4, rate=0.2), num=6),
    "physical batches of one": lambda: trained(poisson(), performance=Performance(physical_batch_size=1)),
    "learned bounds": lambda: trained(adaptive()),
    "a vmap engine": lambda: trained(poisson(), performance=Performance(engine=Functional())),
    "all examples": lambda: trained(plan_of(FullBatch(steps=3, expected_batch_size=8.0))),
}


def train_sizes(rank: int, size: int) -> dict[str, Any]:
    return {name: case() for name, case in SIZES.items()}


@pytest.fixture(scope="module")
def on_ranks() -> dict[int, list[dict[str, Any]]]:
    return {size: results(train_sizes, size) for size in (2, 4)}


@pytest.mark.parametrize("case", SIZES)
def test_batches_of_all_sizes_train_as_one_process_does(case: str, on_ranks: dict[int, list[dict[str, Any]]]) -> None:
    alone = SIZES[case]()
    for found in on_ranks.values():
        assert all(each[case]["weights"] == found[0][case]["weights"] for each in found)
        there, here = np.array(found[0][case]["weights"]), np.array(alone["weights"])
        assert np.abs(there - here).max() <= 1e-6 * np.abs(here).max()
        for fact in ("sizes", "charged", "steps"):
            assert all(each[case][fact] == alone[fact] for each in found), fact
        for fact in ("losses", "signal"):
            for one, several in zip(alone[fact], found[0][case][fact], strict=True):
                assert several == (None if one is None else pytest.approx(one, rel=1e-3))
        for one, several in zip(alone["quantiles"], found[0][case]["quantiles"], strict=True):
            assert several == (None if one is None else pytest.approx(one, rel=1e-3))


def test_most_batches_are_empty_where_that_is_tried(on_ranks: dict[int, list[dict[str, Any]]]) -> None:
    sizes = on_ranks[2][0]["mostly empty"]["sizes"]
    assert len(sizes) == 12
    assert sum(size == 0 for size in sizes) >= 9
    assert max(on_ranks[4][0]["fewer examples than ranks"]["sizes"]) < 4


def test_the_guarantee_names_the_ranks_on_each_of_them(on_ranks: dict[int, list[dict[str, Any]]]) -> None:
    for size, found in on_ranks.items():
        for each in found:
            said = each["all examples"]["assumptions"]
            assert f"{size} ranks (cpu) trained together, and nobody else read or changed the messages" in str(said)


# ----------------------------------------------------------------------------------------------- ledger and checkpoints


def step_by_step(rank: int, size: int, folder: str, steps: int) -> Any:
    return trained(adaptive(), folder=folder, checkpoint_every=2, at_most=steps, seed=None, optimizer=adam)


def adam(model: nn.Module) -> Adam:
    return Adam(model.parameters(), lr=0.05)


def test_a_run_is_resumed_on_four_ranks_then_one_then_two(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = results(step_by_step, 4, str(folder), 2)
    assert Ledger.read(folder / "ledger.jsonl").charged_rounds == 2, "one ledger is charged, once"
    second = step_by_step(0, 1, str(folder), 2)
    assert second["steps"] == 4
    assert second["charged"] == 4
    third = results(step_by_step, 2, str(folder), 9)
    assert [each["steps"] for each in third] == [6, 6]
    assert first[0]["steps"] == 2
    assert third[0]["weights"] == third[1]["weights"]
    ledger = Ledger.read(folder / "ledger.jsonl")
    assert ledger.charged_rounds == 6
    assert not ledger.why_not_private
    assert "4 ranks (cpu)" in str(ledger.assumptions)
    assert "2 ranks (cpu)" in str(ledger.assumptions)
    assert sorted(path.name for path in folder.iterdir() if "safetensors" in path.name) == [
        "checkpoint.safetensors", "checkpoint.safetensors.1",
    ]  # fmt: skip


def keys_of_ranks(rank: int, size: int) -> Any:
    """Train twice without a seed; the streams of two runs differ, and those of two ranks do not."""
    return [trained(poisson(), seed=None)["weights"] for _ in range(2)]


def test_ranks_share_a_secret_that_no_two_runs_have() -> None:
    first, second = results(keys_of_ranks, 2)
    assert first == second
    assert first[0] != first[1]


# ------------------------------------------------------------------------------------------------------ what is refused


def other_rank(rank: int, **differing: Callable[[], Any]) -> Any:
    """Open a session in which rank 1 has something of its own."""
    made: dict[str, Callable[[], Any]] = {"model": network, "dataset": examples, "plan": poisson}
    made |= differing if rank == 1 else {}
    others = {name: make() for name, make in made.items() if name not in ("model", "dataset", "plan", "optimizer")}
    model = made["model"]()
    optimizer = made["optimizer"](model) if "optimizer" in made else plain_sgd(model)
    with privatize(model, optimizer, made["dataset"](), made["plan"](), **others) as session:
        run(session, model)


def files_of_unequal_length(rank: int) -> None:
    model = network()
    with privatize(model, plain_sgd(model), Files(9 - rank), poisson()):
        pass


def two_ranks_disagree_later(rank: int) -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), poisson()) as session:
        for step in session.steps():
            if step.index == 2 and rank == 1:
                with session.public_change("clamps"):
                    pass
            step.accumulate(losses_of(model))
            step.update()


def one_rank_changes_weights(rank: int) -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), poisson()) as session:
        for step in session.steps():
            if step.index == 1:
                with session.public_change("a mistake"), torch.no_grad():
                    model[0].weight.mul_(1.0 + rank)
            step.accumulate(losses_of(model))
            step.update()


def one_rank_stops_early(rank: int) -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), poisson()) as session:
        run(session, model, at_most=None if rank else 2)


def one_forward_fails(rank: int) -> None:
    model = network()

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        if rank == 1:
            raise FloatingPointError("the age is odd")
        return losses_of(model)(inputs, labels)

    with privatize(
        model, plain_sgd(model), examples(), plan_of(FullBatch(steps=3, expected_batch_size=8.0))
    ) as session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()


def one_program_mixes(rank: int) -> None:
    model = network()

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        found = losses_of(model)(inputs, labels)
        return found - found.mean() if rank == 1 else found

    with privatize(
        model, plain_sgd(model), examples(), plan_of(FullBatch(steps=3, expected_batch_size=8.0))
    ) as session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()


def noise_differs_later(rank: int) -> None:
    draw, model = KeystreamNoise.add_normal, network()

    def another(self: Any, flat: Tensor, std: float) -> None:
        draw(self, flat, std * (1 + 1e-3 * rank * (len(flat) == sum(value.numel() for value in model.parameters()))))

    changed = mock.patch.object(KeystreamNoise, "add_normal", another)
    with changed, privatize(model, plain_sgd(model), examples(), poisson()) as session:
        run(session, model)


def wrapped(rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(network())
    privatize(model, plain_sgd(model), examples(), poisson())


def short_plan() -> Plan:
    return poisson(steps=3)


REFUSED: dict[str, tuple[Callable[[int], Any], str]] = {
    "plan": (lambda rank: other_rank(rank, plan=short_plan), "RanksDisagree: The ranks of this run differ in the plan"),
    "weights": (lambda rank: other_rank(rank, model=lambda: network(9)), "RanksDisagree: .* differ in the weights"),
    "number of examples": (
        lambda rank: other_rank(rank, dataset=lambda: examples(9)),
        "RanksDisagree: .* differ in the",
    ),
    "number of records in files": (
        files_of_unequal_length,
        r'RanksDisagree: .* differ in the number of examples: rank 0 has "\w{16}" and rank 1 has "\w{16}"\.',
    ),
    "data": (lambda rank: other_rank(rank, dataset=lambda: examples(seed=2)), "RanksDisagree: .* differ in the data"),
    "seed": (lambda rank: other_rank(rank, seed=lambda: 4), "RanksDisagree: .* differ in the seed"),
    "optimizer": (
        lambda rank: other_rank(rank, optimizer=lambda model: SGD(model.parameters(), lr=0.1)),
        "RanksDisagree: .* differ in the optimizer",
    ),
    "telemetry": (
        lambda rank: other_rank(rank, telemetry=lambda: list),
        "RanksDisagree: .* whether there is telemetry",
    ),
    "a change on one rank": (two_ranks_disagree_later, "RanksDisagree: The ranks are at different places"),
    "unequal changes": (one_rank_changes_weights, "RanksDisagree: .* differ in the weights"),
    "an early end": (one_rank_stops_early, "RanksDisagree: The ranks are at different places of the run"),
    "an error of the user": (
        one_forward_fails,
        "RankError: Rank 1 of 2 stopped, and so do all: it raised FloatingPoint",
    ),
    "a mixing program": (
        one_program_mixes,
        "UnsupportedModel: Rank 1 of 2 stopped, and so do all: .* mixes the examples",
    ),
    "unequal noise": (noise_differs_later, "RanksDisagree: .* differ in the noisy sum"),
    "a wrapped model": (wrapped, "UnsupportedModel: .*spread over several processes or devices.*Pass the plain module"),
}


def refuse_all(rank: int, size: int) -> dict[str, str]:
    found = {}
    for name, (case, _) in REFUSED.items():
        try:
            case(rank)
            found[name] = "nothing was refused"
        except PrivetError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


@pytest.fixture(scope="module")
def refused() -> list[dict[str, str]]:
    return results(refuse_all, 2)


@pytest.mark.parametrize("case", REFUSED)
def test_ranks_that_differ_stop_with_the_same_words(case: str, refused: list[dict[str, str]]) -> None:
    assert refused[0][case] == refused[1][case]
    assert re.match(REFUSED[case][1], refused[0][case], re.DOTALL), refused[0][case]
    assert "the age is odd" not in str(refused)


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(("place", "boundary"), list(enumerate(BOUNDARIES)))
def test_a_rank_that_is_killed_costs_no_privacy_and_the_run_goes_on(place: int, boundary: str, tmp_path: Path) -> None:
    victim = 0 if boundary == "in the checkpoint" else place % 2
    carry_out(Kill(boundary=boundary, victim=victim, at=2, before=2, after=(1, 2)[place % 2]), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_two_hundred_killed_ranks_cost_no_privacy(first: int, tmp_path: Path) -> None:
    for number, kill in enumerate(kills(first, first + 10)):
        carry_out(kill, tmp_path / str(number) / "run")


def charge_fails(rank: int, size: int) -> Any:
    """Let the disk of rank 0 refuse a charge; tell how many examples each rank read, and what it raised."""
    reads = []

    class Counted(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            reads.append(index)
            return super().__getitem__(index)

    model = network()
    plan = plan_of(FullBatch(steps=3, expected_batch_size=8.0))
    session = privatize(model, plain_sgd(model), Counted(examples()), plan)
    before = 0
    try:
        with session:
            if rank == 0:
                session.ledger.reserve = refuse  # type: ignore[method-assign]
            before = len(reads)
            run(session, model)
    except PrivetError as error:
        return [len(reads) - before, f"{type(error).__name__}: {error}"]
    return [len(reads) - before, "nothing was refused"]


def refuse(*arguments: Any) -> None:
    raise LedgerWriteError("The disk is full.")


def test_no_rank_reads_an_example_that_rank_0_could_not_charge() -> None:
    told = "LedgerWriteError: Rank 0 of 2 stopped, and so do all: The disk is full."
    assert results(charge_fails, 2) == [[0, told], [0, told]]


def try_while_held(rank: int, size: int, folder: str) -> str:
    model = network()
    try:
        privatize(model, plain_sgd(model), examples(), poisson(), folder=folder)
    except PrivetError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def test_two_first_ranks_on_one_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    model = network()
    held = privatize(model, plain_sgd(model), examples(), poisson(), folder=folder)
    found = results(try_while_held, 2, str(folder))
    held.ledger.abandon()
    assert found[0] == found[1]
    assert found[0].startswith("LedgerBusy: Rank 0 of 2 stopped, and so do all")


# ------------------------------------------------------------------------------------------------ releases before a run


def released(seed: int = 3) -> Any:
    inputs, labels = examples(21).tensors
    norm, book = PrivateNormalisation(bounds=(1.0,) * 3, dataset_size=21, noise_multiplier=1.0).release(
        inputs, seed=seed
    )
    model = network()
    losses = nn.CrossEntropyLoss(reduction="none")
    units, other = release_geometry(
        model, losses, inputs, labels, norm=1.0, noise_multiplier=1.0, power=0.25, seed=seed
    )
    rows = [list(each) for each in units.rows]
    return [norm.means.tolist(), norm.stds.tolist(), rows, book.charged_rounds, other.charged_rounds]


def released_on_ranks(rank: int, size: int) -> Any:
    return released()


def test_normalisation_and_units_are_released_once_for_all_ranks() -> None:
    alone = released()
    for found in results(released_on_ranks, 3):
        assert json.dumps(found[3:]) == json.dumps(alone[3:]) == "[1, 1]"
        for one, several in zip(alone[:2], found[:2], strict=True):
            assert several == pytest.approx(one, rel=1e-6)
        for one, several in zip(alone[2], found[2], strict=True):  # sums in single precision, in another order
            assert several == pytest.approx(one, rel=1e-6)


def unlike_noise(rank: int, size: int) -> Any:
    """Let the ranks draw other numbers from equal keys, as unlike devices do."""
    from privet.training import randomness

    draw = randomness.KeystreamNoise.add_normal

    def rounded(self: Any, flat: Tensor, std: float) -> None:
        draw(self, flat, std * (1 + 1e-7 * rank))

    randomness.KeystreamNoise.add_normal = rounded  # type: ignore[method-assign]
    model = network()
    with privatize(model, plain_sgd(model), examples(), poisson(), seed=5) as session:
        run(session, model)
    return {"weights": flat(model), "assumptions": list(session.guarantee().assumptions)}


def test_ranks_that_round_differently_take_the_noise_of_rank_0() -> None:
    found = results(unlike_noise, 2)
    assert (
        found[0]["weights"] == found[1]["weights"] == pytest.approx(trained(poisson())["weights"], rel=1e-5, abs=1e-6)
    )
    assert "drawn by rank 0 and sent to the others" in str(found[1]["assumptions"])


# ------------------------------------------------------------------------------------------------------------ many keys


def many_keys(rank: int, size: int, num: int) -> Any:
    """Return which records took part in steps of many runs without a seed, and the noise of the steps."""
    taken, noise = [], []
    inputs = torch.eye(12)
    for _ in range(num):
        model = nn.Linear(12, 1, bias=False)
        nn.init.zeros_(model.weight)
        plan = plan_of(Poisson(rate=0.25, steps=1, expected_batch_size=3.0), norm=1e-3, noise_multiplier=2.0)
        seen: list[int] = []

        with privatize(model, SGD(model.parameters(), lr=1.0), TensorDataset(inputs), plan) as session:
            for step in session.steps():
                for (rows,) in step.microbatches():
                    step.backward(model(rows).squeeze(1))
                    seen += rows.argmax(1).tolist()
                step.update()
        taken.append(sorted(set(seen)))
        noise.append((model.weight.detach() * -3.0 / (2.0 * 1e-3)).flatten().tolist())
    return [taken, noise]


@pytest.mark.parametrize(("size", "num"), [(2, 200), (4, 50)])
def test_inclusions_are_independent_over_ranks_and_noise_has_its_size(size: int, num: int) -> None:
    found = results(many_keys, size, num, seconds=120.0)
    joined = np.zeros((num, 12))
    for taken, _ in found:
        for row, records in enumerate(taken):
            joined[row, records] += 1
    assert joined.max() == 1, "each example is on one rank"
    rate = joined.mean(0)
    statistic = float(((rate - 0.25) ** 2 / (0.25 * 0.75 / num)).sum())
    assert statistic < chdtri(12, 1e-4)
    centred = (joined - 0.25) / np.sqrt(0.25 * 0.75)
    pairs = [(centred[:, a] * centred[:, b]).mean() for a, b in itertools.combinations(range(12), 2)]
    assert num * float(np.square(pairs).sum()) < chdtri(len(pairs), 1e-4)
    assert all(noise == found[0][1] for _, noise in found), "every rank adds the same noise"
    # the sum is at most 12 clipped gradients of 1e-3, each at most half a standard deviation: the records' own share
    # is known, and taken out
    noise = np.array(found[0][1]) - joined * 0.5
    squares = float(np.square(noise).sum())
    low, high = chdtri(noise.size, 1 - 5e-5), chdtri(noise.size, 5e-5)
    assert low < squares < high
    assert len(np.unique(noise)) == noise.size, "coordinates and steps differ"
