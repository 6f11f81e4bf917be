from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.effects import fairness
from privet.effects.confidence import reliability
from privet.effects.fairness import Attribute, check_attribute, decision_disparity, fairness_report, long_tail
from privet.effects.groups import DecisionDisparity, FairnessReport
from privet.errors import ArgumentError, DataError, DependencyError
from privet.records import read_record
from privet.training.predictions import Predictions


def made_up(seed: int, size: int = 400, classes: int = 2, groups: int = 3) -> tuple[Predictions, Attribute]:
    """Predictions that are worse for later groups."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=size)
    codes = generator.integers(groups, size=size)
    logits = generator.normal(size=(size, classes))
    logits[np.arange(size), labels] += 2.0 - 0.8 * codes
    names = tuple(f"group {number}" for number in range(groups))
    return Predictions.from_logits(logits, labels), Attribute(name="part", group_names=names, codes=codes)


@given(seed=st.integers(0, 100), groups=st.integers(2, 5), classes=st.integers(2, 4))
@settings(max_examples=10, deadline=None)
def test_accuracy_loss_and_gaps_equal_those_of_fairlearn_exactly(seed: int, groups: int, classes: int) -> None:
    metrics = pytest.importorskip("fairlearn.metrics")
    predictions, attribute = made_up(seed, classes=classes, groups=groups)
    names = [str(number) for number in range(classes)]
    report = fairness_report(predictions, class_names=names, attributes=[attribute], num_resamples=5)
    frame = metrics.MetricFrame(
        metrics={
            "accuracy": lambda truth, found: (truth == found).mean(),
            "loss": lambda truth, found, losses: losses.mean(),
            "count": metrics.count,
        },
        y_true=predictions.labels,
        y_pred=predictions.log_probabilities.argmax(1),
        sensitive_features=attribute.codes,
        sample_params={"loss": {"losses": predictions.losses}},
    )
    found = report.attributes[1]
    assert [group.accuracy.value for group in found.groups] == list(frame.by_group["accuracy"])
    assert [group.loss.value for group in found.groups] == pytest.approx(list(frame.by_group["loss"]), rel=1e-12)
    assert [group.num_examples for group in found.groups] == list(frame.by_group["count"])
    assert found.accuracy_gap.value == frame.difference()["accuracy"]
    worst = frame.by_group["accuracy"].idxmin()
    assert found.worst_group == attribute.group_names[worst]


def test_differences_of_decisions_are_those_computed_by_hand() -> None:
    pytest.importorskip("fairlearn")
    truth = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    decided = np.array([0, 1, 1, 1, 0, 0, 0, 1])
    predictions = Predictions.from_logits(np.eye(2)[decided] * 3, truth)
    attribute = Attribute(name="sex", group_names=("f", "m"), codes=np.array([0, 0, 0, 0, 1, 1, 1, 1]))
    found = decision_disparity(predictions, attribute, class_names=("no", "yes"))
    assert found.demographic_parity == 0.75 - 0.25
    assert found.equalized_odds == 0.5
    for value, interval in (
        (found.demographic_parity, found.demographic_parity_interval),
        (found.equalized_odds, found.equalized_odds_interval),
    ):
        assert interval is not None
        assert interval.value == value
        assert 0 <= interval.low < interval.high <= 1
    assert read_record(DecisionDisparity, asdict(found), what="a disparity") == found
    assert found.positive_class == "yes"


def test_calibration_of_a_group_is_the_calibration_of_its_examples() -> None:
    predictions, attribute = made_up(3)
    report = fairness_report(predictions, class_names=("a", "b"), attributes=[attribute], num_resamples=2)
    for code, group in enumerate(report.attributes[1].groups):
        own = reliability(predictions.take(attribute.codes == code))
        assert group.calibration_error.value == pytest.approx(own.expected_error, abs=1e-12)


def test_classes_are_groups_whose_accuracy_is_their_recall() -> None:
    predictions, _ = made_up(4, classes=3)
    found = fairness_report(predictions, class_names=("a", "b", "c"), num_resamples=2).attributes[0]
    recalls = [predictions.is_right[predictions.labels == number].mean() for number in range(3)]
    assert [group.accuracy.value for group in found.groups] == recalls
    assert found.attribute == "class"


def test_intervals_hold_the_true_accuracy_of_a_group_as_often_as_they_say() -> None:
    """Truth by construction: a prediction of group g is right with a known probability."""
    rates, hits, trials = (0.9, 0.6), 0, 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        codes = np.repeat([0, 1], 150)
        labels = generator.integers(2, size=300)
        right = generator.random(300) < np.array(rates)[codes]
        predictions = Predictions.from_logits(np.eye(2)[np.where(right, labels, 1 - labels)], labels)
        attribute = Attribute(name="g", group_names=("a", "b"), codes=codes)
        found = fairness_report(predictions, class_names=("n", "y"), attributes=[attribute]).attributes[1]
        for group, rate in zip(found.groups, rates, strict=True):
            hits, trials = hits + (group.accuracy.low <= rate <= group.accuracy.high), trials + 1
        assert found.worst_group == "b"
        assert found.worst_share == 1.0
    assert hits / trials == pytest.approx(0.95, abs=0.045)


def test_an_empty_group_is_listed_and_not_measured() -> None:
    predictions, attribute = made_up(5, groups=2)
    wider = Attribute(name="part", group_names=(*attribute.group_names, "nobody"), codes=attribute.codes)
    found = fairness_report(predictions, class_names=("a", "b"), attributes=[wider], num_resamples=2).attributes[1]
    assert found.empty_groups == ("nobody",)
    assert len(found.groups) == 2


def test_attributes_from_which_no_comparison_follows_are_refused() -> None:
    labels = np.array([0, 1, 0, 1])
    one_group = Attribute(name="sex", group_names=("f", "m"), codes=np.zeros(4, dtype=np.int64))
    with pytest.raises(DataError, match="one group of 'sex'"):
        check_attribute(one_group, labels)
    one_class = Attribute(name="sex", group_names=("f", "m"), codes=np.array([0, 1, 0, 0]))
    with pytest.raises(DataError, match="'m' holds examples of one class only"):
        check_attribute(one_class, labels)
    with pytest.raises(DataError, match="one group per example"):
        check_attribute(one_group, labels[:3])
    with pytest.raises(DataError, match="from 0 to 1"):
        Attribute(name="sex", group_names=("f", "m"), codes=np.array([0, 2]))
    with pytest.raises(DataError, match="one whole number"):
        Attribute(name="sex", group_names=("f", "m"), codes=np.array([0.0, np.nan]))
    with pytest.raises(ArgumentError, match="twice"):
        Attribute(name="sex", group_names=("f", "f"), codes=np.array([0, 1]))


def test_decisions_need_two_classes_and_fairlearn(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions, attribute = made_up(6, classes=3)
    with pytest.raises(ArgumentError, match="two classes"):
        decision_disparity(predictions, attribute, class_names=("a", "b", "c"))
    monkeypatch.setitem(__import__("sys").modules, "fairlearn.metrics", None)
    predictions, attribute = made_up(6)
    with pytest.raises(DependencyError, match=r"privet\[effects\]"):
        fairness.decision_disparity(predictions, attribute, class_names=("a", "b"))


def test_a_report_survives_being_written_and_read() -> None:
    predictions, attribute = made_up(7)
    report = fairness_report(predictions, class_names=("a", "b"), attributes=[attribute], num_resamples=4)
    assert FairnessReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    for damaged in (
        {},
        [],
        {"num_examples": 3, "attributes": [{}], "decisions": [], "sources": [], "confidence": 0.95},
    ):
        with pytest.raises(ArgumentError):
            FairnessReport.from_dict(damaged)


def test_the_tail_holds_the_largest_losses_and_the_head_the_smallest() -> None:
    predictions, _ = made_up(8)
    found = long_tail(predictions, num_shown=7)
    order = np.argsort(predictions.losses)
    assert found.easiest == tuple(order[:7])
    assert found.hardest == tuple(order[::-1][:7])
    assert found.num_right_among_hardest == 0
    of_class = long_tail(predictions, num_shown=3, label=1)
    assert all(predictions.labels[list(of_class.hardest)] == 1)
    assert len(long_tail(predictions, num_shown=10_000).hardest) == predictions.num_examples
    assert long_tail(predictions, label=5).hardest == ()
