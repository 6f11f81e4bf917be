"""The iterative arms of the hidden-state table, each at a learning rate that held-out training images chose.

The rates of :mod:`privet_research.studies.hidden_state` were found on MNIST, one of them by test accuracy, and carried
over to CIFAR-10. Here every arm tries as many rates, at a seed that is used for nothing else, on training images
without the last 10,000, which judge. The choice is not charged, as in the publication; runs are seeded and on public
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset, Split
from privet_research.studies.hidden_state import Setting, run_arm, run_of
from privet_research.studies.markdown import markdown

Row = dict[str, Any]
# Around the rates of the untuned study; longer steps of the proven arm have no proof.
RATES: Mapping[str, tuple[float, ...]] = {
    "dpsgd_convex": (0.1, 0.3, 1.0, 3.0),
    "dpsgd_relu": (0.025, 0.05, 0.1, 0.2),
    "noisycgd_convex": (0.15, 0.3, 0.6, 1.0),
    "noisycgd_convex_clipped": (0.015, 0.05, 0.15, 0.5),
}
EPSILONS = (4.76, 1.33)
_HELD_OUT, _TUNING_SEED = 10_000, 1_000


def run_tuned_study(
    dataset: str,
    *,
    seeds: Sequence[int],
    device: torch.device,
    epochs: int = Setting().epochs,
    held_out: int = _HELD_OUT,
    epsilons: Sequence[float] = EPSILONS,
    rates: Mapping[str, tuple[float, ...]] = RATES,
    earlier: Sequence[Row] = (),
) -> Iterator[Row]:
    """Yield the trials of every arm at every epsilon, then its runs at the rate that they chose."""
    whole = load(dataset, normalisation="standardized")
    size = len(whole.train)
    kept, held = _part(whole.train, slice(0, size - held_out)), _part(whole.train, slice(size - held_out, None))
    trial_split = replace(whole, train=kept, test=held, info=replace(whole.info, train_size=len(kept)))
    known = {(run_of(row), row["is_trial"]): dict(row) for row in earlier}
    for epsilon in epsilons:
        for arm, own_rates in rates.items():
            base = Setting(dataset=dataset, epsilon=epsilon, epochs=epochs)
            trials = []
            for rate in own_rates:
                row = _row(arm, replace(base, learning_rate=rate), _TUNING_SEED, device, trial_split, known)
                trials.append(row)
                yield row
            best = max(trials, key=lambda row: row["accuracy"])["asked_rate"]
            for seed in seeds:
                yield _row(arm, replace(base, learning_rate=best), seed, device, whole, known)


def _row(
    arm: str,
    setting: Setting,
    seed: int,
    device: torch.device,
    split: Split,
    known: Mapping[tuple[tuple[Any, ...], bool], Row],
) -> Row:
    is_trial = seed == _TUNING_SEED
    asked = {"dataset": setting.dataset, "arm": arm, "seed": seed, "epsilon_target": setting.epsilon}
    asked |= {"asked_rate": setting.learning_rate, "epochs": setting.epochs}
    return known.get((run_of(asked), is_trial)) or {
        **run_arm(arm, setting, seed=seed, device=device, given=split).to_dict(),
        "is_trial": is_trial,
    }


def _part(dataset: ArrayDataset, own: slice) -> ArrayDataset:
    return ArrayDataset(features=dataset.features[own], labels=dataset.labels[own])


def tuned_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: the table of runs, and below it what every trial reached on held-out images."""
    from privet_research.studies.hidden_state_table import hidden_state_table

    trials = [["epsilon", "arm", "rate", "accuracy %"]]
    trials += [
        [f"{row['epsilon_target']:g}", row["arm"], f"{row['asked_rate']:g}", f"{100 * row['accuracy']:.2f}"]
        for row in rows
        if row["is_trial"]
    ]
    runs = hidden_state_table([row for row in rows if not row["is_trial"]])
    return f"{runs}\nTrials on held-out training images:\n\n{markdown(trials)}\n"
