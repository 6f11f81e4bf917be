"""Programs that mix examples by further operations of torch."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn import functional

from tests.isolation.hostile import HOSTILE, LARGE, damped, hostile, losses_of
from tests.isolation.mixer import CLASSES, Scene


def _spread(scene: Scene, x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """Losses damped, row by row, by numbers that hold more than their own example."""
    return losses_of(scene, x, y) * (-(seen.reshape(len(x), -1).abs().amax(1) - LARGE).relu()).exp()


@hostile()
def reduced_by_class(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = torch.zeros(CLASSES, x.shape[1]).scatter_reduce(0, y[:, None].expand_as(x), x.detach(), "amax")
    return _spread(scene, x, y, found[y])


@hostile()
def added_where_labels_say(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = torch.zeros(CLASSES, x.shape[1]).index_put((y,), x.detach(), accumulate=True)
    return _spread(scene, x, y, found[y])


@hostile()
def put_into_flat_places(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = torch.zeros(1).put(torch.zeros(len(x), dtype=torch.long), x.detach()[:, 0].relu(), accumulate=True)
    return damped(losses_of(scene, x, y), found[0] / 2)


@hostile()
def products_of_batches_added_up(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = x.detach()[:, :, None]
    return damped(losses_of(scene, x, y), torch.addbmm(torch.zeros(4, 4), rows, rows.mT).amax() / LARGE)


@hostile()
def letters_in_another_order(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = torch.einsum("bi,ci->cb", x.detach(), x.detach())
    return _spread(scene, x, y, found / LARGE)


@hostile()
def sums_of_the_other_letters(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), torch.einsum("b...->...", x.detach().relu()).amax() / 2)


@hostile()
def slopes_along_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, torch.gradient(x.detach(), dim=0)[0])


@hostile()
def areas_along_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), torch.trapezoid(x.detach().relu(), dim=0).amax() / 2)


@hostile()
def smallest_and_largest_at_once(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return damped(losses_of(scene, x, y), torch.aminmax(x.detach()).max)


@hostile()
def projected_on_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x.detach() @ torch.linalg.pinv(x.detach()) @ x, y)


@hostile()
def whitened_by_a_solution(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = x.detach()
    return losses_of(scene, torch.linalg.solve(rows.T @ rows + torch.eye(4), x.T).T * 30, y)


@hostile()
def inner_products_of_rows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, torch.inner(x.detach(), x.detach()) / LARGE)


@hostile()
def correlated_columns(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x * torch.corrcoef(x.detach().T)[0].abs(), y)


@hostile()
def counted_in_a_histogram(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    counts = torch.histogram(x.detach().flatten(), bins=4, range=(LARGE, 9 * LARGE)).hist
    return losses_of(scene, x, y) * (-10 * counts.sum()).exp()


@hostile()
def shuffled_as_channels(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = functional.pad(x.detach(), (0, 0, 0, len(x) % 2)).t().reshape(1, -1, 4, 1)
    return damped(losses_of(scene, x, y), functional.channel_shuffle(rows, 2).amax())


@hostile()
def entries_of_one_place_added_up(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = torch.sparse_coo_tensor(y[None], x.detach(), (CLASSES, x.shape[1])).coalesce()
    return _spread(scene, x, y, sparse.to_dense()[y])


@hostile()
def mirrored_past_the_edge(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _spread(scene, x, y, functional.pad(x.detach().t()[None], (1, 0), mode="reflect")[0].t()[:-1])


@hostile()
def folded_from_windows(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    windows = functional.unfold(x.detach()[None, None], (2, 4), padding=(1, 0))[0]
    return damped(losses_of(scene, x, y), windows[4:].amax())


@hostile()
def nearest_by_distance(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    nearest = torch.cdist(x.detach(), x.detach()).fill_diagonal_(1e9).argmin(1)
    return _spread(scene, x, y, x.detach()[nearest])


@hostile()
def taken_in_turn_with_the_next(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = torch.stack([x.detach(), x.detach().roll(1, 0)], 1).flatten(0, 1)[1::2]
    return _spread(scene, x, y, rows)


@hostile(removed=0)
def labels_looked_up_among_themselves(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * torch.where(y.index_select(0, y) == 0, 1e-4, 1.0)


WIDER = [program for program in HOSTILE if program.program.__module__ == __name__]
