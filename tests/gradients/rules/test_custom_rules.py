"""An engine is taught a new operation by a larger table of its own; the library's table never changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from privet.errors import UnsupportedModel
from privet.gradients.capture.recorded import Use
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.forms.per_example import Explicit
from privet.gradients.rules.example_axis import ExampleAxis
from privet.gradients.rules.layer_rules import RULES
from privet.gradients.rules.rule_tools import Operand, named_arguments, out_grad_of, source_of
from privet.isolation.watch import Check, Waiver
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import engine_clipped_sum, loop_clipped_sum, relative_error
from tests.gradients.zoo import squared

LOOKS_ON_THE_WAY = Waiver(check=Check.READS, because="it compares with a limit and stops, or changes nothing")


def damped(inputs: Tensor, scale: Tensor) -> Tensor:
    """A user's own operation. It looks at values on the way, which vmap cannot follow."""
    if torch.overrides.has_torch_function((inputs, scale)):
        return torch.overrides.handle_torch_function(damped, (inputs, scale), inputs, scale)
    assert float(inputs.detach().abs().max()) < 1e6
    return inputs * scale


class Damping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.randn(6)), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(damped(inputs, self.scale).sin())


def damped_rule(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Each example's gradient of the scale is its inputs times what came back, summed over positions."""
    given = named_arguments(use, "inputs", "scale")
    source = source_of(use, given["scale"])
    assert source is not None
    products = axis.in_front(out_grad_of(use) * given["inputs"].detach(), batch_size)
    return [(source, Explicit(gradients=products.reshape(batch_size, -1, 6).sum(1)))]


def test_an_operation_without_a_rule_is_exact_by_a_backward_pass_for_each_example() -> None:
    torch.manual_seed(0)
    model, inputs = Damping().double(), torch.randn(5, 4, 6, dtype=torch.float64)
    expected = loop_clipped_sum(model, squared, inputs, Threshold(norm=0.3))
    found = engine_clipped_sum(BookKeeping(), model, squared, inputs, Threshold(norm=0.3), waive=[LOOKS_ON_THE_WAY])
    assert relative_error(found, expected) <= 1e-9


@pytest.mark.parametrize("physical_batch_size", [1, 3, None])
def test_an_engine_with_a_rule_of_ones_own_is_exact(physical_batch_size: int | None) -> None:
    torch.manual_seed(0)
    model, inputs = Damping().double(), torch.randn(5, 4, 6, dtype=torch.float64)
    engine = BookKeeping(rules={**RULES, damped: damped_rule})
    expected = loop_clipped_sum(model, squared, inputs, Threshold(norm=0.3))
    found = engine_clipped_sum(
        engine,
        model,
        squared,
        inputs,
        Threshold(norm=0.3),
        physical_batch_size=physical_batch_size,
        waive=[LOOKS_ON_THE_WAY],
    )
    assert relative_error(found, expected) <= 1e-9


def tripled_rule(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    return [(source, Explicit(gradients=3 * part.in_full())) for source, part in damped_rule(use, axis, batch_size)]


@pytest.mark.parametrize("physical_batch_size", [1, 3, None])
def test_a_wrong_rule_is_refused_however_few_examples_come_at_a_time(physical_batch_size: int | None) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match=r"\['scale'\] do not add up to autograd's gradient"):
        engine_clipped_sum(
            BookKeeping(rules={**RULES, damped: tripled_rule}),
            Damping(),
            squared,
            torch.randn(5, 4, 6),
            Threshold(norm=0.3),
            physical_batch_size=physical_batch_size,
            waive=[LOOKS_ON_THE_WAY],
        )


def test_teaching_one_engine_does_not_teach_another() -> None:
    engine = BookKeeping(rules={**RULES, damped: damped_rule})
    assert damped in engine.rules
    assert damped not in RULES
    assert damped not in BookKeeping().rules
