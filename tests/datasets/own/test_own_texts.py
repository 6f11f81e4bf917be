"""A user's own texts: one record is one row, none for training is refused, and test records are read strictly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from privet.datasets.arrays import ArrayDataset
from privet.datasets.own.declared_texts import DeclaredTexts
from privet.datasets.own.own_texts import load_declared_texts, read_new_texts, read_test_texts
from privet.datasets.own.ownership import Ownership
from privet.errors import ArgumentError, DataError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import FullBatch
from privet.plan import Plan
from privet.runs.building import with_owners
from privet.training.persons import persons_of
from privet.vocabulary import Adjacency, Unit

DECLARED = DeclaredTexts(text="note", target="ward", classes=("a", "b"), length=4)
OF_WRITERS = replace(DECLARED, ownership=Ownership(person="writer"))
INFO = DECLARED.info("notes", train_size=10, test_size=0)


def tokens(texts: Sequence[str]) -> Tensor:
    """Return the lengths of words, and a mask."""
    rows = torch.zeros((len(texts), 2, 4), dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        words = text.split()[:4]
        row[0, : len(words)] = torch.tensor([len(word) for word in words], dtype=torch.long)
        row[1, : len(words)] = 1
    return rows


def written(path: Path, *records: str) -> Path:
    path.write_text("\n".join(["ward,note", *records]) + "\n")
    return path


def test_one_changed_record_changes_its_own_row_and_nothing_else(tmp_path: Path) -> None:
    records = ["a,the cat sat", "b,a dog", "a,it was red"]
    whole = load_declared_texts(DECLARED, INFO, tokens, train=written(tmp_path / "one.csv", *records), test=None)
    for changed in ("b,", 'unheard,"a ""long"" text, of many many words"', "b", "a,b,c,d", ",,"):
        other = [records[0], changed, records[2]]
        found = load_declared_texts(DECLARED, INFO, tokens, train=written(tmp_path / "two.csv", *other), test=None)
        assert found.train.features.shape == whole.train.features.shape
        assert found.train.features.dtype == torch.int64
        for place in (0, 2):
            assert torch.equal(found.train.features[place], whole.train.features[place])
            assert found.train.labels[place] == whole.train.labels[place]
        assert int(found.train.labels[1]) in (0, 1)


def test_a_training_label_that_is_no_class_counts_as_the_first_without_a_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "one.csv", "b,x", "unheard,x", ",x")
    assert load_declared_texts(DECLARED, INFO, tokens, train=path, test=None).train.labels.tolist() == [1, 0, 0]
    assert not list(recwarn)
    assert capfd.readouterr() == ("", "")


def test_a_test_label_that_is_no_class_is_refused_by_its_number_and_not_shown(tmp_path: Path) -> None:
    path = written(tmp_path / "test.csv", "b,secret text", "Atlantis,secret text")
    for read in (
        lambda: read_test_texts(path, DECLARED, tokens),
        lambda: load_declared_texts(DECLARED, INFO, tokens, train=path, test=path),
    ):
        with pytest.raises(DataError, match="record 2") as found:
            read()
        assert "Atlantis" not in str(found.value)
        assert "secret" not in str(found.value)


def test_new_texts_need_no_classes(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text('note\nthe cat\n""\n')
    assert read_new_texts(tmp_path / "new.csv", DECLARED, tokens)[:, 1].sum(1).tolist() == [2, 0]
    (tmp_path / "none.csv").write_text("note\n")
    with pytest.raises(DataError, match="no records"):
        read_new_texts(tmp_path / "none.csv", DECLARED, tokens)


def test_texts_are_not_public_and_hold_words(tmp_path: Path) -> None:
    assert not INFO.public
    assert INFO.made_up(3).dtype == torch.int64
    assert INFO.made_up(3).shape == (3, 2, 4)
    assert INFO.task.names == ("ward",)
    assert DECLARED.ownership.units == (Unit.RECORD,)


def of_writers(*records: str, path: Path) -> ArrayDataset:
    path.write_text("\n".join(["writer,ward,note", *records]) + "\n")
    return load_declared_texts(OF_WRITERS, INFO, tokens, train=path, test=None).train


def test_a_person_with_more_texts_than_the_cap_takes_part_with_the_cap_only(tmp_path: Path) -> None:
    found = of_writers(*["w1,a,the cat"] * 7, "w2,b,a dog", "w3,b,", "w2,,it", path=tmp_path / "one.csv")
    assert found.persons == ("w1",) * 7 + ("w2", "w3", "w2")
    steps = FullBatch(steps=3, expected_batch_size=3)
    for sampling in (SampledPersons(sampling=steps, max_records=2), BoundedPersons(sampling=steps, max_records=2)):
        plan = Plan(
            sampling=sampling,
            clipping=Threshold(norm=1.0),
            noise=Gaussian(noise_multiplier=1.0),
            delta=1e-5,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.PERSON,
        )
        draws = persons_of(sampling, with_owners(found, found.persons, plan))
        assert draws is not None
        for batch in draws.round(np.random.default_rng(1), np.random.default_rng(2)):
            rows = batch.reshape(-1)
            taken = [found.persons[row] for row in rows[rows >= 0].tolist()]  # the others only fill up
            assert {name: taken.count(name) for name in taken} == {"w1": 2, "w2": 2, "w3": 1}


def test_several_texts_of_a_person_are_not_promised_what_one_is(tmp_path: Path) -> None:
    assert Unit.PERSON in of_writers("w1,a,x", "w2,b,x", path=tmp_path / "one.csv").one_item.units
    several = of_writers("w1,a,x", "w1,b,x", path=tmp_path / "two.csv").one_item
    assert several.units == (Unit.RECORD,)
    with pytest.raises(DataError, match="a person has several records") as refused:
        several.check(Unit.PERSON)
    assert "w1" not in str(refused.value)


def test_names_of_persons_are_no_input(tmp_path: Path) -> None:
    one, other = (of_writers(f"{name},a,the cat", path=tmp_path / "one.csv") for name in ("w1", "someone else"))
    assert torch.equal(one.features, other.features)
    assert torch.equal(one.labels, other.labels)
    for column in (DECLARED.text, DECLARED.target):
        with pytest.raises(ArgumentError, match="Names are never learned"):
            replace(DECLARED, ownership=Ownership(person=column))


@pytest.mark.parametrize(
    "wrong",
    [{"target": "note"}, {"classes": ("a",)}, {"classes": ("a", "a")}, {"classes": ("a", "")}, {"length": 1}],
)
def test_an_impossible_declaration_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        DeclaredTexts(**({"text": "note", "target": "ward", "classes": ("a", "b"), "length": 4} | wrong))  # type: ignore[arg-type]
