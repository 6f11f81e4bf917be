"""Laws of fingerprints: every changed bit shows, and nothing else does."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map_only

from privet.training.weight_watch import device_pages, fingerprints
from privet.training.weight_watch.device_pages import DevicePages, InPlace, Kernel
from privet.training.weight_watch.fingerprints import Fingerprints, _words
from privet.training.weight_watch.host_pages import HostPages
from privet.training.weight_watch.pages import Fingerprint, Pages, Segment
from tests.script_checks import check_interpreted, check_on_a_device

KINDS = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def some(kind: torch.dtype, size: int = 600) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if kind is torch.bool or not (kind.is_floating_point or kind.is_complex):
        return torch.randint(0, 2 if kind is torch.bool else 100, (size,), generator=generator).to(kind)
    wide = torch.complex128 if kind.is_complex else torch.float64
    return torch.randn(size, generator=generator, dtype=wide).to(kind)


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


class _StandIn:
    """Does what the kernel does, program by program, with the memory that its tables name."""

    def __init__(self, spoils: int = 0) -> None:
        self.spoils = spoils

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launched(
            sums: Tensor, addresses: Tensor, lengths: Tensor, places: Tensor, segment_of: Tensor, starts: Tensor,
            multipliers: Tensor, first_chunk: int, first_segment: int, **settings: int,
        ) -> None:  # fmt: skip
            for chunk in range(first_chunk, first_chunk + grid[0]):
                segment, start = int(segment_of[chunk]), int(starts[chunk])
                memory = (ctypes.c_int32 * int(lengths[segment])).from_address(int(addresses[segment]))
                words = torch.tensor(memory[start : start + settings["BLOCK"] * settings["BLOCKS"]])
                place = int(places[segment]) + start
                sums[segment - first_segment] += (words * multipliers[place : place + len(words)]).sum() + self.spoils

        return launched


class _Kernels:
    def __init__(self, spoils: int = 0) -> None:
        self.add_products_kernel = _StandIn(spoils)


@pytest.fixture(autouse=True, params=["host", "device", "kernel"])
def kind_of_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read this processor's memory as its own, and as that of a device, by torch and as the kernel reads it."""
    kind: type[Pages] = HostPages if request.param == "host" else DevicePages
    monkeypatch.setattr(fingerprints, "_KINDS", {"cpu": kind})
    monkeypatch.setattr(DevicePages, "size", HostPages.size)  # pages of one size
    if request.param == "kernel":
        _let_kernels_run(monkeypatch, _Kernels())
        assert device_pages.kernel_for(torch.device("cpu")).is_ready


def _let_kernels_run(monkeypatch: pytest.MonkeyPatch, kernels: _Kernels) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(device_pages.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(device_pages, "_kernels", lambda: kernels)
    monkeypatch.setattr(device_pages, "kernel_for", functools.cache(Kernel))


def names_in(before: Sequence[Fingerprint]) -> set[str]:
    """Return the names of the tensors that changed since."""
    names: set[str] = set()
    return names.union(*[seen.compared().names() or () for seen in before])


class Seen:
    """Tensors and what they looked like at first."""

    def __init__(self, **tensors: Tensor) -> None:
        self.prints = Fingerprints.of(tensors)
        self.before = self.prints.take()

    @property
    def changed(self) -> set[str]:
        return names_in(self.before)


@each_kind
def test_the_same_bits_have_the_same_fingerprint_and_one_changed_bit_another(kind: torch.dtype) -> None:
    one, other = some(kind), some(kind)
    seen = Seen(one=one, other=other)
    assert not seen.changed
    for place in (0, -1):
        bytes_of(one)[place] ^= 1
        assert seen.changed == {"one"}
        bytes_of(one)[place] ^= 1
        assert not seen.changed


@each_kind
def test_exchanged_numbers_show(kind: torch.dtype) -> None:
    tensor = some(kind)
    seen = Seen(tensor=tensor)
    places = [0, next(i for i in range(600) if tensor[i] != tensor[0])]
    tensor[places] = tensor[places[::-1]].clone()
    assert seen.changed == {"tensor"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.is_floating_point], ids=str)
def test_signs_that_change_in_pairs_show(kind: torch.dtype) -> None:
    """Two signs of 64-bit numbers are two differences of 2**63, which cancel modulo 2**64."""
    for first in range(20):
        tensor = some(kind)
        seen = Seen(tensor=tensor)
        tensor[[first, first + 2]] *= -1
        assert seen.changed == {"tensor"}


