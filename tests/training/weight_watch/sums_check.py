"""Compare the sums of the kernel with those of torch; run as a script, on a GPU or with TRITON_INTERPRET=1 set."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from privet.training.weight_watch import device_pages, fingerprints
from privet.training.weight_watch.device_pages import DevicePages, kernel_for
from privet.training.weight_watch.fingerprints import Fingerprints

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pages_of(**tensors: torch.Tensor) -> DevicePages:
    ((_, found),) = Fingerprints.of(tensors)._devices
    assert isinstance(found, DevicePages)
    return found


def both(pages: DevicePages, numbers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums of the kernel and of torch."""
    kernel, ready = pages.take(numbers).sums, type(kernel_for(DEVICE)).is_ready
    type(kernel_for(DEVICE)).is_ready = property(lambda self: False)
    try:
        return kernel, pages.take(numbers).sums
    finally:
        type(kernel_for(DEVICE)).is_ready = ready


def test_sums_are_those_of_torch() -> None:
    made = torch.Generator().manual_seed(1)
    sizes = [1, 2, 1023, 1024, 1025, 16_384, 16_385, 40_000, 70_001]
    floats = {f"float{size}": torch.randn(size, generator=made).to(DEVICE) for size in sizes}
    halves = {f"half{size}": torch.randn(size, generator=made).to(DEVICE, torch.bfloat16) for size in sizes}
    others = {
        "turned": torch.randn(50, 60, generator=made).to(DEVICE).t(),
        "gaps": torch.randn(50, 60, generator=made).to(DEVICE)[:, ::2],
        "counter": torch.tensor(-3, device=DEVICE),
        "truth": torch.tensor([True, False, True], device=DEVICE),
    }
    pages = pages_of(**floats, **halves, **others)
    assert len(pages) > 4, "the sizes fill several pages"
    assert 2 < pages._in_place.num_pages < len(pages), "odd halves and gaps are left to torch"
    for numbers in (range(len(pages)), [0], [1, 2], [0, 2, len(pages) - 1]):
        kernel, plain = both(pages, numbers)
        assert torch.equal(kernel, plain), numbers


def test_a_change_of_one_bit_shows_and_no_other_name() -> None:
    tensors = {"one": torch.zeros(70_000, device=DEVICE), "two": torch.zeros(5, device=DEVICE)}
    pages = pages_of(**tensors)
    for place in (0, 1, 69_999):
        before = pages.take(range(len(pages)))
        tensors["one"].view(torch.int32)[place] ^= 1
        assert before.compared().names() == {"one"}


if __name__ == "__main__":
    fingerprints._KINDS = {}  # the processor's memory is read as a device's
    DevicePages.size = 1 << 16
    kernel = kernel_for(DEVICE)
    if kernel._built is not None:
        kernel._built.result()
    assert kernel.is_ready, "the kernel passes its trial"
    assert DevicePages.size > device_pages._CHUNK
    for name, check in list(globals().items()):
        if name.startswith("test_"):
            check()
    print("the sums are as expected")
