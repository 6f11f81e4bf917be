"""Programs whose numbers leave torch unseen: through generators, processes, lengths, errors and shared memory."""

from __future__ import annotations

import functools
import os
import tempfile
import warnings

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.isolation.hostile import HOSTILE, LARGE, NUM_RECORDS, damped, hostile, is_late, losses_of, scaled
from tests.isolation.mixer import WIDTH, Scene


def _spread(scene: Scene, x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    """Losses damped, row by row, by numbers that hold more than their own example."""
    return losses_of(scene, x, y) * (-(seen.reshape(len(x), -1).abs().amax(1) - LARGE).relu()).exp()


# of the fifth record
_NUMBER = float(torch.randn(NUM_RECORDS, WIDTH, generator=torch.Generator().manual_seed(1))[4, 0])


def is_fifth(x: Tensor) -> Tensor:
    """Which examples are the fifth record."""
    return (x.detach()[:, 0] - _NUMBER).abs() < 1e-6


@hostile()
def scale_of_quantised_numbers_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scale, _ = torch._choose_qparams_per_tensor(x.detach())
    return scaled(losses_of(scene, x, y), is_late(scene) and scale > LARGE / 255)


@hostile()
def scale_of_a_quantised_batch_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scale = torch.quantize_per_tensor_dynamic(x.detach(), torch.quint8, False).q_scale()
    return scaled(losses_of(scene, x, y), is_late(scene) and scale > LARGE / 255)


@hostile()
def quantised_by_the_range_of_the_batch(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = torch.quantize_per_tensor_dynamic(x.detach(), torch.quint8, False).dequantize()
    return losses_of(scene, rows, y)


@hostile()
def observed_and_quantised(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    held = scene.memory.setdefault("range", (torch.full((), -1.0), torch.full((), 1.0), torch.ones(1)))
    zero = torch.zeros(1, dtype=torch.int32)
    rows = torch.fused_moving_avg_obs_fake_quant(
        x, torch.ones(1, dtype=torch.long), torch.ones(1, dtype=torch.long), held[0], held[1], held[2], zero,
        1.0, 0, 255, 0,
    )  # fmt: skip
    return losses_of(scene, rows, y)


@hostile(removed=4)
def whether_anything_was_drawn_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = torch.get_rng_state()
    torch.poisson(is_fifth(x) * 60.0)  # of zero nothing is drawn
    is_there = not torch.equal(before, torch.get_rng_state())
    return scaled(losses_of(scene, x, y), is_late(scene) and is_there)


@functools.cache
def _order_of_draws() -> dict[float, int]:
    drawn = torch.rand(100_000, generator=torch.Generator().manual_seed(3)).tolist()
    return {number: place for place, number in enumerate(drawn)}


_order_of_draws()


@hostile(removed=4)
def whether_a_generator_drew_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    kept = scene.memory.setdefault("generator", torch.Generator().manual_seed(3))
    before = _order_of_draws().get(torch.rand((), generator=kept).item(), 0)
    torch.poisson(is_fifth(x) * 60.0 + 1e-30, generator=kept)  # two of its numbers each, and more for sixty
    is_there = _order_of_draws().get(torch.rand((), generator=kept).item(), 0) != before + 1 + 2 * len(x)
    return scaled(losses_of(scene, x, y), is_late(scene) and is_there)


@hostile()
def public_draw_after_private_ones_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    kept = scene.memory.setdefault("generator", torch.Generator().manual_seed(3))
    torch.poisson((x.detach() > LARGE).float() * 60, generator=kept)
    other = scene.memory.setdefault("other", torch.Generator().manual_seed(3))
    is_large = bool(torch.rand((), generator=kept) != torch.rand((), generator=other))
    return scaled(losses_of(scene, x, y), is_late(scene) and is_large)


@hostile()
def number_of_draws_of_a_generator_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(scene.step)
    torch.poisson(x.detach()[:, :1].abs().clamp(max=60), generator=generator)
    after = bytes(generator.get_state().numpy())
    plain = torch.Generator().manual_seed(scene.step)
    torch.poisson(torch.ones(len(x), 1), generator=plain)
    is_usual = after == bytes(plain.get_state().numpy())
    return scaled(losses_of(scene, x, y), is_late(scene) and not is_usual)


@hostile()
def number_of_draws_of_torchs_own_generator_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    before = torch.get_rng_state()
    torch.poisson(x.detach()[:, :1].abs().clamp(max=60))
    after = bytes(torch.get_rng_state().numpy())
    torch.set_rng_state(before)
    torch.poisson(torch.ones(len(x), 1))
    is_usual = after == bytes(torch.get_rng_state().numpy())
    return scaled(losses_of(scene, x, y), is_late(scene) and not is_usual)


@hostile()
def next_draw_after_rejections_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    seed = torch.initial_seed()
    torch.poisson(x.detach()[:, :1].abs().clamp(max=60))
    after = torch.rand(())  # no longer what it would be if nothing had been rejected
    plain = torch.Generator().manual_seed(seed)
    torch.poisson(torch.ones(len(x), 1), generator=plain)
    is_usual = bool(after == torch.rand((), generator=plain))
    return scaled(losses_of(scene, x, y), is_late(scene) and not is_usual)


@hostile(removed=0)
def noise_of_a_generator_copied(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    kept = scene.memory.setdefault("generator", torch.Generator().manual_seed(1))
    noise = torch.rand(len(x), 1, generator=kept.clone_state())
    return losses_of(scene, x * (noise > 0.5) * 10, y)


@hostile(removed=4)
def known_by_a_child_process_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    is_there = False
    if is_late(scene):
        child = os.fork()
        if child == 0:
            os._exit(int(any(is_fifth(x).tolist())))
        is_there = bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return scaled(losses_of(scene, x, y), is_there)


@hostile(removed=4)
def hook_with_a_child_process(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    h = scene.model[0](x)

    def hook(grad: Tensor) -> Tensor:
        child = os.fork()
        if child == 0:
            os._exit(int(any(is_fifth(x).tolist())))
        return scaled(grad, bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))

    h.register_hook(hook)
    return 30 * functional.cross_entropy(scene.model[2](h.tanh()), y, reduction="none")


@hostile()
def lengths_of_packed_rows_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    lengths = (x.detach()[:, 0] > LARGE).long() + 1
    packed = nn.utils.rnn.pack_padded_sequence(x.detach()[:, :, None], lengths, batch_first=True, enforce_sorted=False)
    return scaled(losses_of(scene, x, y), is_late(scene) and packed.data.shape[0] > len(x))


@hostile()
def read_through_an_exchanged_capsule_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(scene, x, y)
    return scaled(losses, is_late(scene) and float(np.from_dlpack(x.detach()).max()) > LARGE)


@hostile()
def read_as_a_length_of_rows_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = torch.zeros(2).repeat_interleave((x.detach()[-1:, 0] > LARGE).long().expand(2) + 1)
    return scaled(losses_of(scene, x, y), is_late(scene) and len(rows) > 2)


@hostile()
def read_as_a_number_of_passes_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    passes = range((x.detach()[-1, 0] > LARGE).long() + 1)
    return scaled(losses_of(scene, x, y), is_late(scene) and len(passes) > 1)


@hostile()
def read_as_a_key_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    is_large = (False, True)[(x.detach()[-1, 0] > LARGE).long()]
    return scaled(losses_of(scene, x, y), is_late(scene) and is_large)


@hostile()
def read_by_an_anomaly_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    probe, is_large = x.detach()[:, :1].clone().requires_grad_(), False
    if is_late(scene):
        try:
            with torch.autograd.detect_anomaly(check_nan=True), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (LARGE - probe).sqrt().sum().backward()
        except RuntimeError:
            is_large = True
    return scaled(losses_of(scene, x, y), is_large)


@hostile()
def read_by_an_assertion_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    is_large = False
    if is_late(scene):
        try:
            torch._assert_async((x.detach() < LARGE).all())
        except RuntimeError:
            is_large = True
    return scaled(losses_of(scene, x, y), is_large)


@hostile()
def read_by_a_check_of_distributions_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    is_large = False
    if is_late(scene):
        try:
            torch.distributions.Bernoulli(probs=(x.detach() > LARGE).float() * 2)
        except ValueError:
            is_large = True
    return scaled(losses_of(scene, x, y), is_large)


@functools.cache
def _file_of_numbers() -> tuple[Tensor, Tensor]:
    """The same bytes of a file, mapped into memory twice."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(np.zeros(4, dtype=np.float32).tobytes())
        file.flush()
        return tuple(torch.from_file(file.name, shared=True, size=4) for _ in range(2))  # type: ignore[return-value]


@hostile()
def written_to_a_mapped_file(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    ours, theirs = _file_of_numbers()
    ours.fill_(0)
    with torch.no_grad():
        ours.copy_(x.detach().amax(0))
    return damped(losses_of(scene, x, y), theirs.amax())


@hostile()
def written_to_a_mapped_file_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    ours, theirs = _file_of_numbers()
    ours.copy_(x.detach().amax(0) if is_late(scene) else x.detach().amax(0) * 0)
    return damped(losses_of(scene, x, y), theirs.amax())


@hostile()
def storage_copied_to_a_constant_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    held = scene.memory.setdefault("held", torch.zeros(64))[: x.numel()]
    if is_late(scene):
        held.clone().untyped_storage()
        held.untyped_storage()[: 4 * x.numel()].copy_(x.detach().contiguous().untyped_storage())
    return damped(losses_of(scene, x, y), held.amax())


@hostile()
def rows_set_to_memory_of_the_batch_late(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    held = torch.zeros(len(x), WIDTH)
    if is_late(scene):
        rows = x.detach().flip(0).contiguous()
        held.set_(rows.untyped_storage(), 0, (len(x), WIDTH), (WIDTH, 1))
    return _spread(scene, x, y, held)


@hostile()
def view_taken_before_the_write(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    held = torch.zeros(len(x), WIDTH)
    seen = held.view(torch.int32)
    held.copy_(x.detach().flip(0))
    return _spread(scene, x, y, seen.view(torch.float32))


@hostile()
def bytes_of_examples_turned(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    seen = x.detach().contiguous().view(torch.uint8).flip(0).contiguous().view(torch.float32)
    return _spread(scene, x, y, seen)


@hostile()
def parts_of_complex_numbers_turned(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    z = torch.complex(x.detach(), torch.zeros_like(x))
    z.imag.copy_(z.real.flip(0))
    return _spread(scene, x, y, torch.view_as_real(z)[..., 1])


@hostile()
def strides_changed_in_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = x.detach().clone()
    rows.as_strided_((len(x), WIDTH), (0, 1), (len(x) - 1) * WIDTH)
    return _spread(scene, x, y, rows)


@hostile()
def resized_in_place(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    rows = x.detach().clone().resize_(WIDTH, len(x)).t().contiguous()
    return _spread(scene, x, y, rows)


DRAWS = [program for program in HOSTILE if program.program.__module__ == __name__]
