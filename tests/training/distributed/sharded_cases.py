"""Runs of sharded models, and of the same models whole: what the processes of the tests carry out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from privet.mechanism import correlated_noise
from privet.mechanism.changing_clipping import AdaptiveQuantile
from privet.mechanism.clipping import Threshold
from privet.mechanism.correlated_noise import BandedGaussian, BandedInverseGaussian
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.grouping import PerParameter
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.models.adapters import add_adapters
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.performance import Performance
from privet.training.session import Session
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

NUM_EXAMPLES, WIDTH, CLASSES = 40, 8, 3


def a_plan(rate: float = 0.3, steps: int = 4, **changes: Any) -> Plan:
    return Plan(
        **{
            "sampling": Poisson(rate=rate, steps=steps, expected_batch_size=8.0),
            "clipping": Threshold(norm=0.7),
            "noise": Gaussian(noise_multiplier=0.8),
            "delta": 1e-5,
            "adjacency": Adjacency.ADD_REMOVE,
            "unit": Unit.RECORD,
            **changes,
        }
    )


def numbers(dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_EXAMPLES, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return TensorDataset(inputs, torch.randint(CLASSES, (NUM_EXAMPLES,), generator=generator))


def words() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    return TensorDataset(torch.randint(11, (NUM_EXAMPLES, 5), generator=generator))


def sentences() -> list[Tensor]:
    """Return rows of unequal lengths; they are padded to the longest of a physical batch."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 12, (NUM_EXAMPLES,), generator=generator).tolist()
    return [torch.randint(1, 11, (length,), generator=generator) for length in lengths]


def padded(rows: list[Tensor]) -> tuple[Tensor]:
    return (nn.utils.rnn.pad_sequence(rows, batch_first=True),)


class Blocks(nn.Module):
    """Equal blocks and a head, with a scale outside of them."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, num: int = 3, width: int = WIDTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(num))
        self.scale = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, CLASSES)
        self.to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = inputs + block(inputs)
        found: Tensor = self.head(inputs * self.scale)
        return found


class Recomputing(Blocks):
    """Blocks whose activations are computed again in the backward pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = inputs + checkpoint(block, inputs, use_reentrant=False)
        found: Tensor = self.head(inputs * self.scale)
        return found


class Tied(nn.Module):
    """A small language model whose table is its head, with attention, norms and an operation without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, WIDTH)
        self.places = nn.Parameter(torch.randn(5, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.mix = nn.Parameter(torch.full((WIDTH,), 0.3))
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens) + self.places
        for block in self.blocks:
            hidden = torch.lerp(hidden, block(hidden), self.mix)
        found: Tensor = self.head(hidden)
        return found


class Words(nn.Module):
    """A language model that sees one word at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, WIDTH, padding_idx=0)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden).tanh()
        found: Tensor = self.head(hidden)
        return found


def adapted() -> Blocks:
    model = Blocks()
    add_adapters(model.blocks, rank=2)
    model.scale.requires_grad_(False)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(value, std=0.1)
    return model


def by_block(model: Any, mesh: Any, **options: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def leaving_the_head(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params=set(model.head.parameters()))


def in_bfloat16(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy, output_dtype=torch.float32))


def momentum(model: nn.Module) -> Optimizer:
    return SGD([value for value in model.parameters() if value.requires_grad], lr=0.5, momentum=0.9)


def adam(model: nn.Module) -> Optimizer:
    return Adam([value for value in model.parameters() if value.requires_grad], lr=0.05)


def class_losses(model: nn.Module) -> Callable[..., Tensor]:
    return lambda inputs, targets: functional.cross_entropy(model(inputs), targets, reduction="none")


def word_losses(model: nn.Module) -> Callable[..., Tensor]:
    def losses(tokens: Tensor) -> Tensor:
        scores = model(tokens)[:, :-1]
        return functional.cross_entropy(scores.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)

    return losses


