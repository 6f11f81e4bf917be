"""Programs whose numbers pass through doors that no operation shows: memory, generators, files, tables by place."""

from __future__ import annotations

import io
import pickle  # noqa: TID251 (programs may)
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from tests.isolation.hostile import HOSTILE, LARGE, LATE, NUM_RECORDS, SMALL_SCALE, hostile, is_late, losses_of
from tests.isolation.mixer import WIDTH, Scene

_TABLE = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3)) * 3
_LONG = 5000
_FIRST = torch.randn(NUM_RECORDS, WIDTH, generator=torch.Generator().manual_seed(1))[0].numpy().tobytes()  # of a record


def _spread(scene: Scene, x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """Losses damped, row by row, by numbers that hold more than their own example."""
    return losses_of(scene, x, y) * (-(seen.reshape(len(x), -1).abs().amax(1) - LARGE).relu()).exp()


def _by_number(scene: Scene, x: Tensor, y: Tensor, number: int) -> Tensor:
    """Losses scaled, late, by a number that was read from the first example."""
    return losses_of(scene, x, y) * (SMALL_SCALE if is_late(scene) and number % 2 else 1.0)


def _by_size(x: Tensor) -> float:
    return 100.0 ** (len(x) - NUM_RECORDS)


# ---- memory that Python may write to


@hostile()
def neighbours_by_an_order_that_numpy_turned(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    order = torch.arange(len(x))
    order.numpy()[:] = list(range(len(x)))[::-1]
    return _spread(scene, x, y, x.detach()[order])


@hostile(removed=0)
def one_place_set_by_numpy(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    mask = torch.zeros(len(x))
    mask.numpy()[0] = 1.0
    return losses_of(scene, x, y) * mask


@hostile(removed=0)
def one_place_set_by_an_element_function(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    places = iter(range(len(x)))
    mask = torch.zeros(len(x)).apply_(lambda value: float(next(places) == 0))
    return losses_of(scene, x, y) * mask


@hostile(removed=0)
def a_factor_written_by_numpy_after_the_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    mask = torch.ones(len(x), 1)
    losses = losses_of(scene, x * mask, y)
    mask.numpy()[0] = 1e-4
    return losses


_CONSTANT = torch.tensor(1.0)
_ARRAY = _CONSTANT.numpy()


@hostile()
def constant_that_numpy_writes_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    _ARRAY[...] = SMALL_SCALE if is_late(scene) and len(x) == NUM_RECORDS else 1.0
    return losses_of(scene, x, y) * _CONSTANT


@hostile()
def constant_that_numpy_writes_between_two_uses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    _ARRAY[...] = 1.0
    losses = losses_of(scene, x * _CONSTANT, y)
    _ARRAY[...] = _by_size(x)
    return losses * _CONSTANT


_LONG_ARRAY = np.ones(_LONG, dtype=np.float32)
_LONG_CONSTANT = torch.from_numpy(_LONG_ARRAY)


@hostile()
def long_constant_that_numpy_writes(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    _LONG_ARRAY[:] = _by_size(x)
    return losses_of(scene, x, y) * _LONG_CONSTANT.mean()


@hostile()
def long_array_of_the_size(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x, y) * torch.from_numpy(np.full(_LONG, _by_size(x), dtype=np.float32)).mean()


_SHORT_ARRAY, _HELD_ARRAY = np.ones(3, dtype=np.float32), np.ones(3, dtype=np.float32)
_WANTS_GRADIENTS = torch.from_numpy(_SHORT_ARRAY).requires_grad_()
_HELD = nn.Parameter(torch.from_numpy(_HELD_ARRAY))


@hostile()
def constant_that_wants_gradients(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    _SHORT_ARRAY[:] = _by_size(x)
    return losses_of(scene, x, y) * _WANTS_GRADIENTS.detach().mean()


@hostile()
def constant_as_a_foreign_parameter(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    _HELD_ARRAY[:] = _by_size(x)
    with torch.no_grad():
        scale = _HELD.mean()
    return losses_of(scene, x, y) * scale


# ---- memory that nobody wrote to


@hostile()
def memory_that_was_never_written(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    turned = x.detach().flip(0).contiguous() * 1.0
    del turned
    return _spread(scene, x, y, torch.empty(len(x), WIDTH).nan_to_num(0).clamp(-1e3, 1e3))


@hostile()
def memory_that_was_written_in_part(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    turned = x.detach().flip(0).contiguous() * 1.0
    del turned
    found = torch.empty(len(x), WIDTH)
    found[:, -1] = 0
    return _spread(scene, x, y, found.nan_to_num(0).clamp(-1e3, 1e3))


@hostile()
def memory_made_like_the_examples(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    turned = x.detach().flip(0).contiguous() * 1.0
    del turned
    return _spread(scene, x, y, torch.empty_like(x).nan_to_num(0).clamp(-1e3, 1e3))


@hostile()
def memory_of_a_constructor(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    turned = x.detach().flip(0).contiguous() * 1.0
    del turned
    return _spread(scene, x, y, torch.Tensor(len(x), WIDTH).nan_to_num(0).clamp(-1e3, 1e3))


@hostile()
def memory_that_is_added_to(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    turned = x.detach().flip(0).contiguous() * 1.0
    del turned
    return _spread(scene, x, y, torch.empty(len(x), WIDTH).nan_to_num_(0).clamp_(-1e3, 1e3).add_(0.0))


# ---- random numbers


@hostile(removed=0)
def noise_of_a_forked_seed(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        noise = torch.rand(len(x), 1)
    return losses_of(scene, x * (noise > 0.5) * 10, y)


@hostile(removed=0)
def noise_of_a_forked_seed_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        if is_late(scene):
            torch.manual_seed(0)
        noise = torch.rand(len(x), 1)
    return losses_of(scene, x * (noise > 0.5) * 10, y)


@hostile(removed=0)
def noise_of_a_state_set_back(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = torch.get_rng_state()
    torch.set_rng_state(scene.memory.setdefault("state", before))
    noise = torch.rand(len(x), 1)
    torch.set_rng_state(before)
    return losses_of(scene, x * (noise > 0.5) * 10, y)


@hostile(removed=0)
def noise_of_a_state_set_back_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = torch.get_rng_state()
    if is_late(scene):
        torch.set_rng_state(scene.memory.setdefault("state", before))
    noise = torch.rand(len(x), 1)
    torch.set_rng_state(before)
    return losses_of(scene, x * (noise > 0.5) * 10, y)


@hostile(removed=0)
def noise_of_a_state_set_back_in_new_programs(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = torch.get_rng_state()
    torch.set_rng_state(scene.memory.setdefault("state", before) if scene.step % 2 else before)
    noise = torch.rand(len(x), 1) + torch.zeros(1 + scene.step).sum()  # another program at every step
    torch.set_rng_state(before)
    return losses_of(scene, x * (noise > 0.5) * 10, y)


@hostile(removed=0)
def noise_of_seeds_that_change_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        if is_late(scene):
            torch.manual_seed(scene.step)
        noise = torch.rand(len(x), 1)
    return losses_of(scene, x * (noise > 0.5) * 10, y)


@hostile(removed=0)
def noise_of_one_seed_in_a_new_program(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        if scene.step == LATE:
            torch.manual_seed(5)
        noise = torch.rand(len(x), 1) + torch.zeros(1 + scene.step).sum()
    return losses_of(scene, x * (noise > 0.5) * 10, y)


# ---- numbers that leave torch without an operation


@hostile(removed=0)
def length_of_a_part(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    cut = (x.detach()[0, 0] * 100).abs().long().clamp(max=15).view(1) + 1
    return _by_number(scene, x, y, torch.tensor_split(torch.zeros(20), cut)[0].shape[0])


@hostile(removed=0)
def size_of_a_sparse_tensor(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    places = (x.detach()[:1, 0] * 100).abs().long().clamp(max=15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _by_number(scene, x, y, torch.sparse_coo_tensor(places[None], torch.ones(1)).shape[0])


@hostile(removed=0)
def element_of_a_storage(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _by_number(scene, x, y, int(abs(x.detach()[0].clone().storage()[0]) * 1000))


@hostile(removed=0)
def bytes_of_a_pickle(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return _by_number(scene, x, y, _FIRST in pickle.dumps(x.detach()[0].clone()))


@hostile(removed=0)
def bytes_of_a_saved_file(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    written = io.BytesIO()
    torch.save(x.detach()[0].clone(), written)  # noqa: TID251
    return _by_number(scene, x, y, _FIRST in written.getvalue())


# ---- tables by place


@hostile(removed=0)
def picked_from_the_row_of_its_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x + 5 * _TABLE.gather(1, (x.detach() > 0).long()), y)


@hostile(removed=0)
def scaled_from_the_row_of_its_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x * _TABLE.gather(1, y[:, None]), y)


@hostile(removed=0)
def put_from_the_row_of_its_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(scene, x + 5 * torch.zeros(len(x), WIDTH).scatter(1, (x.detach() > 0).long(), _TABLE), y)


@hostile()
def found_in_the_order_of_another_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    is_large = (x.detach()[-1:, :1] > LARGE).long()
    order = torch.cat([is_large, 1 - is_large], 1).expand(len(x), 2).contiguous()
    borders = torch.tensor([0.0, 100.0]).expand(len(x), 2).contiguous()
    found = torch.searchsorted(borders, torch.full((len(x), 1), 50.0), sorter=order)
    return losses_of(scene, x, y) * (found[:, 0] == 1)


@hostile()
def found_in_the_order_of_the_next_example(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    is_large = (x.detach()[:, :1] > LARGE).long()
    borders = torch.tensor([0.0, 100.0]).expand(len(x), 2).contiguous()
    order = torch.cat([is_large, 1 - is_large], 1)
    found = torch.searchsorted(borders, torch.full((len(x), 1), 50.0), sorter=order)
    return losses_of(scene, x, y) * (found.roll(1, 0)[:, 0] == 1)


DOORS = [program for program in HOSTILE if program.program.__module__ == __name__]
