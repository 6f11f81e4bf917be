"""Rows that travel by what is in the examples are followed where each stays its example's, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.errors import UnsupportedModel
from privet.isolation.place import Fault, Place
from privet.isolation.prove import Finding, prove
from tests.isolation.coverage import session_sum

NUM, TIME, WIDTH, EXPERTS, CHOSEN = 4, 3, 4, 3, 2
_ANOTHER = "it is another program on another number of examples"
Program = Callable[["Experts", Tensor], Tensor]


class Experts(nn.Module):
    """A gate that chooses experts for each token, and their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.weights = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 2)
        self.bias = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens ``[tokens, width]``, and experts and scores of each ``[tokens, chosen]``."""
        tokens = x.reshape(-1, WIDTH)
        scores, experts = self.gate(tokens).softmax(1).topk(CHOSEN, 1)
        return tokens, experts, scores


def _losses(found: Tensor, x: Tensor) -> Tensor:
    return found.reshape(len(x), -1).square().sum(1)


def by_sorting(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, scores = model.routed(x)
    keys, order = experts.reshape(-1).sort()
    ends = torch.histc(keys.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
    out = functional.grouped_mm(tokens[order // CHOSEN], model.weights, offs=ends) + model.bias[keys]
    out = out * scores.reshape(-1)[order].unsqueeze(1)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return _losses(out[back].view(len(tokens), CHOSEN, WIDTH).sum(1), x)


def by_counts_of_keys(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, scores = model.routed(x)
    keys = experts.reshape(-1)
    order = keys.argsort(stable=True)
    ends = torch.bincount(keys, minlength=EXPERTS).cumsum(0).to(torch.int32)
    out = functional.grouped_mm(tokens[order // CHOSEN], model.weights, offs=ends) + model.bias[keys[order]]
    out = out * scores.reshape(-1)[order].unsqueeze(1)
    return _losses(torch.zeros_like(tokens).index_add(0, order // CHOSEN, out), x)


def by_numbers(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, scores = model.routed(x)
    total = torch.zeros_like(tokens)
    for expert in range(EXPERTS):
        number, _nth = torch.where(experts == expert)
        out = torch.tanh(tokens[number] @ model.weights[expert] + model.bias[expert])
        weight = scores.gather(1, experts.eq(expert).to(torch.int64).argmax(1, keepdim=True))
        total = total.index_add(0, number, out * weight[number])
    return _losses(total, x)


def by_masks(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, _ = model.routed(x)
    first = experts[:, 0]
    total = torch.zeros_like(tokens)
    for expert in range(EXPERTS):
        mask = first == expert
        total[mask] = torch.tanh(tokens[mask] @ model.weights[expert] + model.bias[expert])
    return _losses(total, x) + _losses(model.gate(tokens), x)


def sorted_and_back(model: Experts, x: Tensor) -> Tensor:
    h = x[:, 0] @ model.weights[0] @ model.weights[1:].sum(0) + model.bias.sum(0)
    order = h.sum(1).argsort()
    return model.gate(torch.tanh(h[order])[order.argsort()]).square().sum(1)


def by_a_public_mask(model: Experts, x: Tensor) -> Tensor:
    h, total = x @ model.weights[0] @ model.weights[1:].sum(0), torch.zeros(len(x), TIME, WIDTH)
    mask = torch.zeros(len(x)) == 0
    total[mask] = torch.tanh(h[mask] + model.bias.sum(0))
    return _losses(model.gate(total + h), x)


def by_joined_keys(model: Experts, x: Tensor) -> Tensor:
    """The best expert of each token, and then the best of all others, as in PhiMoE."""
    tokens = x.reshape(-1, WIDTH)
    scores = model.gate(tokens)
    best = scores.max(1, keepdim=True)[1]
    second = scores.scatter(1, best, float("-inf")).max(1, keepdim=True)[1]
    keys, order = torch.cat([best, second], 1).reshape(-1).sort()
    ends = torch.histc(keys.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
    out = functional.grouped_mm(tokens[order // 2], model.weights, offs=ends) + model.bias[keys]
    found = torch.zeros_like(tokens).index_add(0, order // 2, out)
    return _losses(found, x) + _losses(scores, x)


APART: tuple[Program, ...] = (
    by_sorting, by_counts_of_keys, by_numbers, by_masks, sorted_and_back, by_a_public_mask, by_joined_keys,
)  # fmt: skip


def with_a_capacity(model: Experts, x: Tensor) -> Tensor:
    """The first tokens of an expert push out those that come later."""
    tokens, experts, _ = model.routed(x)
    chosen = functional.one_hot(experts[:, 0], EXPERTS)
    rank = (chosen.cumsum(0) * chosen).sum(1)  # mixes
    return _losses(tokens * (rank <= 2).unsqueeze(1) * model.bias.sum(), x) + _losses(model.gate(tokens), x)


def cut_after_sorting(model: Experts, x: Tensor) -> Tensor:
    tokens, _experts, scores = model.routed(x)
    order = scores[:, 0].argsort(descending=True)[:6]
    return _losses(torch.zeros_like(tokens).index_add(0, order, tokens[order] @ model.weights[0]), x)


def cut_after_taking(model: Experts, x: Tensor) -> Tensor:
    tokens, _, scores = model.routed(x)
    order = scores[:, 0].argsort()
    kept = tokens[order] @ model.weights[0]
    return _losses(torch.zeros_like(tokens).index_add(0, order[:6], kept[:6]), x)


def weighted_by_rank(model: Experts, x: Tensor) -> Tensor:
    tokens, _, scores = model.routed(x)
    order = scores[:, 0].argsort()
    ranked = tokens[order] * torch.linspace(0, 1, len(order)).unsqueeze(1)
    return _losses(ranked[order.argsort()] @ model.weights[0], x)


def ranks_as_numbers(model: Experts, x: Tensor) -> Tensor:
    tokens, _, scores = model.routed(x)
    ranks = scores[:, 0].argsort().argsort()
    return _losses(tokens @ model.weights[0] * ranks.unsqueeze(1), x)


def back_by_another_order(model: Experts, x: Tensor) -> Tensor:
    tokens, _, scores = model.routed(x)
    one, other = scores[:, 0].argsort(), scores[:, 1].argsort()
    return _losses((tokens[one] @ model.weights[0])[other.argsort()], x)


def never_brought_back(model: Experts, x: Tensor) -> Tensor:
    tokens, _, scores = model.routed(x)
    return _losses(tokens[scores[:, 0].argsort()] @ model.weights[0], x)


def two_orders_meet(model: Experts, x: Tensor) -> Tensor:
    tokens, _, scores = model.routed(x)
    one, other = scores[:, 0].argsort(), scores[:, 1].argsort()
    out = tokens[one] * tokens[other]
    return _losses(torch.zeros_like(tokens).index_add(0, one, out) @ model.weights[0], x)


def added_to_other_rows(model: Experts, x: Tensor) -> Tensor:
    tokens, _, scores = model.routed(x)
    one, other = scores[:, 0].argsort(), scores[:, 1].argsort()
    return _losses(torch.zeros_like(tokens).index_add(0, other, tokens[one]) @ model.weights[0], x)


def neighbours_in_order(model: Experts, x: Tensor) -> Tensor:
    tokens, _, scores = model.routed(x)
    order = scores[:, 0].argsort()
    ranked = tokens[order]
    return _losses((ranked + ranked.roll(1, 0))[order.argsort()] @ model.weights[0], x)


def groups_of_another_key(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, _ = model.routed(x)
    _keys, order = experts[:, 0].contiguous().sort()
    ends = torch.bincount(experts[:, 1].contiguous(), minlength=EXPERTS).cumsum(0).to(torch.int32)
    out = functional.grouped_mm(tokens[order], model.weights, offs=ends)
    return _losses(out[order.argsort()], x)


def groups_the_other_way_round(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, _ = model.routed(x)
    keys = experts[:, 0].contiguous()
    order = keys.argsort(descending=True)
    ends = torch.bincount(keys, minlength=EXPERTS).cumsum(0).to(torch.int32)
    return _losses(functional.grouped_mm(tokens[order], model.weights, offs=ends)[order.argsort()], x)


def keys_without_a_bin(model: Experts, x: Tensor) -> Tensor:
    """Tokens that no expert takes have a negative key, which no bin counts: all ends are too early by their number."""
    tokens, experts, scores = model.routed(x)
    keys, order = torch.where(scores[:, 0] > 0.4, experts[:, 0], -1).sort()
    ends = torch.histc(keys.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
    return _losses(functional.grouped_mm(tokens[order], model.weights, offs=ends)[order.argsort()], x)


def keys_changed_through_a_view(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, _ = model.routed(x)
    keys = experts[:, 0].clone()
    order = keys.argsort()
    keys.view(-1, 1).sub_(1)
    ends = torch.histc(keys.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
    return _losses(functional.grouped_mm(tokens[order], model.weights, offs=ends)[order.argsort()], x)


def numbers_that_lead_elsewhere(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, _ = model.routed(x)
    number, _ = torch.where(experts == 0)
    return _losses(torch.zeros_like(tokens).index_add(0, (number + 1) % len(tokens), tokens[number]), x)


def numbers_as_content(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, _ = model.routed(x)
    number, _ = torch.where(experts == 0)
    out = tokens[number] * number.unsqueeze(1) @ model.weights[0]
    return _losses(torch.zeros_like(tokens).index_add(0, number, out), x)


def put_by_another_mask(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, _ = model.routed(x)
    mask, total = experts[:, 0] == 0, torch.zeros_like(tokens)
    total[mask.flip(0)] = tokens[mask] @ model.weights[0]
    return _losses(total, x)


def mean_of_the_chosen(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, _ = model.routed(x)
    chosen = tokens[experts[:, 0] == 0]
    return _losses(tokens @ model.weights[0] + chosen.mean(0), x)


def balanced_by_counts(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, _ = model.routed(x)
    load = torch.bincount(experts[:, 0].contiguous(), minlength=EXPERTS)
    return _losses(tokens @ model.weights[0] / load.float().max(), x)


def halves_by_one_public_mask(model: Experts, x: Tensor) -> Tensor:
    half = len(x) // 2
    mask, total = torch.zeros(half) == 0, torch.zeros_like(x)
    total[:half][mask] = x[:half][mask] + x[-half:][mask]
    return _losses(total @ model.weights[0], x)


def layouts_by_one_public_mask(model: Experts, x: Tensor) -> Tensor:
    tokens, others = x.reshape(-1, WIDTH), x.transpose(0, 1).reshape(-1, WIDTH)
    mask, total = torch.zeros(len(tokens)) == 0, torch.zeros_like(tokens)
    total[mask] = tokens[mask] * others[mask]
    return _losses(total @ model.weights[0], x)


def mean_by_a_public_mask(model: Experts, x: Tensor) -> Tensor:
    return _losses(x @ model.weights[0] + x[torch.zeros(len(x)) == 0].mean(0), x)


def put_by_another_public_mask(model: Experts, x: Tensor) -> Tensor:
    mask, total = torch.arange(len(x)) > 0, torch.zeros_like(x)
    total[mask.flip(0)] = x[mask] @ model.weights[0]
    return _losses(total, x)


def keys_joined_with_others(model: Experts, x: Tensor) -> Tensor:
    tokens, experts, scores = model.routed(x)
    others = torch.where(scores[:, :1] > 0.4, experts[:, :1], -1)
    keys, order = torch.cat([experts[:, 1:], others], 1).reshape(-1).sort()
    ends = torch.histc(keys.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
    out = functional.grouped_mm(tokens[order // CHOSEN], model.weights, offs=ends)
    return _losses(torch.zeros_like(tokens).index_add(0, order // CHOSEN, out), x)


TOGETHER: tuple[Program, ...] = (
    halves_by_one_public_mask, layouts_by_one_public_mask, mean_by_a_public_mask, put_by_another_public_mask,
    keys_joined_with_others,
    with_a_capacity, cut_after_sorting, cut_after_taking, weighted_by_rank, ranks_as_numbers, back_by_another_order,
    never_brought_back, two_orders_meet, added_to_other_rows, neighbours_in_order, groups_of_another_key,
    groups_the_other_way_round, keys_without_a_bin, keys_changed_through_a_view, numbers_that_lead_elsewhere,
    numbers_as_content, put_by_another_mask, mean_of_the_chosen, balanced_by_counts,
)  # fmt: skip


def _named(programs: tuple[Program, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("program", programs, ids=lambda program: program.__name__)


def _found(program: Program, seed: int) -> Finding:
    torch.manual_seed(seed)
    model = Experts()
    return prove(lambda batch: program(model, batch["x"]), {"x": torch.randn(NUM, TIME, WIDTH)})


@_named(APART)
@pytest.mark.parametrize("seed", range(5))
def test_rows_that_come_back_to_their_examples_are_proven(program: Program, seed: int) -> None:
    found = _found(program, seed)
    assert set(found.doubts) <= {_ANOTHER}  # torch assigns a single row in another way than several
    assert found.losses == Place(0, 1, 1, 0, NUM)


@_named(TOGETHER)
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_several_examples_that_meet_are_refused(program: Program, seed: int) -> None:
    assert not _found(program, seed).is_proven


@_named(TOGETHER)
def test_a_session_refuses_rows_of_several_examples_that_meet(program: Program) -> None:
    torch.manual_seed(0)
    model = Experts()
    batch: Mapping[str, Tensor] = {"x": torch.randn(NUM, TIME, WIDTH)}
    with pytest.raises(UnsupportedModel):
        session_sum(model, lambda given: program(model, given["x"]), batch, 1.0, [])


@_named(APART)
def test_the_clipped_sum_of_rows_that_travel_is_exact(program: Program) -> None:
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(NUM, TIME, WIDTH)
    parameters, gradients = list(model.parameters()), []
    for place in range(NUM):
        found = torch.autograd.grad(program(model, x[place : place + 1]).sum(), parameters, allow_unused=True)
        gradients.append(
            torch.cat(
                [torch.zeros(p.numel()) if g is None else g.reshape(-1) for p, g in zip(parameters, found, strict=True)]
            )
        )
    bound = float(torch.stack(gradients).norm(dim=1).median())
    expected = sum(gradient * min(1.0, bound / float(gradient.norm())) for gradient in gradients)
    evidence: list[bool] = []
    for found_sum in session_sum(model, lambda given: program(model, given["x"]), {"x": x}, bound, evidence):
        assert torch.allclose(found_sum.float(), expected, rtol=1e-4, atol=1e-4 * bound)
    assert evidence == [True]


def test_a_capacity_is_named_as_what_mixes() -> None:
    found = _found(with_a_capacity, 0).losses
    assert getattr(found, "fault", None) in (Fault.MIXES, Fault.NO_RULE)
