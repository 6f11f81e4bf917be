"""Sentences of the text study: those that train, and those by which variants are chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from privet.datasets.sentences import LabelledSentences
from privet.errors import ArgumentError


def hold_out(data: LabelledSentences, num_held_out: int) -> tuple[LabelledSentences, LabelledSentences]:
    """Split training records into those that train and whole sentences by which variants are chosen.

    The training part is mostly phrases and the development part whole sentences, so only records that end like a
    sentence are held out. Phrases that a held-out sentence contains train nothing: a variant that learns records by
    heart would look good on sentences whose halves it has seen, and on the development part, which has no such
    phrases, it is not.

    Raises:
        ArgumentError: there are not that many whole sentences.
    """
    whole = [index for index, text in enumerate(data.sentences) if text.rstrip().endswith((" .", " !", " ?"))]
    if num_held_out > len(whole):
        raise ArgumentError(f"num_held_out is {num_held_out}; only {len(whole)} training records are whole sentences.")
    # One split for all seeds and variants, so that they are compared on the same sentences.
    chosen = set(np.random.default_rng(0).permutation(whole)[:num_held_out].tolist())
    inside = {phrase for index in chosen for phrase in _phrases(data.sentences[index])}
    rest = [index for index, text in enumerate(data.sentences) if " ".join(text.split()) not in inside]
    return _part(data, rest), _part(data, sorted(chosen))


def _phrases(sentence: str) -> Iterator[str]:
    """Yield every run of words, the whole sentence among them."""
    words = sentence.split()
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            yield " ".join(words[start:end])


def first_records(data: LabelledSentences, count: int) -> LabelledSentences:
    """Return the first records."""
    return _part(data, range(min(count, len(data))))


def _part(data: LabelledSentences, rows: Sequence[int]) -> LabelledSentences:
    return LabelledSentences(
        sentences=tuple(data.sentences[row] for row in rows), labels=tuple(data.labels[row] for row in rows)
    )
