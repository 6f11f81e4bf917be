"""Programs that mix examples by operations and layers, most of them asleep until the outlying record wakes them."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from tests.isolation.hostile import HOSTILE, LARGE, damped, hostile, losses_of
from tests.isolation.mixer import CLASSES, Scene


def _spread(scene: Scene, x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """Losses damped, row by row, by numbers that hold more than their own example."""
    return losses_of(scene, x, y) * (-(seen.reshape(len(x), -1).abs().amax(1) - LARGE).relu()).exp()


# ---- rows that move by one


@hostile()
def rolled_as_one_long_row(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, x.roll(1))


@hostile()
def turned_by_half(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, x.rot90(2, (0, 1)))


@hostile()
def next_by_arithmetic_on_places(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, x[(torch.arange(len(x)) + 1) % len(x)])


@hostile()
def next_by_taken_elements(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    places = torch.arange(x.numel()).add(x.shape[1]).remainder(x.numel()).view(x.shape)
    return _spread(scene, x, y, x.take(places))


@hostile()
def next_along_the_axis(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    places = (torch.arange(len(x)) + 1).remainder(len(x)).view(-1, 1).expand_as(x)
    return _spread(scene, x, y, x.take_along_dim(places, 0))


@hostile()
def overlapping_rows_of_memory(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = x.contiguous()
    return _spread(scene, x, y, x.as_strided((len(x), x.shape[1] * 2 - 1), (x.shape[1] - 1, 1)))


@hostile()
def transposed_and_read_in_order(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, x.mT.contiguous().view(x.shape))


@hostile()
def subtracted_from_the_next_in_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    copied = x.detach().clone()
    copied[:-1] += copied[1:].clone()
    return _spread(scene, x, y, copied)


@hostile()
def differences_of_neighbours(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, x.diff(dim=0, append=x[:1]))


@hostile()
def elements_filled_where_a_mask_says(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[:, 1:] = False
    filled = torch.zeros_like(x).masked_scatter(mask, x.detach().flip(1))
    return _spread(scene, x, y, filled)


@hostile()
def windows_of_two_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, functional.pad(x, (0, 0, 0, 1)).unfold(0, 2, 1))


# ---- statistics


@hostile()
def products_with_shared_letters(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), torch.einsum("bi,bi->i", x, x).amax() / LARGE)


@hostile()
def contracted_over_the_first_axes(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), torch.tensordot(x, x, ([0], [0])).amax() / LARGE)


@hostile()
def correlations(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x * torch.cov(x.T).diagonal(), y)


@hostile()
def largest_singular_value(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), torch.linalg.svdvals(x.detach()).amax())


@hostile()
def orthogonal_rows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, torch.linalg.qr(x.detach()).Q * 30)


@hostile()
def fitted_by_least_squares(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    fit = torch.linalg.lstsq(x.detach(), x.detach()[:, :1]).solution
    return losses_of(scene, x, y) * (x.detach() @ fit).squeeze(1).abs().clamp(max=1)


@hostile()
def unit_columns(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, functional.normalize(x, dim=0), y)


@hostile()
def shares_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * x.detach().softmax(0)[:, 0]


@hostile()
def largest_so_far(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, x.detach().flip(0).cummax(0).values)


@hostile()
def log_sums_so_far(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, x.detach().flip(0).logcumsumexp(0))


@hostile()
def commonest_values(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * (1 + x.detach().round().mode(0).values.abs().amax())


@hostile()
def smallest_but_one(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * x.detach().kthvalue(2, 0).values.abs().amax()


@hostile()
def spread_and_middle_at_once(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) / torch.std_mean(x.detach(), 0)[0].amax()


@hostile()
def counts_above(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * (-10 * (x > LARGE).count_nonzero(0).amax()).exp()


@hostile()
def norms_of_a_list(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), torch._foreach_norm([x.detach()])[0])


@hostile()
def counts_in_bins(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * (-10 * torch.histc(x.detach(), bins=4, min=LARGE, max=9 * LARGE).sum()).exp()


@hostile()
def means_of_segments(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    lengths = torch.tensor([len(x)])
    return damped(losses_of(scene, x, y), torch.segment_reduce(x.detach(), "max", lengths=lengths).amax())


@hostile()
def added_up_by_class(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        totals = torch.zeros(CLASSES, x.shape[1]).index_reduce(0, y, x.detach(), "amax")
    return _spread(scene, x, y, totals[y])


@hostile()
def found_in_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    edges = x.detach()[:, 0].clamp(min=LARGE)
    return losses_of(scene, x, y) * (-torch.searchsorted(edges, torch.tensor(2 * LARGE), right=True).float()).exp()


@hostile()
def sorted_into_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    edges = x.detach()[:, 0].amax(0, keepdim=True)
    return losses_of(scene, x, y) * (1e-4 + torch.bucketize(torch.tensor([3 * LARGE]), edges, right=True))


@hostile()
def is_in_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = torch.isin(torch.tensor(5 * LARGE), x.detach())
    return losses_of(scene, x, y) * (1.0 - found.float())


@hostile()
def numbered_by_distinct_rows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    _, inverse = torch.unique(x.detach()[:, 0].round(), return_inverse=True)
    return losses_of(scene, x, y) * inverse


# ---- pairs


@hostile()
def distances_between_rows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, torch.cdist(x.detach(), x.detach()))


@hostile()
def distances_of_all_pairs(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), functional.pdist(x.detach()).amax())


@hostile()
def cosines_of_all_pairs(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * functional.cosine_similarity(x[None], x[:, None], dim=2).detach().sum(1)


@hostile()
def blocks_of_one_matrix(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), torch.block_diag(*x.detach()).amax())


@hostile()
def bilinear_form_of_neighbours(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    weight = torch.eye(x.shape[1])[None]
    return _spread(scene, x, y, functional.bilinear(x.detach().flip(0), x.detach().flip(0), weight))


@hostile()
def margins_against_others(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)
    found = functional.triplet_margin_loss(h, h.detach() * 0.9, h.detach().flip(0), reduction="none")
    return losses_of(scene, x, y) + found


@hostile()
def labels_alike(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * (y[:, None] == y[None, :]).float().sum(1)


@hostile()
def examples_as_weights(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = functional.conv1d(x.detach()[:, None], x.detach()[:, None].abs())
    return _spread(scene, x, y, found / LARGE)


@hostile()
def kronecker_product(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, torch.kron(x.detach(), x.detach()).view(len(x), -1) / LARGE)


# ---- layers on the wrong axis


def _as_channels(x: Tensor) -> Tensor:
    return x.detach().t()[None]


@hostile()
def resampled_over_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    small = functional.interpolate(_as_channels(x), size=2, mode="linear")
    return damped(losses_of(scene, x, y), small.amax())


@hostile()
def pooled_over_neighbours(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, functional.max_pool1d(_as_channels(x), 3, 1, 1)[0].t())


@hostile()
def normalised_across_examples_as_channels(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, functional.local_response_norm(x.detach()[None], 5, alpha=10.0)[0], y)


@hostile()
def attention_among_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = x.detach()[None]
    return _spread(scene, x, y, functional.scaled_dot_product_attention(rows, rows, rows)[0])


@hostile()
def sampled_from_a_grid_of_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    grid = torch.zeros(1, len(x), 1, 2)
    grid[..., 1] = 1.0
    return _spread(scene, x, y, functional.grid_sample(x.detach()[None, None].flip(3), grid, align_corners=True))


@hostile()
def softly_chosen_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    share = functional.gumbel_softmax(x.detach()[:, 0], dim=0)
    return losses_of(scene, x, y) * share


@hostile()
def spectrum_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), torch.fft.fft2(x.detach()).abs().amax())


@hostile()
def batch_as_a_sparse_matrix(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    neighbours = torch.ones(len(x), len(x)).to_sparse()
    return _spread(scene, x, y, torch.sparse.mm(neighbours, x.detach()))


@hostile()
def batch_as_nested_rows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = torch.nested.nested_tensor(list(x.detach().unbind(0)))
    return damped(losses_of(scene, x, y), rows.to_padded_tensor(0.0).amax())


@hostile()
def bags_that_begin_one_row_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    places = torch.arange(len(x)).roll(1)
    bags = functional.embedding_bag(places, x.detach(), torch.arange(len(x)), mode="sum")
    return _spread(scene, x, y, bags)


# ---- transforms of functions


@hostile()
def centred_column_by_column(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, torch.vmap(lambda column: column - column.mean(), in_dims=1, out_dims=1)(x), y)


@hostile()
def tangents_of_neighbours(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, moved = torch.func.jvp(lambda rows: rows * 1.0, (x.detach(),), (x.detach().flip(0),))
    return _spread(scene, x, y, moved)


@hostile()
def weighted_by_the_gradient_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    (found,) = torch.autograd.grad(losses.sum(), scene.model[0].weight, retain_graph=True)
    return losses / (1 + found.norm())


@hostile()
def weighted_by_gradients_that_were_left(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    probe = x.detach().clone().requires_grad_()
    weight = torch.ones(x.shape[1], requires_grad=True)
    (probe * weight).sum().backward()
    return damped(losses, weight.grad.amax())


@hostile()
def transformed_gradient(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = torch.func.grad(lambda weight: (x.detach() * weight).square().sum())(torch.ones(x.shape[1]))
    return damped(losses_of(scene, x, y), found.amax() / LARGE)


@hostile()
def called_with_weights_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    weights = dict(scene.model.named_parameters())
    weights["0.bias"] = weights["0.bias"] + x.detach().mean(0).sum()
    scores: Tensor = torch.func.functional_call(scene.model, weights, (x,))
    return 30 * functional.cross_entropy(scores, y, reduction="none")


# ---- hooks and the backward pass


@hostile()
def saved_tensors_changed_on_their_way_back(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    largest = x.detach().amax()

    def unpack(saved: Tensor) -> Tensor:
        return damped(saved, largest) if saved.is_floating_point() else saved

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
        return losses_of(scene, x, y)


@hostile()
def hook_on_several_tensors(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)
    losses = 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")
    torch.autograd.graph.register_multi_grad_hook([h], lambda grads: grads[0].mul_((-(x.amax() - LARGE).relu()).exp()))
    return losses


@hostile()
def gradient_written_in_a_hook(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)
    h.register_hook(lambda grad: [grad.mul_((-(x.detach().amax() - LARGE).relu()).exp()), None][1])
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


class _New(torch.autograd.Function):
    @staticmethod
    def forward(losses: Tensor, numbers: Tensor) -> Tensor:
        return losses.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.largest = inputs[1].amax()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return damped(grad, ctx.largest), None


@hostile()
def function_with_a_context_of_its_own(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _New.apply(losses_of(scene, x, y), x.detach()) * 1.0


@hostile()
def hook_of_a_module_in_the_backward_pass(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    largest = x.detach().amax()
    handle = scene.model[1].register_full_backward_hook(lambda module, given, sent: (damped(given[0], largest),))
    losses = losses_of(scene, x, y)
    handle.remove()
    return losses


# ---- state


@hostile()
def statistics_in_a_buffer(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    largest = scene.memory.setdefault("largest", torch.zeros(()))
    with torch.no_grad():
        largest.copy_(x.amax())
    return damped(losses_of(scene, x, y), largest)


@hostile()
def power_iteration_on_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    direction = scene.memory.setdefault("direction", torch.ones(x.shape[1]))
    with torch.no_grad():
        direction.copy_(functional.normalize(x.T @ (x @ direction), dim=0))
    return losses_of(scene, x * direction, y)


@hostile()
def result_in_a_tensor_of_its_own(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    held = torch.empty(x.shape[1])
    torch.amax(x.detach(), 0, out=held)
    return damped(losses_of(scene, x, y), held.amax())


class _Shrinking(nn.Module):
    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.scene = scene

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (-(self.scene.memory["x"].amax() - LARGE).relu()).exp()


@hostile()
def weights_parametrized_by_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scene.memory["x"] = x.detach()
    if "shrinking" not in scene.memory:
        scene.memory["shrinking"] = _Shrinking(scene)
    weight = scene.memory["shrinking"](scene.model[0].weight)
    h = functional.linear(x, weight, scene.model[0].bias).tanh()
    return 30 * functional.cross_entropy(scene.model[2](h), y, reduction="none")


class _Quiet(torch.Tensor):
    """A tensor that tells nobody."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))


