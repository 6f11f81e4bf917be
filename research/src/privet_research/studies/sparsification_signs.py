"""When masks help: figures 2 and 3 of Zhu and Blaschko (2023).

Training accuracy against the mask's final rate, for nine pairs of noise and threshold, and with one half of the
mechanism taken out at a time: clipping without noise, and noise without clipping. The publication finds that masks help
the more, the larger the noise ``sigma C`` is, that they hurt where it is small, and that they do not help without noise
or without clipping. Streams are seeded, and half of the arms have no guarantee: nothing here is private.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from privet.mechanism.ablations import NoNoise, Unclipped
from privet.mechanism.clipping import Clipping, Threshold
from privet.mechanism.mask_rates import GradualCooling
from privet.mechanism.masking import NoMask, RandomMask
from privet.mechanism.noise import Gaussian, Noise
from privet_research.studies.markdown import markdown
from privet_research.studies.mask_tasks import MaskTask, accuracy
from privet_research.studies.sparsification_table import Difference

Row = dict[str, Any]
PRIVATE, CLIP_ONLY, NOISE_ONLY = "private", "clipping alone", "noise alone"
NOISES, NORMS = (1.0, 2.0, 4.0), (0.25, 0.5, 1.0)
RATES = (0.0, 0.9)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a figure: everything but the mask's rate.

    Attributes:
        kind: Which parts of the mechanism are there.
        noise_multiplier: Noise over the threshold, or over one where nothing is clipped; None for no noise.
        norm: The threshold; None for none.
    """

    kind: str
    noise_multiplier: float | None
    norm: float | None

    @property
    def clipping(self) -> Clipping:
        """The clipping piece."""
        return Unclipped() if self.norm is None else Threshold(norm=self.norm)

    @property
    def noise(self) -> Noise:
        """The noise piece."""
        return NoNoise() if self.noise_multiplier is None else Gaussian(noise_multiplier=self.noise_multiplier)

    @property
    def title(self) -> str:
        """What tables and pictures call it."""
        noise = "no noise" if self.noise_multiplier is None else f"sigma {self.noise_multiplier:g}"
        return f"{noise}, {'unclipped' if self.norm is None else f'C {self.norm:g}'}"


# Those that the publication's claims rest on come first, so that a run that is cut short has them.
_FIRST = ((2.0, 1.0), (4.0, 0.5), (1.0, 0.25), (2.0, 0.5))
_PAIRS = (*_FIRST, *(pair for pair in itertools.product(NOISES, NORMS) if pair not in _FIRST))
_CLAIMED = tuple(Panel(kind=PRIVATE, noise_multiplier=noise, norm=norm) for noise, norm in _PAIRS)
PANELS = (
    *_CLAIMED[: len(_FIRST)],
    *(Panel(kind=CLIP_ONLY, noise_multiplier=None, norm=norm) for norm in NORMS),
    *(Panel(kind=NOISE_ONLY, noise_multiplier=noise, norm=None) for noise in NOISES),
    *_CLAIMED[len(_FIRST) :],
)
# Least and most noise, no noise, and no clipping.
QUICK_PANELS = tuple(
    panel
    for panel in PANELS
    if (panel.kind, panel.noise_multiplier, panel.norm)
    in ((PRIVATE, 2.0, 1.0), (PRIVATE, 1.0, 0.25), (CLIP_ONLY, None, 0.25), (NOISE_ONLY, 4.0, None))
)


def run_signs_study(
    task: MaskTask,
    *,
    seeds: Sequence[int],
    device: torch.device,
    panels: Sequence[Panel] = PANELS,
    earlier: Sequence[Row] = (),
) -> Iterator[Row]:
    """Train with every panel, rate and seed, and yield one row of figures as each is known.

    Rows of an earlier run are yielded again in their places and not trained again.
    """
    train, test = task.load(device)
    known = {_run_of(row): row for row in earlier}
    for seed, panel, rate in itertools.product(seeds, panels, RATES):
        facts = {
            "arm": f"{panel.kind}, {panel.title}, rate {rate:g}",
            "task": task.name,
            "kind": panel.kind,
            "panel": panel.title,
            "noise_multiplier": panel.noise_multiplier,
            "norm": panel.norm,
            "rate": rate,
            "seed": seed,
        }
        if _run_of(facts) in known:
            yield known[_run_of(facts)]
            continue
        began = time.monotonic()
        model = task.model(seed, device)
        mask = RandomMask(schedule=GradualCooling(final=rate)) if rate else NoMask()
        plan = task.plan(clipping=panel.clipping, noise=panel.noise, mask=mask)
        learning_rate = task.unclipped_rate if panel.norm is None else task.learning_rate
        task.train(model, train, plan, seed=seed, learning_rate=learning_rate)
        yield {
            **facts,
            "learning_rate": learning_rate,
            "epochs": task.epochs,
            "accuracy": accuracy(model, test),
            "train_accuracy": accuracy(model, train),
            "seconds": round(time.monotonic() - began, 1),
            "device": device.type,
        }


def _run_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["arm"], row["seed"]


def signs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the study as Markdown: what the largest rate gains in every panel, and what the figures claim of it."""
    head = ["mechanism", "panel", "noise sigma C", "rate 0, %", "gain in training accuracy", "in test accuracy"]
    lines = [head]
    gains: dict[tuple[str, str], Difference] = {}
    for kind, title in dict.fromkeys((row["kind"], row["panel"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["panel"]) == (kind, title)]
        none, most = ([row for row in own if row["rate"] == rate] for rate in (0.0, max(row["rate"] for row in own)))
        train = Difference.between(_as_accuracy(most), _as_accuracy(none))
        gains[kind, title] = train
        base = 100 * sum(row["train_accuracy"] for row in none) / max(1, len(none))
        shown = [kind, title, _size(own[0]), f"{base:.1f}", str(train), str(Difference.between(most, none))]
        lines.append(shown)
    table = markdown(lines)
    return f"{table}\n\n{_finding(rows, gains)}\n"


def _as_accuracy(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [{"seed": row["seed"], "accuracy": row["train_accuracy"]} for row in rows]


def _size(row: Mapping[str, Any]) -> str:
    return "0" if row["noise_multiplier"] is None else f"{row['noise_multiplier'] * (row['norm'] or 1.0):g}"


def _finding(rows: Sequence[Mapping[str, Any]], gains: Mapping[tuple[str, str], Difference]) -> str:
    private = [key for key in gains if key[0] == PRIVATE]
    if not private:
        return "A finding needs private panels."
    sizes = {(row["kind"], row["panel"]): float(_size(row)) for row in rows}
    least, most = min(private, key=lambda key: sizes[key]), max(private, key=lambda key: sizes[key])
    helped = [f"{key[1]} ({gain})" for key, gain in gains.items() if key[0] in (CLIP_ONLY, NOISE_ONLY) and gain.is_sure]
    return (
        f"Points between the largest rate and none, 95 % intervals over seeds. Under the least noise ({least[1]}) the "
        f"mask changes training accuracy by {gains[least]}, under the most ({most[1]}) by {gains[most]}. With clipping "
        f"alone or noise alone it surely helps in {', '.join(helped) if helped else 'no panel'}."
    )