def test_changes_that_cancel_in_a_sum_show() -> None:
    tensor = torch.ones(600)
    seen = Seen(tensor=tensor)
    tensor[3] += 0.5
    tensor[400] -= 0.5
    assert seen.changed == {"tensor"}


def test_what_is_not_a_number_equals_itself_and_zero_has_a_sign() -> None:
    tensor = torch.tensor([float("nan"), 0.0, float("inf")])
    seen = Seen(tensor=tensor)
    assert not seen.changed
    tensor[1] = -0.0
    assert seen.changed == {"tensor"}


@pytest.mark.parametrize(
    "view",
    [
        lambda: torch.randn(20, 30).t(),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(40, 40)[::2, 1:17],
        lambda: torch.randn(6, 1, dtype=torch.float64).expand(6, 5),
        lambda: torch.randn(8, 6, dtype=torch.complex128)[:, ::2],
        lambda: torch.randn(30, dtype=torch.complex64).conj(),
        lambda: torch.tensor(1.5),
    ],
    ids=["transposed", "channels last", "with gaps", "expanded", "complex with gaps", "conjugate", "scalar"],
)
def test_tensors_that_lie_otherwise_in_memory_are_read_in_place(view) -> None:  # type: ignore[no-untyped-def]
    tensor = view()
    seen = Seen(tensor=tensor)
    assert not seen.changed
    tensor.data[(0,) * tensor.dim()] = 7.0
    assert seen.changed == {"tensor"}


def test_changes_are_found_on_every_page_and_only_there() -> None:
    large, small = torch.zeros(700_000), torch.zeros(5)
    seen = Seen(large=large, small=small)
    assert seen.prints.num_pages > 2
    for place in (0, 262_143, 262_144, 699_999):
        large[place] = 1.0
        assert seen.changed == {"large"}
        large[place] = 0.0
    whole = large.clone()
    large[:262_144] = 1.0
    with_first = Seen(large=large)
    large.copy_(whole)
    large[262_144 : 2 * 262_144] = 1.0
    assert with_first.changed == {"large"}, "pages that changed places show"


def test_a_choice_of_pages_is_compared_alone() -> None:
    large = torch.zeros(700_000)
    prints = Fingerprints.of({"large": large})
    first = prints.take([0])
    large[600_000] = 1.0
    assert not names_in(first)
    second = prints.take([0, 2])
    large[600_001] = 1.0
    assert names_in(second) == {"large"}


@each_kind
def test_a_tensor_alone_on_a_page_and_one_beside_others_have_the_same_sum(kind: torch.dtype) -> None:
    """Alone a segment is summed at once, beside others by running sums."""
    words = _words(some(kind))
    one, other = (Segment(name=name, words=lambda: words, length=len(words)) for name in ("one", "other"))
    pages = DevicePages.of([one, other])
    none = InPlace.of([], torch.device("cpu"))
    alone = DevicePages(pages=[[one]], _ends=[], _multipliers=pages._multipliers, _in_place=none)
    assert pages.take([0]).sums[0] == alone.take([0]).sums[0]


def test_empty_and_meta_tensors_tell_nothing_and_what_cannot_be_read_is_named() -> None:
    sparse = torch.eye(3).to_sparse()
    prints = Fingerprints.of({"empty": torch.zeros(0), "meta": torch.zeros(3, device="meta"), "sparse": sparse})
    assert prints.unseen == ("sparse",)
    assert not prints.take()


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_quantised_numbers_are_read() -> None:
    tensor = torch.quantize_per_tensor(torch.randn(50), 0.1, 0, torch.qint8)
    seen = Seen(tensor=tensor)
    assert not seen.changed
    tensor[3] = 5.0
    assert seen.changed == {"tensor"}


def test_the_inner_tensors_of_a_wrapper_are_read() -> None:
    inner = torch.zeros(4)
    seen = Seen(wrapped=TwoTensor(torch.zeros(4), inner))
    inner[2] = 1.0
    assert seen.changed == {"wrapped"}


