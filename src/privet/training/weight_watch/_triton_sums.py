# mypy: ignore-errors
"""The device code of :mod:`privet.training.weight_watch.device_pages`; imported only where triton is present."""

import triton
import triton.language as tl


# one kernel for pages of every size: it is built once, before any size is known
@triton.jit(do_not_specialize=["first_chunk", "first_segment"])
def add_products_kernel(
    sums, addresses, lengths, places, segment_of, starts, multipliers, first_chunk, first_segment,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One program per chunk of a segment: its words times their multipliers, added to the segment's sum."""
    chunk = first_chunk + tl.program_id(0)
    segment, start = tl.load(segment_of + chunk), tl.load(starts + chunk)
    words = tl.load(addresses + segment).to(tl.pointer_type(tl.int32))
    length, place = tl.load(lengths + segment), tl.load(places + segment)
    total = tl.zeros((BLOCK,), tl.int64)
    for number in range(BLOCKS):
        at = start + number * BLOCK + tl.arange(0, BLOCK)
        word = tl.load(words + at, mask=at < length, other=0).to(tl.int64)
        total += word * tl.load(multipliers + place + at, mask=at < length, other=0)
    # modulo 2**64 the order of the programs makes no difference
    tl.atomic_add(sums + segment - first_segment, tl.sum(total, 0), sem="relaxed")
