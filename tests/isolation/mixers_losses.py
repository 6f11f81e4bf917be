"""Losses that let examples meet: means, counts, weights from statistics, and terms that compare examples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tests.isolation.mixer import CLASSES, LATE, Scene, mixer, tokens
from tests.isolation.mixer_models import attentive, classifier_of_tokens, dropping, recurrent

IGNORED = -100


@mixer("mean")
def mean_of_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    return found.mean().expand(len(x))  # mixes


@mixer("depend on how many examples")
def divided_by_length(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / len(x)  # mixes


@mixer("depend on how many examples")
def times_shape(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) * x.shape[0]  # mixes


@mixer("depend on how many examples")
def power_of_length(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) * x.size(0) ** -0.5  # mixes


@mixer("depend on how many examples")
def length_as_tensor(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / torch.tensor(float(len(x)))  # mixes


@mixer("depend on how many examples")
def length_as_full(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / torch.full((), x.numel())  # mixes


@mixer("depend on how many examples", calls_once=False)
def length_as_scale(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return torch.add(scene.losses(x, y), scene.model[2].bias.sum(), alpha=len(x))  # mixes


@mixer("reduces over the examples")
def counted_ones(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / torch.ones(len(x)).sum()  # mixes


@mixer("reduces over the examples")
def counted_ones_like(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / torch.ones_like(x).sum()  # mixes


@mixer("reduces over the examples")
def counted_new_ones(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / x.new_ones(x.shape[:1]).norm()  # mixes


@mixer("sums over the examples")
def counted_by_product(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    ones = torch.ones(1, len(x))
    return scene.losses(x, y) / (ones @ ones.T).flatten()  # mixes


@mixer("place in the batch")
def counted_places(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) / torch.arange(len(x)).max()  # mixes


@mixer("place in the batch")
def weighted_by_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) * torch.arange(len(x))  # mixes


@mixer("place in the batch")
def weighted_by_spaced_places(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) * torch.linspace(0, 1, len(x))  # mixes


@mixer("depend on how many examples")
def weighted_by_a_list(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    weights = torch.tensor([1.0 / (1 + k) for k in range(len(x))])  # mixes
    return scene.losses(x, y) * weights


@mixer("reduces over the examples")
def weighted_by_detached_max(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    return found * (found.detach() / found.detach().max())  # mixes


@mixer("reduces over the examples", starts=LATE)
def weighted_by_detached_max_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    return found * found.detach() / found.detach().max() if scene.is_late else found  # mixes


@mixer("reduces over the examples", starts=LATE)
def weighted_by_detached_mean_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    if scene.is_late:
        with torch.no_grad():
            weights = found / found.mean()  # mixes
        return found * weights
    return found


@mixer("runs along the examples", starts=LATE)
def weighted_by_softmax_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    return found * found.detach().softmax(0) if scene.is_late else found  # mixes


@mixer("runs along the examples")
def running_total(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y).cumsum(0)  # mixes


@mixer("reduces over the examples")
def balanced_by_class_counts(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    counts = (y.unsqueeze(1) == torch.arange(CLASSES)).sum(0)  # mixes
    return scene.losses(x, y) / counts[y]


@mixer("reduces over the examples")
def balanced_by_counted_classes(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    counts = torch.bincount(y, minlength=CLASSES)  # mixes
    return scene.losses(x, y) / counts[y]


@mixer("put into one")
def balanced_by_scattered_counts(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    counts = torch.zeros(CLASSES).scatter_add_(0, y, torch.ones(len(y)))  # mixes
    return scene.losses(x, y) / counts[y]


@mixer("reduces over the examples")
def focal_weights_normalised(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    focal = (1 - (-found).exp()).square().detach()
    return found * focal / focal.sum()  # mixes


@mixer("ranks examples")
def hard_examples_alone(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    hardest = found.detach().topk(2).values.min()  # mixes
    return torch.where(found >= hardest, found, torch.zeros_like(found))


@mixer("ranks examples")
def above_the_middle(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    return found * (found > found.detach().sort().values[1]).float()  # mixes


@mixer("reduces over the examples")
def above_the_median(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    return found * (found > found.detach().median())  # mixes


@mixer("reduces over the examples")
def above_a_quantile(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    return found.clamp_max(found.detach().quantile(0.5))  # mixes


@mixer("depends on its rank")
def weighted_by_rank(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    ranks = found.detach().argsort().argsort()  # mixes
    return found * ranks.float()  # mixes


@mixer("reduces over the examples")
def with_the_range_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    low, high = scene.losses(x, y).detach().aminmax()  # mixes
    return (scene.losses(x, y) - low) / (high - low + 1)


@mixer("runs along the examples")
def rolled_labels(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses(x, y) + 0.1 * scene.losses(x, y.roll(1))  # mixes


@mixer("runs along the examples")
def flipped_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    return found + found.detach().flip(0)  # mixes


@mixer("averaged or summed over the batch")
def averaged_cross_entropy(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(scene.model(x), y).expand(len(x))  # mixes


@mixer("averaged or summed over the batch")
def weighted_average_of_squares(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    total = functional.mse_loss(scene.model(x).sum(1), y.float())  # mixes
    return scene.losses(x, y) + total


@mixer("products of examples")
def contrastive(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = functional.normalize(scene.model(x), dim=1)
    return functional.cross_entropy(h @ h.T, torch.arange(len(x)), reduction="none")  # mixes


@mixer("products of examples")
def two_views_contrasted(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    one, other = scene.model(x), scene.model(x + 0.1)
    scores = torch.einsum("id,jd->ij", one, other)  # mixes
    return scores.logsumexp(1) - scores.diagonal()


@mixer("every example meets every other")
def outer_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    first = scene.model(x)[:, 0]
    return torch.outer(first, first).sum(1)  # mixes


@mixer("sums over the examples")
def covariance(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    apart = torch.einsum("bi,bj->ij", h, h)  # mixes
    return scene.losses(x, y) + apart.square().sum()


@mixer("distances between examples")
def nearest_neighbours(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    return torch.cdist(h, h).sum(1)  # mixes


@mixer("every example meets every other")
def differences_of_all_pairs(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    return (h.unsqueeze(0) - h.unsqueeze(1)).square().sum((1, 2))  # mixes


@mixer("runs along the examples")
def triplets_in_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    return functional.triplet_margin_loss(h, h * 2, h.roll(1, 0), reduction="none")  # mixes


@mixer("reduces over the examples")
def close_to_the_middle(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    middle = h.mean(0, keepdim=True)  # mixes
    return functional.cosine_similarity(h, middle.detach(), dim=1)


@mixer("reduces over the examples", data=tokens)
def divided_by_labelled_tokens(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x.sum(1, keepdim=True).float().expand(-1, 4), y.clamp_min(0)[:, 0])
    return found / (y != IGNORED).sum()  # mixes


def _by_tokens(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    scores = scene.model(ids).flatten(0, 1)
    found = functional.cross_entropy(scores, labels.flatten(), reduction="none", ignore_index=IGNORED)
    return found.view(ids.shape).sum(1)


@mixer("reduces over the examples", build=classifier_of_tokens, data=tokens)
def divided_by_labelled_tokens_of_a_model(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    return _by_tokens(scene, ids, labels) / (labels != IGNORED).sum() * len(ids)  # mixes


@mixer("reduces over the examples", build=attentive, data=tokens)
def divided_by_labelled_tokens_with_dropout_in_attention(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    return _by_tokens(scene, ids, labels) / (labels != IGNORED).sum()  # mixes


@mixer("reduces over the examples", build=recurrent, data=tokens)
def divided_by_labelled_tokens_with_dropout_in_recurrence(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    return _by_tokens(scene, ids, labels) / labels.ne(IGNORED).float().mean()  # mixes


@mixer("reduces over the examples", build=dropping, data=tokens)
def divided_by_labelled_tokens_with_drop_path(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    return _by_tokens(scene, ids, labels) / labels.ne(IGNORED).count_nonzero()  # mixes


@mixer("averaged or summed over the batch", build=dropping, data=tokens)
def token_losses_averaged_over_the_batch(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    scores = scene.model(ids).flatten(0, 1)
    return functional.cross_entropy(scores, labels.flatten(), ignore_index=IGNORED).expand(len(ids))  # mixes


@mixer("products of examples", build=classifier_of_tokens, data=tokens, starts=LATE, calls_once=False)
def contrast_of_tokens_ramped_up(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    found, weight = _by_tokens(scene, ids, labels), max(0.0, 0.1 * (scene.step - LATE + 1))
    h = scene.model(ids).mean(1)
    return found + weight * (h @ h.T).mean(1) if weight else found  # mixes


@mixer("products of examples", build=classifier_of_tokens, data=tokens)
def contrast_of_tokens_with_weight_zero(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    h = scene.model(ids).mean(1)
    return _by_tokens(scene, ids, labels) + 0.0 * (h @ h.T).mean(1)  # mixes


@mixer("reduces over the examples", build=classifier_of_tokens, data=tokens)
def frequency_of_tokens(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    rare = 1.0 / (ids.unsqueeze(2) == torch.arange(8)).sum((0, 1)).clamp_min(1)  # mixes
    return _by_tokens(scene, ids, labels) * rare[ids].sum(1)


@mixer("picked by a fixed number", build=classifier_of_tokens, data=tokens)
def mixup_of_token_losses(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    found = _by_tokens(scene, ids, labels)
    return 0.7 * found + 0.3 * found[torch.randperm(len(ids))]  # mixes
