"""Masks plugged into networks as they are, and masks under two kinds of sampling.

Figure 4 and table 3 of Zhu and Blaschko (2023). Figure 4 raises the final rate and leaves every other constant as it
was without masks. Table 3 compares Poisson batches with a shuffled data set dealt into batches. The publication charges
both as Poisson sampling; here shuffled batches have the same noise, as there, and the guarantee that is proven of them,
which is far weaker. Random streams are seeded: runs are repeatable, on public data, and not private.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD

from privet.datasets.arrays import ArrayDataset
from privet.datasets.known import describe
from privet.mechanism.epoch_sampling import Shuffle
from privet.mechanism.mask_rates import GradualCooling
from privet.mechanism.masking import Mask, NoMask, RandomMask
from privet.mechanism.sampling import Sampling
from privet.plan import Plan
from privet.training.fitting import fit_privately
from privet.training.performance import Performance
from privet.training.predictions import predict
from privet.vocabulary import Adjacency
from privet_research.studies.clipping_table import summarise
from privet_research.studies.markdown import markdown
from privet_research.studies.sparsification import ARMS, BASELINE, SparsificationSettings

Row = dict[str, Any]
POISSON, PARTITION = "Poisson", "partition"
RATES = (0.0, 0.3, 0.5, 0.7, 0.9)
_FINAL_RATE = 0.9


def _mask(rate: float) -> Mask:
    return RandomMask(schedule=GradualCooling(final=rate)) if rate else NoMask()


def run_plugged_in_study(
    settings: Sequence[SparsificationSettings], *, seeds: Sequence[int], device: torch.device
) -> Iterator[Row]:
    """Train every network at every final rate, with the constants that it has without a mask."""
    for setting in settings:
        train, test = setting.data(device)
        plan = _baseline(setting, len(train))
        for seed in seeds:
            for rate in RATES:
                made = replace(plan, mask=_mask(rate))
                found = _trained(setting, made, _middle(setting), train, test, seed, device)
                yield {"arm": f"rate {rate:g}", "rate": rate, **found}


def run_partition_study(
    settings: Sequence[SparsificationSettings], *, seeds: Sequence[int], device: torch.device
) -> Iterator[Row]:
    """Train without and with masks, on Poisson batches and on a data set that is shuffled and dealt into batches."""
    for setting in settings:
        train, test = setting.data(device)
        size = setting.num_examples or describe(setting.dataset).train_size
        plan = _baseline(setting, size)
        batches = math.ceil(size / setting.batch_size)
        shuffled: Sampling = Shuffle(batches=batches, epochs=setting.epochs, expected_batch_size=setting.batch_size)
        # Shuffling moves other records when one is added or removed, so only a replaced one can be accounted for.
        dealt = replace(plan, sampling=shuffled, adjacency=Adjacency.REPLACE_ONE)
        for seed in seeds:
            for sampling, base in ((POISSON, plan), (PARTITION, dealt)):
                for rate in (0.0, _FINAL_RATE):
                    made = replace(base, mask=_mask(rate))
                    found = _trained(setting, made, _middle(setting), train, test, seed, device)
                    arm = f"{sampling}, {'no mask' if not rate else 'random mask'}"
                    yield {"arm": arm, "sampling": sampling, "rate": rate, **found}


def _baseline(setting: SparsificationSettings, size: int) -> Plan:
    return setting.plan(ARMS[BASELINE], size).calibrated(epsilon=setting.epsilon)


def _middle(setting: SparsificationSettings) -> float:
    """The published learning rate, which stands between its neighbours."""
    return setting.learning_rates[len(setting.learning_rates) // 2]


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _trained(
    setting: SparsificationSettings,
    plan: Plan,
    learning_rate: float,
    train: ArrayDataset,
    test: ArrayDataset,
    seed: int,
    device: torch.device,
) -> Row:
    began = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = setting.build().to(device)
    optimizer = SGD(model.parameters(), lr=learning_rate)
    performance = Performance(physical_batch_size=setting.physical_batch_size)
    spent = fit_privately(model, optimizer, train, plan, _losses, performance=performance, seed=seed)
    found = predict(model, test.features, test.labels)
    return {
        "setting": setting.name,
        "target": setting.epsilon,
        "seed": seed,
        "epsilon": spent.epsilon,
        "delta": setting.delta,
        "accuracy": float(found.is_right.mean()),
        "learning_rate": learning_rate,
        "seconds": round(time.monotonic() - began, 1),
        "device": device.type,
    }


def variants_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return accuracy by setting and arm as Markdown, with the guarantee that is proven of each."""
    head = ["setting", "arm", "accuracy %", "proven epsilon", "seeds"]
    lines = [head]
    for setting, arm in dict.fromkeys((row["setting"], row["arm"]) for row in rows):
        own = [row for row in rows if (row["setting"], row["arm"]) == (setting, arm)]
        shown = summarise([row["accuracy"] for row in own]).shown(100, 1)
        lines.append([setting, arm, shown, f"{max(row['epsilon'] for row in own):.2f}", str(len(own))])
    table = markdown(lines)
    return f"{table}\n\nMeans with standard errors over seeds, at one learning rate for all arms of a setting.\n"
