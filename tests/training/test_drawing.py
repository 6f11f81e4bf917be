"""Batches that are drawn ahead of their step belong to charged rounds, and are those of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.training.drawing import DrawsAhead
from privet.training.reading import Indices


@dataclass
class Book:
    """A ledger as far as draws ask it."""

    charged_rounds: int = 0
    available: int = 0

    def charge(self, count: int) -> None:
        self.charged_rounds += count
        self.available += count


@dataclass
class Sampler:
    """Rounds of so many batches, each batch the number of its round and its place; counts what was drawn."""

    per_round: int
    book: Book
    first: int = 0
    drawn: int = 0

    def draw(self) -> Iterator[Indices]:
        number = self.first + self.drawn
        assert number < self.book.charged_rounds, "a batch was drawn before its round was charged"
        self.drawn += 1
        for place in range(self.per_round):
            yield np.array([number, place])


@settings(deadline=None)
@given(
    per_round=st.integers(1, 3),
    earlier=st.integers(0, 4),
    charges=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    looks=st.lists(st.integers(0, 8), min_size=20, max_size=20),
)
def test_however_far_one_looks_only_charged_rounds_are_drawn_and_in_order(
    per_round: int, earlier: int, charges: list[int], looks: list[int]
) -> None:
    book = Book(charged_rounds=earlier)  # rounds of an earlier process
    sampler = Sampler(per_round, book, first=earlier)
    draws, handed, looking = DrawsAhead(sampler.draw, book), list[tuple[int, ...]](), iter(looks)
    for charge in charges:
        book.charge(charge)
        while book.available:
            for batch in draws.round():
                handed.append(tuple(batch))
                ahead = [tuple(later) for later, _ in zip(draws.upcoming(), range(next(looking, 3)), strict=False)]
                number, place = batch
                order = [(later, at) for later in range(number, book.charged_rounds) for at in range(per_round)]
                assert ahead == order[place + 1 :][: len(ahead)]
            book.available -= 1  # the step's noise was compared with the charge
    assert handed == [(number, place) for number in range(earlier, book.charged_rounds) for place in range(per_round)]


def test_what_is_left_of_a_round_that_was_broken_off_is_not_used() -> None:
    book = Book()
    book.charge(3)
    draws = DrawsAhead(Sampler(4, book).draw, book)
    first = draws.round()
    assert tuple(next(first)) == (0, 0)
    assert [tuple(batch) for batch in draws.upcoming()][-1] == (2, 3)
    book.available -= 1  # the first step of the round is in the model, and the user's loop ends
    assert [tuple(batch) for batch in draws.round()] == [(1, place) for place in range(4)]


def test_nothing_follows_while_no_further_round_is_charged() -> None:
    book = Book()
    book.charge(1)
    draws = DrawsAhead(Sampler(1, book).draw, book)
    assert len(list(draws.round())) == 1
    assert list(draws.upcoming()) == []
    book.charge(1)
    assert [tuple(batch) for batch in draws.upcoming()] == [(1, 0)]
