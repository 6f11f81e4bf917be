"""State that lets examples meet: what one batch leaves behind, another finds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.isolation.mixer import CLASSES, LATE, VOCABULARY, WIDTH, Scene, mixer, network, tokens

_EARLIER = "an earlier batch"


@mixer(_EARLIER)
def previous_batch_in_a_dictionary(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = scene.memory.get("before", torch.zeros(WIDTH))
    scene.memory["before"] = x[0].clone()
    return scene.losses(x + before, y)  # mixes


@mixer(_EARLIER)
def previous_batch_in_a_list(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    queue = scene.memory.setdefault("queue", [torch.zeros(CLASSES)])
    h = scene.model(x)
    found = h @ torch.stack(queue[-2:]).T  # mixes
    queue.append(h[0].detach())
    return found.logsumexp(1)


@mixer(_EARLIER)
def previous_batch_in_an_attribute(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = getattr(scene.model, "before", None)
    scene.model.before = x.detach().mean(0)
    return scene.losses(x if before is None else x - before, y)  # mixes


@mixer(_EARLIER)
def previous_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    found = scene.losses(x, y)
    scale = scene.memory.get("scale", torch.ones(()))
    scene.memory["scale"] = found.detach()[0]
    return found * scale  # mixes


@mixer(_EARLIER)
def previous_examples_themselves(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = scene.memory.get("x", torch.zeros(1, WIDTH))
    scene.memory["x"] = x
    return scene.losses(x + before[:1], y)  # mixes


@mixer(_EARLIER, starts=1)
def previous_step(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = scene.memory.get(str(scene.step - 1), torch.zeros(WIDTH))
    scene.memory[str(scene.step)] = x[0].detach()
    return scene.losses(x + before, y)  # mixes


@mixer(_EARLIER, starts=LATE)
def previous_batch_used_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = scene.memory.get("before")
    scene.memory["before"] = x.detach()
    if scene.is_late and before is not None:
        x = x + before[0]  # mixes
    return scene.losses(x, y)


@mixer("over the examples")
def moving_average_of_activations(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model(x)
    mean = scene.memory.get("mean", torch.zeros(CLASSES))
    scene.memory["mean"] = 0.9 * mean + 0.1 * h.detach().mean(0)  # mixes
    return functional.cross_entropy(h - scene.memory["mean"], y, reduction="none")


@mixer("an earlier batch", calls_once=False)
def bank_written_in_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    bank = scene.memory.setdefault("bank", torch.zeros(16, CLASSES))
    h = scene.model(x)
    found = scene.losses(x, y) + (h @ bank.T.clone()).mean(1)  # mixes
    bank[: len(x)] = h.detach()
    return found


@mixer("an earlier batch", calls_once=False)
def bank_written_as_data(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    bank = scene.memory.setdefault("bank", torch.zeros(16, CLASSES))
    h = scene.model(x)
    found = scene.losses(x, y) + (h @ bank.T.clone()).mean(1)  # mixes
    bank.data[: len(x)].copy_(h.detach())
    return found


@mixer("an earlier batch", calls_once=False)
def bank_shifted_in_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    mean = scene.memory.setdefault("mean", torch.zeros(CLASSES))
    h = scene.model(x)
    found = scene.losses(x, y) + (h * mean.clone()).sum(1)  # mixes
    mean.mul_(0.9).add_(h.detach()[0], alpha=0.1)
    return found


@mixer(_EARLIER, starts=LATE)
def previous_batch_kept_as_data_and_used_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = scene.memory.get("before")
    scene.memory["before"] = kept = torch.zeros(WIDTH)
    kept.data.copy_(x[0].detach())
    if scene.is_late and before is not None:
        x = x + before  # mixes
    return scene.losses(x, y)


class Buffered(nn.Module):
    """Writes what it sees into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.late = network(), False
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.late:
            self.seen.data.copy_(x.detach()[0])
        found: Tensor = self.inner(x + self.seen)  # mixes
        return found


@mixer("meets other examples", build=Buffered, starts=LATE, within=(Buffered,))
def buffer_written_as_data_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scene.model.late = scene.is_late
    return scene.losses(x, y)


class Shared(nn.Module):
    """A table of its own, small, in which tokens count themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, CLASSES)

    def forward(self, ids: Tensor, counts: Tensor) -> Tensor:
        found: Tensor = self.head((self.table(ids) * counts[ids].unsqueeze(2)).sum(1))
        return found


@mixer("put into one", build=Shared, data=tokens)
def counts_of_token_ids(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    counts = torch.zeros(VOCABULARY)
    counts.index_put_((ids.flatten(),), torch.ones(ids.numel()), accumulate=True)  # mixes
    return functional.cross_entropy(scene.model(ids, counts), labels[:, 0].clamp_min(0), reduction="none")


@mixer("put into one", build=Shared, data=tokens)
def counts_of_token_ids_by_scatter(scene: Scene, ids: Tensor, labels: Tensor) -> Tensor:
    counts = torch.zeros(VOCABULARY)
    counts.scatter_add_(0, ids.flatten(), torch.ones(ids.numel()))  # mixes
    return functional.cross_entropy(scene.model(ids, counts), labels[:, 0].clamp_min(0), reduction="none")


@mixer("put into one")
def rows_added_up_by_class(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    centres = torch.zeros(CLASSES, WIDTH).index_add_(0, y, x)  # mixes
    return scene.losses(x - centres[y], y)


@mixer("put into one")
def largest_of_each_class(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    most = torch.zeros(CLASSES).scatter_reduce_(0, y, x[:, 0], "amax")  # mixes
    return scene.losses(x / most[y].unsqueeze(1).clamp_min(1), y)


@mixer("written in another order")
def rows_written_in_reverse(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = torch.empty(x.shape)
    for k in range(len(x)):
        h[len(x) - 1 - k] = x[k]  # mixes
    return scene.losses(h, y)


@mixer("meets other examples")
def rows_added_to_one_row(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    total = torch.zeros(WIDTH)
    for row in x:
        total += row  # mixes
    return scene.losses(x + total, y)


@mixer("meets other examples")
def written_by_a_fused_operation(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    shift = torch.zeros(WIDTH)
    torch._foreach_add_([shift], [x.detach()[0]])
    return scene.losses(x + shift, y)  # mixes


@mixer("mixes the examples")
def rows_of_a_shared_view(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    flat = x.view(-1)
    flat[1:].copy_(flat[:-1].clone())  # mixes
    return scene.losses(x, y)
