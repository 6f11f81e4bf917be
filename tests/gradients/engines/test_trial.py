"""The trial finds mixed examples also where the examples themselves have no gradient: words, categories, indices."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from privet.errors import UnsupportedModel
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.trial import trials
from privet.mechanism.clipping import Threshold
from tests.gradients.engines.test_refusals import MIXING_AFTER, MIXING_BEFORE, Applied
from tests.gradients.reference import engine_clipped_sum
from tests.gradients.zoo import squared

BATCH = 8


class Words(nn.Module):
    """A table of words behind some function of the whole batch."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.table, self.name = nn.Embedding(11, 6), name

    def forward(self, ids: Tensor) -> Tensor:
        return MIXING_AFTER[self.name](self.table(ids))


# Where nothing is clipped all examples weigh the same, and comparing sums cannot tell whose gradient is whose.
@pytest.mark.parametrize("norm", [1.0, 1e6])
@pytest.mark.parametrize("name", MIXING_AFTER)
def test_mixing_what_words_stand_for_is_refused(name: str, norm: float) -> None:
    ids = torch.randint(0, 11, (BATCH,), generator=torch.Generator().manual_seed(1))
    with pytest.raises(UnsupportedModel, match="mixes the examples"):
        engine_clipped_sum(BookKeeping(), Words(name), squared, ids, Threshold(norm=norm))


# Each of these joins examples whose places are both even or both odd, for batches of the given size.
SAME_PARITY: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "pairs half a batch apart": (8, lambda out: out + out.roll(len(out) // 2, 0)),
    "two places on": (8, lambda out: out + out.roll(2, 0)),
    "four places on": (16, lambda out: out + out.roll(4, 0).detach().exp() * out.roll(4, 0)),
    "turned round": (9, lambda out: out * out.flip(0)),
    "only the first and the seventh": (8, lambda out: torch.cat([out[:6], out[6:7] + out[:1], out[7:]])),
}


class Mixed(nn.Module):
    """A linear layer or a table, and a mixture of what it gives for different examples."""

    def __init__(self, mixture: Callable[[Tensor], Tensor], *, has_words: bool) -> None:
        super().__init__()
        self.layer = nn.Embedding(11, 6) if has_words else nn.Linear(4, 6)
        self.mixture = mixture

    def forward(self, inputs: Tensor) -> Tensor:
        return self.mixture(self.layer(inputs))


@pytest.mark.parametrize("norm", [1.0, 1e6])
@pytest.mark.parametrize("has_words", [False, True], ids=["numbers", "words"])
@pytest.mark.parametrize("name", SAME_PARITY)
def test_mixing_examples_of_equal_parity_is_refused(name: str, has_words: bool, norm: float) -> None:
    size, mixture = SAME_PARITY[name]
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(size, 4, generator=generator)
    examples = torch.randint(0, 11, (size,), generator=generator) if has_words else inputs
    with pytest.raises(UnsupportedModel, match="mixes the examples"):
        engine_clipped_sum(BookKeeping(), Mixed(mixture, has_words=has_words), squared, examples, Threshold(norm=norm))


def one_way(source: int, target: int) -> Callable[[Tensor], Tensor]:
    """So little that only an exact test notices it: sums differ by less than rounding might explain."""

    def mixture(out: Tensor) -> Tensor:
        mixed = out[target : target + 1] + 1e-6 * out[source : source + 1]
        return torch.cat([out[:target], mixed, out[target + 1 :]])

    return mixture


# The second norm makes factors so small that the trial's last set is not left to the comparison of sums.
@pytest.mark.parametrize("norm", [1e6, 1e-9])
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_one_example_that_reaches_one_other_is_refused_whichever_they_are(size: int, norm: float) -> None:
    inputs = torch.randn(size, 4, generator=torch.Generator().manual_seed(3))
    for source, target in itertools.permutations(range(size), 2):
        with pytest.raises(UnsupportedModel, match="mixes the examples"):
            engine_clipped_sum(
                BookKeeping(), Mixed(one_way(source, target), has_words=False), squared, inputs, Threshold(norm=norm)
            )


def through_an_operator(out: Tensor) -> Tensor:
    """No rule can tell what an operator of the user's own does."""
    found: Tensor = unruled(out)
    return found


NUM_SETS = len(list(trials(4, torch.device("cpu"))))


@pytest.mark.parametrize(
    ("mixture", "num_passes"), [(lambda out: out, 1), (through_an_operator, NUM_SETS)], ids=["proven", "tried"]
)
def test_the_last_set_of_a_sound_program_shares_its_pass_with_the_comparison_of_sums(
    mixture: Callable[[Tensor], Tensor], num_passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, real = [], torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **kwargs: passes.append(1) or real(*args, **kwargs))
    inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(4))
    engine_clipped_sum(BookKeeping(), Mixed(mixture, has_words=False), squared, inputs, Threshold(norm=1.0))
    assert len(passes) == num_passes + 2, "for sums and sets, one for a norm, and the one that training takes"


@torch.library.custom_op("privet_tests::unruled", mutates_args=(), schema="(Tensor rows) -> Tensor")
def unruled(rows: Tensor) -> Tensor:
    """An operator of the user's own: it does nothing, and no rule can tell, so that the trial alone is left."""
    return rows.clone()


unruled.register_autograd(lambda ctx, grad: grad)


@pytest.mark.parametrize("name", SAME_PARITY)
def test_the_trial_alone_refuses_mixing_of_equal_parity(name: str) -> None:
    size, mixture = SAME_PARITY[name]
    inputs = torch.randn(size, 4, generator=torch.Generator().manual_seed(2))
    model = Mixed(lambda out: mixture(unruled(out)), has_words=False)
    with pytest.raises(UnsupportedModel, match="mixes the examples"):
        engine_clipped_sum(BookKeeping(), model, squared, inputs, Threshold(norm=1e6))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_trial_alone_refuses_one_example_that_reaches_one_other(size: int) -> None:
    inputs = torch.randn(size, 4, generator=torch.Generator().manual_seed(3))
    for source, target in itertools.permutations(range(size), 2):
        mixture = one_way(source, target)
        model = Mixed(lambda out, mixture=mixture: mixture(unruled(out)), has_words=False)  # type: ignore[misc]
        with pytest.raises(UnsupportedModel, match="mixes the examples"):
            engine_clipped_sum(BookKeeping(), model, squared, inputs, Threshold(norm=1e6))


@pytest.mark.parametrize("name", MIXING_BEFORE)
def test_the_trial_alone_refuses_mixing_before_the_first_trained_layer(name: str) -> None:
    inputs = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(5))
    model = Applied(before=lambda rows: MIXING_BEFORE[name](unruled(rows)))
    with pytest.raises(UnsupportedModel, match="mixes the examples"):
        engine_clipped_sum(BookKeeping(), model, squared, inputs, Threshold(norm=1.0))