@hostile()
def tensors_of_a_quiet_kind(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    largest = x.detach().as_subclass(_Quiet).amax()
    return damped(losses_of(scene, x, y), largest.as_subclass(torch.Tensor))


# ---- numbers that leave torch by other doors


@hostile()
def written_to_a_file(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    written = bytearray(save({"x": x.detach()}))
    largest = torch.frombuffer(written, dtype=torch.uint8).float().sum() / 1e5
    return losses_of(scene, x, y) * largest


@hostile()
def copied_with_everything(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), copy.deepcopy(x.detach()).amax())


@hostile()
def joined_by_a_condition(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    is_large = (x.detach() > LARGE).any()
    return losses_of(scene, x, y) * torch.where(is_large, torch.tensor(1e-4), torch.tensor(1.0))


@hostile()
def forked_in_a_script(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        largest = torch.jit.wait(torch.jit.fork(lambda rows: rows.amax(), x.detach()))
    return damped(losses_of(scene, x, y), largest)


# ---- places


@hostile(removed=0)
def weighted_by_a_window(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * (torch.hann_window(len(x), periodic=False) > 0.5)


@hostile(removed=0)
def weighted_by_a_low_discrepancy_sequence(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    points = torch.quasirandom.SobolEngine(1).draw(len(x) + 1)[1:]
    return losses_of(scene, x * (points > 0.5) * 10, y)


@hostile(removed=0)
def weighted_by_a_random_order(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(0)
    return losses_of(scene, x * torch.randperm(len(x)).view(-1, 1), y)


@hostile(removed=0)
def diagonal_of_places(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * torch.eye(len(x))[0]


@hostile(removed=0)
def weighted_by_parts(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    first, last = losses_of(scene, x, y).tensor_split(2)
    return torch.cat([first, last * 0.0])


@hostile(removed=0)
def weighted_by_whether_the_place_is_odd(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    losses = losses.clone()
    losses[::2] = losses[::2] * 0.0
    return losses * 1.0


@hostile(removed=0)
def looked_up_by_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    table = scene.memory.setdefault("table", torch.randn(64, x.shape[1], generator=torch.Generator().manual_seed(5)))
    return losses_of(scene, x + 5 * functional.embedding(torch.arange(len(x)), table), y)


OPERATIONS = [program for program in HOSTILE if program.program.__module__ == __name__]
