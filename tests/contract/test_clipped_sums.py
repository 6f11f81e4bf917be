"""Every clipping rule in every engine, grouping and mask: how far one record can move the sum, over 100,000 pairs.

Each example owns a row of the parameters, so one clipped sum shows the contribution of every example by itself, and
one pass through an engine compares as many pairs of neighbouring data sets as it has examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import (
    Automatic,
    Clipping,
    ClippingRule,
    KeepOrDrop,
    PerSampleAdaptive,
    Threshold,
)
from privet.mechanism.grouping import ByName, Grouping, OneGroup, PerParameter
from privet.mechanism.sensitivity import Norm
from tests.contract.test_clipping import CLIPPINGS
from tests.gradients.reference import engine_clipped_sum

NUM_ROWS, WIDTHS = 500, (3, 2, 1)
BOUND = 0.75
DROPPING = KeepOrDrop(norm=BOUND, cutoff=9.0)

RULES: dict[str, tuple[Clipping, int]] = {
    "threshold": (Threshold(norm=BOUND), 0),
    "keep or drop": (KeepOrDrop(norm=BOUND, cutoff=20.0), 0),
    "automatic": (Automatic(norm=BOUND), 0),
    "per-sample adaptive": (PerSampleAdaptive(norm=BOUND), 0),
    "adaptive quantile": (AdaptiveQuantile(norm=BOUND, count_noise_std=2.0), 0),
    "scheduled, before": (Scheduled(parts=(Threshold(norm=BOUND), DROPPING), switches=(0.5,)), 0),
    "scheduled, after": (Scheduled(parts=(Threshold(norm=1.0), DROPPING), switches=(0.5,)), 9),
}
# a piece that is not written out above is tried as the suite of clipping holds it, at this bound
RULES |= {
    kind.__name__: (replace(members[0][0], norm=BOUND), 0)  # type: ignore[type-var]
    for kind, members in CLIPPINGS.items()
    if kind not in {type(piece) for piece, _ in RULES.values()} and members[0][0].not_private_because is None
}
GROUPINGS: dict[str, Grouping] = {
    "flat": OneGroup(),
    "layerwise": PerParameter(),
    "by name": ByName(parts=(("0",), ("1", "2"))),
}
ENGINES: dict[str, Engine] = {"book-keeping": BookKeeping(), "functional": Functional()}
MASKS = {"every coordinate": 1.0, "a third": 1 / 3}
DTYPES = {"double": torch.float64, "single": torch.float32}

each_rule = pytest.mark.parametrize("rule", RULES)
each_grouping = pytest.mark.parametrize("grouping", GROUPINGS)
each_engine = pytest.mark.parametrize("engine", ENGINES)
each_mask = pytest.mark.parametrize("mask", MASKS)


class Rows(nn.ModuleList):
    """One table per layer; an example looks up its own row in each and scales what it finds."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(nn.Embedding(NUM_ROWS, width, dtype=dtype) for width in WIDTHS)

    def forward(self, places: Tensor) -> list[Tensor]:
        return [table(places) for table in self]


def gradients(seed: int) -> list[Tensor]:
    """Rows of very different lengths, some of them hostile."""
    generator = torch.Generator().manual_seed(seed)
    lengths = 10 ** (torch.rand(NUM_ROWS, 1, generator=generator, dtype=torch.float64) * 12 - 6)
    found = [torch.randn(NUM_ROWS, width, generator=generator, dtype=torch.float64) * lengths for width in WIDTHS]
    for place, value in enumerate([0.0, 1e-40, 1e18, math.inf, math.nan, -math.inf]):
        found[place % len(WIDTHS)][place] = value
    return found


