"""Switching rules: which rule a step has, what that costs, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from dp_accounting import GaussianDpEvent

from privet.errors import CheckpointError, PrivetError
from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import Automatic, KeepOrDrop, Threshold
from privet.mechanism.codec import CLIPPING, decode_piece

LIKE = torch.zeros(1)
MIXED = Scheduled(parts=(Threshold(norm=0.1), KeepOrDrop(norm=0.1, cutoff=1000.0)), switches=(0.95,))


def test_the_last_twentieth_of_the_steps_has_the_second_rule() -> None:
    run = MIXED.start(num_groups=1, num_steps=1000, expected_batch_size=32)
    kinds = [type(run.begin(step, LIKE).piece).__name__ for step in range(1000)]
    assert kinds == ["Threshold"] * 950 + ["KeepOrDrop"] * 50


def test_three_parts_take_over_one_after_another() -> None:
    parts = (Threshold(norm=1.0), Automatic(norm=2.0), Threshold(norm=3.0))
    run = Scheduled(parts=parts, switches=(0.25, 0.5)).start(num_groups=4, num_steps=8, expected_batch_size=1)
    assert [run.begin(step, LIKE).sensitivity.total for step in range(8)] == pytest.approx([1, 1, 2, 2, 3, 3, 3, 3])


def test_every_step_costs_what_its_noisy_sum_costs_and_nothing_is_kept() -> None:
    event = GaussianDpEvent(1.3)
    assert MIXED.joint_event(event) is event
    run = MIXED.start(num_groups=1, num_steps=10, expected_batch_size=1)
    run.begin(9, LIKE)
    run.watch(torch.ones(3, 1))
    assert run.release(event, _NoSource()) is event
    assert run.state() == {}
    run.restore({})
    with pytest.raises(CheckpointError, match="keeps no state"):
        run.restore({"bounds": (1.0,)})


def test_lists_from_files_mean_the_same_as_tuples() -> None:
    data = {
        "kind": "scheduled",
        "switches": [0.95],
        "parts": [{"kind": "threshold", "norm": 0.1}, {"kind": "keep_or_drop", "norm": 0.1, "cutoff": 1000.0}],
    }
    assert decode_piece(data, CLIPPING, where="clipping") == MIXED


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"kind": "treshold", "norm": 1.0}], r"plan\.clipping\.parts\.kind is 'treshold'. Did you mean 'threshold'"),
        ([{"kind": "threshold", "nrm": 1.0}], r"plan\.clipping\.parts\.nrm is not an option"),
        ([1.0, 2.0], r"plan\.clipping \('scheduled'\): Scheduled takes clipping pieces"),
        ("threshold", r"plan\.clipping \('scheduled'\): Scheduled takes a list of parts"),
    ],
)
def test_faults_of_nested_pieces_are_told_with_their_place(parts: object, message: str) -> None:
    with pytest.raises(PrivetError, match=message):
        decode_piece({"kind": "scheduled", "parts": parts, "switches": [0.5]}, CLIPPING, where="plan.clipping")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Scheduled(parts=(Threshold(norm=1.0),), switches=()), "1 parts and 0 switches"),
        (lambda: Scheduled(parts=(Threshold(norm=1.0),) * 2, switches=(0.1, 0.2)), "2 parts and 2 switches"),
        (lambda: Scheduled(parts=(Threshold(norm=1.0),) * 3, switches=(0.5, 0.5)), "must increase"),
        (lambda: Scheduled(parts=(Threshold(norm=1.0),) * 2, switches=(1.0,)), "switches must lie in"),
        (lambda: Scheduled(parts=(Threshold, Automatic()), switches=(0.5,)), "takes clipping pieces"),  # type: ignore[arg-type]
        (
            lambda: Scheduled(parts=(AdaptiveQuantile(norm=1.0, count_noise_std=1.0), Automatic()), switches=(0.5,)),
            "do not change during a run, got AdaptiveQuantile",
        ),
        (lambda: Scheduled(parts=(MIXED, Automatic()), switches=(0.5,)), "do not change during a run, got Scheduled"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(PrivetError, match=message):
        build()


class _NoSource:
    def add_normal(self, flat: torch.Tensor, std: float) -> None:
        raise AssertionError("nothing is released")