class Opaque(Tensor):
    """A wrapper that does not say what it wraps."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Opaque:
        found: Opaque = Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride())  # type: ignore[attr-defined]
        found.inner = inner
        return found

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        inside = tree_map_only(cls, lambda wrapper: wrapper.inner, (args, kwargs or {}))
        return tree_map_only(Tensor, cls, func(*inside[0], **inside[1]))


@pytest.mark.parametrize("inner", [torch.zeros(4), torch.zeros(4, 2)[:, 0]], ids=["dense", "with-gaps"])
def test_a_wrapper_that_does_not_say_what_it_wraps_is_named_and_no_other_memory_is_read_for_it(inner: Tensor) -> None:
    assert Fingerprints.of({"opaque": Opaque(inner)}).unseen == ("opaque",)


def test_taking_fingerprints_leaves_torchs_random_numbers_alone() -> None:
    state = torch.get_rng_state()
    Seen(weight=nn.Linear(3, 3).requires_grad_(False).weight)
    torch.set_rng_state(state)
    expected = torch.rand(3)
    torch.set_rng_state(state)
    tensor = torch.zeros(10)
    Seen(tensor=tensor)
    assert torch.equal(torch.rand(3), expected)


class Listening(TorchFunctionMode):
    """Notes what it sees, as the capture of another session does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_nobody_who_follows_operations_sees_the_fingerprints() -> None:
    seen = Seen(whole=torch.ones(5), gaps=torch.ones(4, 4)[:, ::2], halves=torch.ones(3).bfloat16())
    with Listening() as mode:
        assert not names_in(seen.prints.take())
    assert not mode.seen


def test_pages_are_numbered_through_all_devices() -> None:
    here, there = torch.zeros(700_000), torch.zeros(5)
    own, other = (Fingerprints.of({name: tensor}) for name, tensor in (("here", here), ("there", there)))
    (places, first), (_, second) = *own._devices, *other._devices
    last = len(places)
    both = Fingerprints(num_pages=last + 1, unseen=(), _devices=[(places, first), (range(last, last + 1), second)])
    all_pages, last_page = both.take(), both.take([last])
    here[0] = 1.0
    assert names_in(all_pages) == {"here"}
    assert not names_in(last_page)
    there[0] = 1.0
    assert names_in(last_page) == {"there"}


SCRIPT, _SAYS = Path(__file__).with_name("sums_check.py"), "the sums are as expected"


def test_the_kernel_sums_as_torch_does() -> None:
    check_interpreted(SCRIPT, _SAYS)


@pytest.mark.gpu
def test_the_kernel_sums_as_torch_does_on_a_device() -> None:
    check_on_a_device(SCRIPT, _SAYS)


def test_the_kernel_reads_what_lies_in_words_and_torch_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    _let_kernels_run(monkeypatch, _Kernels())
    pages = DevicePages.of(
        [segment for name, tensor in _mixed().items() for segment in fingerprints._segments(name, tensor, 1 << 18)]
    )
    assert [[segment.name for segment in page] for page in pages.pages] == [["whole", "halves", "odd", "gaps"]]
    assert pages._in_place.num_pages == 0, "a page with one segment that the kernel cannot read is torch's"
    monkeypatch.setattr(DevicePages, "size", 8)
    pages = DevicePages.of([*(s for n, t in _mixed().items() for s in fingerprints._segments(n, t, 8))])
    assert pages._in_place.num_pages == 2
    kernel = pages.take(range(len(pages))).sums
    monkeypatch.setattr(Kernel, "is_ready", False)
    assert torch.equal(kernel, pages.take(range(len(pages))).sums)


def _mixed() -> dict[str, Tensor]:
    halves = torch.arange(14.0).bfloat16()
    return {"odd": halves[:5], "whole": torch.arange(6.0), "gaps": torch.ones(4, 4)[:, ::2], "halves": halves[:12]}


@pytest.mark.parametrize("broken", ["raises", "wrong"])
def test_a_kernel_that_sums_wrongly_is_never_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    _let_kernels_run(monkeypatch, _Kernels(spoils=1 if broken == "wrong" else 0))
    if broken == "raises":
        monkeypatch.setattr(device_pages, "_kernels", lambda: object())
    assert not device_pages.kernel_for(torch.device("cpu")).is_ready
    assert "watched by torch operations" in caplog.text


def test_a_machine_without_triton_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_pages.importlib.util, "find_spec", lambda name: None)
    assert not Kernel(torch.device("cpu")).is_ready