def contributions(
    rule: str, grouping: str, engine: str, mask: str, wanted: list[Tensor], dtype: torch.dtype
) -> tuple[list[Tensor], tuple[float, ...]]:
    """Return every example's part of the clipped sum, table by table, and the declared bounds."""
    torch.manual_seed(0)
    model, (piece, step) = Rows(dtype), RULES[rule]
    chosen = GROUPINGS[grouping]
    num_groups = len(set(chosen.groups_of([name for name, _ in model.named_parameters()])))
    run = piece.start(num_groups=num_groups, num_steps=10, expected_batch_size=NUM_ROWS)
    bound_rule = run.begin(step, torch.zeros(1))
    size = NUM_ROWS * sum(WIDTHS)
    keep = None
    if MASKS[mask] < 1:
        keep = torch.rand(size, generator=torch.Generator().manual_seed(1)) < MASKS[mask]
    pulls = [pull.to(dtype) for pull in wanted]

    def loss(model: nn.Module, places: Tensor) -> Tensor:
        found = model(places)
        return torch.stack([(part * pull[places]).sum(1) for part, pull in zip(found, pulls, strict=True)]).sum(0)

    total = engine_clipped_sum(
        ENGINES[engine], model, loss, torch.arange(NUM_ROWS), _Fixed(bound_rule), chosen, keep=keep
    )
    tables = [part.view(NUM_ROWS, -1) for part in total.split([NUM_ROWS * width for width in WIDTHS])]
    return tables, bound_rule.sensitivity.bounds


@dataclass(frozen=True)
class _Fixed:
    """Hands a bound rule to code that binds rules itself."""

    rule: ClippingRule
    norm_kind: Norm = Norm.L2

    def for_groups(self, num_groups: int) -> ClippingRule:
        return self.rule


def lengths_by_group(tables: list[Tensor], grouping: str) -> Tensor:
    groups = GROUPINGS[grouping].groups_of([f"{index}.weight" for index in range(len(tables))])
    squares = torch.zeros(NUM_ROWS, max(groups) + 1, dtype=torch.float64)
    for group, table in zip(groups, tables, strict=True):
        squares[:, group] += table.double().square().sum(1)
    return squares.sqrt()


@each_rule
@each_grouping
@each_engine
@each_mask
def test_no_record_moves_the_sum_further_than_the_rule_declares(
    rule: str, grouping: str, engine: str, mask: str
) -> None:
    # 500 pairs in each of 7 x 3 x 2 x 2 settings, twice in double and once in single precision: 126,000 pairs
    for seed, kind in ((0, "double"), (1, "double"), (2, "single")):
        tables, bounds = contributions(rule, grouping, engine, mask, gradients(seed), DTYPES[kind])
        moved = lengths_by_group(tables, grouping)
        assert bool(moved.isfinite().all())
        slack = 1e-9 if kind == "double" else 1e-5
        limits = torch.tensor(bounds, dtype=torch.float64) * (1 + slack)
        assert bool((moved <= limits).all())
        assert float(moved.norm(dim=1).max()) <= BOUND * (1 + slack)
        # the law has teeth: somebody comes near the bound
        assert float((moved / limits).max()) > 0.5


@each_rule
@each_grouping
def test_engines_agree_on_every_contribution(rule: str, grouping: str) -> None:
    for mask in MASKS:
        one, other = (contributions(rule, grouping, engine, mask, gradients(3), torch.float64)[0] for engine in ENGINES)
        for left, right in zip(one, other, strict=True):
            assert torch.allclose(left, right, rtol=1e-9, atol=1e-12)


@each_engine
@each_grouping
def test_keep_or_drop_is_the_threshold_at_the_cutoff_times_bound_over_cutoff_when_nothing_is_dropped(
    engine: str, grouping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [pull.nan_to_num(0.0, 0.0, 0.0).clamp(-5, 5) for pull in gradients(4)]
    num_groups = len(set(GROUPINGS[grouping].groups_of(["0.weight", "1.weight", "2.weight"])))
    cutoff = 40.0
    monkeypatch.setitem(RULES, "dropping", (KeepOrDrop(norm=BOUND, cutoff=cutoff), 0))
    monkeypatch.setitem(RULES, "local", (Threshold(norm=(cutoff,) * num_groups), 0))
    dropping, bounds = contributions("dropping", grouping, engine, "every coordinate", wanted, torch.float64)
    local, _ = contributions("local", grouping, engine, "every coordinate", wanted, torch.float64)
    for left, right in zip(dropping, local, strict=True):
        assert torch.allclose(left, right * (bounds[0] / cutoff), rtol=1e-12, atol=1e-15)
        assert float(right.abs().max()) > 1.0
