"""Every rule is held against the truth: where it gives a place, changing one example changes that example's rows."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest
from torch import Tensor

from privet.isolation import rules_axes, rules_elements
from privet.isolation.call import Rule
from privet.isolation.place import Cause, Fault, Place, Rows, Verdict
from privet.isolation.table import RULES
from tests.isolation.rule_calls import CALLS
from tests.isolation.rule_calls_rows import ROWS
from tests.isolation.rule_check import Sample, contradiction, layouts, verdicts
from tests.isolation.rule_samples import guessed

# Rules whose operations take such arguments that a call can be made up from the signature.
GUESSED: frozenset[Rule] = frozenset(
    [
        rules_elements.elements, rules_elements.like, rules_elements.fresh, rules_elements.overwritten,
        rules_elements.loss, rules_axes.reduction, rules_axes.along,
    ]
)  # fmt: skip
# They draw until a draw will do, so that numbers of one example move the stream for those after it, not their law.
REJECTION = frozenset(["poisson", "_standard_gamma", "binomial", "rrelu_with_noise", "rrelu_with_noise_functional"])
# Results that are memory as it was found.
UNSET = {"empty_like": (0,), "new_empty": (0,), "new_empty_strided": (0,), "_ctc_loss": (1,), "empty": (0,)}
_UNTOLD = Cause(Fault.NO_RULE, "nothing", "memory as it was found")
# Operations of other devices; their rules are held against operations of this one.
ELSEWHERE = frozenset(
    [
        "_cudnn_ctc_loss", "mkldnn_max_pool2d", "mkldnn_adaptive_avg_pool2d", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_fused_attention_overrideable", "cudnn_batch_norm", "miopen_batch_norm",
        "convolution_overrideable", "_cudnn_rnn", "_cudnn_init_dropout_state", "_fused_dropout", "_masked_scale",
    ]
)  # fmt: skip


def written() -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in (*CALLS, *ROWS):
        found[sample.name].append(sample)
    return found


WRITTEN = written()


def samples(name: str) -> Iterator[Sample]:
    yield from WRITTEN.get(name, ())
    if RULES[name] in GUESSED:
        yield from guessed(name)


# Rows that travel, and operations on whole batches: their rules never give a place to more than one example.
SILENT = frozenset(
    [
        "_pack_padded_sequence", "_unique2", "bincount", "dot", "histc", "masked_scatter", "masked_scatter_",
        "masked_select", "nonzero", "nonzero_static", "put_", "repeat_interleave", "unique_consecutive",
        "unique_dim", "vdot",
    ]
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(RULES) - ELSEWHERE))
def test_where_a_rule_gives_a_place_an_example_changes_its_own_rows_alone(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(samples(name))
        assert found, f"no case tries the rule of {name}"
        speaks = False
        for sample in found:
            before = sample.run(sample.tensors)
            speaks = speaks or not sample.tensors
            for layout in layouts(sample.tensors):
                said = verdicts(sample, layout, before)
                speaks = speaks or any(verdict is None or is_of_many(verdict) for verdict in said)
                wrong = wrong_about(sample, layout, before, said)
                assert not wrong, f"{sample.operation} {[tuple(x.shape) for x in sample.tensors]}: {wrong}"
    assert speaks is (name not in SILENT), "a rule that always says no holds every law"


def is_of_many(verdict: Verdict) -> bool:
    return isinstance(verdict, Place) and not verdict.is_single


def wrong_about(
    sample: Sample, layout: Sequence[Place | None], before: Sequence[Tensor], said: Sequence[Verdict]
) -> str:
    if sample.name in REJECTION or all(isinstance(verdict, Cause) for verdict in said):
        return ""
    if any(isinstance(verdict, Rows) for verdict in said):
        return ""  # where they lie depends on other rows; tests of programs hold what may become of them
    unset = UNSET.get(sample.name, ())
    told = [_UNTOLD if number in unset else verdict for number, verdict in enumerate(said)]
    return contradiction(sample, layout, before, told)


def test_a_rule_of_an_operation_of_another_device_is_tried_on_one_of_this() -> None:
    tried = {RULES[name] for name in RULES if name not in ELSEWHERE}
    assert [name for name in ELSEWHERE if RULES[name] not in tried] == []