def sentence_losses(model: nn.Module) -> Callable[..., Tensor]:
    def losses(tokens: Tensor) -> Tensor:
        scores = model(tokens)[:, :-1].transpose(1, 2)
        return functional.cross_entropy(scores, tokens[:, 1:], reduction="none", ignore_index=0).sum(1) / 5

    return losses


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run that a sharded model and the whole one must end alike."""

    model: Callable[[], nn.Module] = Blocks
    shard: Callable[[Any, Any], None] = by_block
    optimizer: Callable[[nn.Module], Optimizer] = momentum
    data: Callable[[], Any] = numbers
    collate: Callable[[list[Any]], Any] | None = None
    losses: Callable[[nn.Module], Callable[..., Tensor]] = class_losses
    plan: Plan = a_plan()  # noqa: RUF009 -- a frozen value
    physical: int = 4
    averaging: bool = False
    manual: bool = False
    evaluates: bool = False
    freely_kept: int = correlated_noise.FREELY_KEPT
    tolerance: float = 1e-6


CASES = {
    "plain": Case(averaging=True),
    "double": Case(
        model=lambda: Blocks(torch.float64), data=lambda: numbers(torch.float64), optimizer=adam, tolerance=1e-12
    ),
    "tied": Case(model=Tied, data=words, losses=word_losses, optimizer=adam, tolerance=2e-6),
    "recomputed": Case(model=Recomputing),
    "unequal lengths": Case(
        model=Words, data=sentences, collate=padded, losses=sentence_losses, plan=a_plan(rate=0.5, steps=8)
    ),
    "adapted": Case(model=adapted, manual=True),
    "rare": Case(plan=a_plan(rate=0.03, steps=12), physical=1, evaluates=True),
    "per parameter": Case(plan=a_plan(grouping=PerParameter())),
    "adaptive": Case(plan=a_plan(clipping=AdaptiveQuantile(norm=0.7, count_noise_std=2.0))),
    "banded": Case(
        plan=a_plan(
            sampling=CyclicPoisson(groups=3, rate=0.8, cycles=2, expected_batch_size=8.0),
            noise=BandedGaussian.square_root(bands=3).with_multiplier(0.8),
        )
    ),
    "inverse": Case(
        plan=a_plan(
            sampling=Cyclic(batches=4, epochs=2, expected_batch_size=10.0),
            noise=BandedInverseGaussian.square_root(bands=3, batches=4, epochs=2).with_multiplier(0.8),
            adjacency=Adjacency.ZERO_OUT,
        ),
        freely_kept=0,  # draws are made again from their numbers, as those of a large model
    ),
    "left whole": Case(shard=leaving_the_head),
    "bfloat16": Case(shard=in_bfloat16, tolerance=0.02),
}


def built(case: Case, mesh: Any = None) -> nn.Module:
    torch.manual_seed(0)
    model = case.model()
    if mesh is not None:
        case.shard(model, mesh)
    return model


def steps(session: Session, case: Case, model: nn.Module, most: int | None = None) -> None:
    losses = case.losses(model)
    for number, step in enumerate(session.steps()):
        if case.manual:
            for batch in step.microbatches():
                step.backward(losses(*batch))
        else:
            step.accumulate(losses)
        step.update()
        if case.evaluates:  # FSDP2 keeps the outermost part gathered, and the next batch may be empty
            with torch.no_grad():
                losses(*case.data()[:2])
        if number + 1 == most:
            return


def started(case: Case, model: nn.Module, **options: Any) -> Session:
    options = {"seed": 7, "performance": Performance(physical_batch_size=case.physical), **options}
    correlated_noise.FREELY_KEPT = case.freely_kept
    return privatize(
        model,
        case.optimizer(model),
        case.data(),
        case.plan,
        collate=case.collate,
        averaging=ExponentialAverage(decay=0.5) if case.averaging else None,
        **options,
    )


def trained(case: Case, mesh: Any = None) -> list[float]:
    """Train, and return the numbers that all ranks together hold in the end."""
    model = built(case, mesh)
    with started(case, model) as session:
        steps(session, case, model)
    if case.averaging:
        with session.averaged():
            return [*weights(model)]
    return weights(model)


def weights(model: nn.Module) -> list[float]:
    found: list[float] = []
    for value in model.parameters():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        found += whole.detach().double().flatten().tolist()
    return found


def a_mesh(size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (size,))


def all_cases(rank: int, size: int, names: list[str]) -> dict[str, list[float]]:
    mesh = a_mesh(size)
    return {name: trained(CASES[name], mesh) for name in names}


def apart(found: list[float], expected: list[float]) -> float:
    one, other = torch.tensor(found, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64)
    return float((one - other).norm() / other.norm())
