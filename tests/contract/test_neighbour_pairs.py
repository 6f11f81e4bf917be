"""Very many neighbouring batches through every engine and layer: the sum never moves beyond the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine, RunningEngine
from privet.gradients.engines.functional import Functional
from privet.mechanism.clipping import ClippingRule, Threshold
from privet.mechanism.sums import ClippedSum
from privet.training.batching import with_gradients
from tests.gradients.reference import layout_of, trainable
from tests.gradients.zoo import CASES, Case, squared

ENGINES: dict[str, Engine] = {"book-keeping": BookKeeping(), "functional": Functional()}
PAIRS = [
    pytest.param(engine, case, id=f"{name}-{case.name}")
    for case in CASES
    for name, engine in ENGINES.items()
    if case.functional or isinstance(engine, BookKeeping)
]
BOUND = 0.5
OTHERS = 2
MANY = math.ceil(100_000 / len(PAIRS))
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


class Summing:
    """One engine on one model, asked again and again."""

    def __init__(self, engine: Engine, model: nn.Module) -> None:
        self.model, self.layout = model, layout_of(model)
        self.rule: ClippingRule = Threshold(norm=BOUND).for_groups(self.layout.num_groups)
        parameters = [value for _, value in trainable(model)]
        self.dtype = torch.promote_types(parameters[0].dtype, torch.float32)
        self.running: RunningEngine = engine.start(model, parameters, self.layout)

    def __call__(self, inputs: Tensor, scale: float, *, last: float = 1.0) -> Tensor:
        """Return the clipped sum; the last example's loss counts ``last`` times."""
        self.running.watch.step += 1  # the factor may change from one step to the next
        flat = torch.zeros(self.layout.num_coordinates, dtype=self.dtype)
        leaves: Sequence[Tensor] = ()
        if self.running.wants_input_gradients:
            inputs, leaves = with_gradients(inputs, len(inputs))
        inputs, weights = inputs.clone(), torch.ones(len(inputs))
        weights[-1] = last  # an example brings its weight along: none may depend on the place in a batch
        self.running.begin(len(inputs), leaves)
        mark_batch([inputs, weights])
        total = ClippedSum(flat=flat, layout=self.layout, sensitivity=self.rule.sensitivity)
        losses = squared(self.model, inputs)
        self.running.add_clipped(scale * weights.to(losses) * losses, self.rule, total)
        return flat.double()


def largest_ratios(engine: Engine, case: Case, num_pairs: int) -> tuple[float, float]:
    """Return how far one example moved the sum at most, in units of the bound: by its loss, and by its presence."""
    torch.manual_seed(7)
    model = case.build().float()
    inputs = case.inputs(OTHERS + num_pairs)
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    summing = Summing(engine, model)
    others, by_loss, by_presence = inputs[:OTHERS], 0.0, 0.0
    for scale in (1.0, 100.0):
        without = summing(others, scale)
        for index in range(OTHERS, len(inputs), 2) if scale == 1.0 else range(OTHERS + 1, len(inputs), 2):
            batch = torch.cat([others, inputs[index : index + 1]])
            together = summing(batch, scale)
            by_loss = max(by_loss, float((together - summing(batch, scale, last=0.0)).norm()) / BOUND)
            by_presence = max(by_presence, float((together - without).norm()) / BOUND)
    summing.running.close()
    return by_loss, by_presence


@pytest.mark.parametrize("num_pairs", [2, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize(("engine", "case"), PAIRS)
def test_one_more_example_moves_the_sum_at_most_the_bound(
    engine: Engine, case: Case, num_pairs: int, record_property: Callable[[str, object], None]
) -> None:
    by_loss, by_presence = largest_ratios(engine, case, num_pairs)
    assert by_loss <= 1 + 1e-6
    # A batch of another size may run other kernels, which round the gradients of the others in another way: that,
    # and not the example that came, moves the sum by a few units in the last place more.
    assert by_presence <= 1 + 1e-6 + 2 * (OTHERS + 1) * torch.finfo(torch.float32).eps
    record_property("pairs", num_pairs)
    record_property("largest ratio to the bound", round(by_loss, 7))
    record_property("largest ratio in a batch of another size", round(by_presence, 7))
