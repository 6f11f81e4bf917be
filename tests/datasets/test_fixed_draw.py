"""A fixed draw never changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from privet.datasets.fixed_draw import fixed_order, fixed_sample


def test_the_order_is_the_one_written_down_here() -> None:
    assert fixed_order(range(8), seed="privet") == [7, 2, 4, 1, 0, 3, 6, 5]


@settings(deadline=None, max_examples=50)
@given(size=st.integers(0, 60), chosen=st.integers(0, 60), seed=st.text(max_size=5))
def test_a_sample_is_ascending_distinct_and_of_the_asked_size(size: int, chosen: int, seed: str) -> None:
    sample = fixed_sample(range(size), chosen, seed=seed)
    assert sample == sorted(set(sample))
    assert len(sample) == min(size, chosen)
    assert set(sample) <= set(range(size))


def test_a_larger_sample_contains_the_smaller_one() -> None:
    assert set(fixed_sample(range(100), 10, seed="s")) < set(fixed_sample(range(100), 20, seed="s"))


def test_another_seed_gives_another_order() -> None:
    assert fixed_order(range(100), seed="a") != fixed_order(range(100), seed="b")


def test_every_position_is_chosen_about_equally_often() -> None:
    counts = [0] * 10
    for seed in range(1_000):
        for position in fixed_sample(range(10), 3, seed=str(seed)):
            counts[position] += 1
    # Each count is binomial with mean 300 and deviation 14.5; five deviations never happen by chance.
    assert all(abs(count - 300) < 73 for count in counts)
