# mypy: ignore-errors
"""The device code of :mod:`privet.training.device_noise`; imported only where triton is present."""

import triton
import triton.language as tl


@triton.jit
def _radius_and_angle(state, pair, std_high, std_low, BLOCK: tl.constexpr):
    """Draw one pair of normal numbers for each place of a block: their length, scaled, and their direction."""
    count = (tl.load(state + 1) + pair).to(tl.uint64)
    none = tl.zeros((BLOCK,), tl.uint32)
    first, second, third, _ = tl.philox(
        tl.load(state), (count & 0xFFFFFFFF).to(tl.uint32), (count >> 32).to(tl.uint32), none, none
    )
    # 52 random bits and one more than they say: uniform in (0, 1], so that the logarithm is finite
    bits = (first.to(tl.uint64) << 20) | (second.to(tl.uint64) >> 12)
    uniform = (bits.to(tl.float64) + 1.0) * 2.220446049250313e-16
    radius = tl.sqrt(-2.0 * tl.log(uniform))
    radius = radius * std_high + radius * std_low
    angle = third.to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09
    return radius, angle


# one kernel for vectors of every length: it is built once, before any length is known
@triton.jit(do_not_specialize=["size", "num_pairs"])
def add_normal_kernel(flat, state, size, num_pairs, std_high, std_low, BLOCK: tl.constexpr):
    """One program per block of pairs: a radius and an angle make noise for one element of either half of the vector."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    radius, angle = _radius_and_angle(state, pair, std_high, std_low, BLOCK)
    left, right = flat + pair, flat + num_pairs + pair
    within, inside = pair < num_pairs, num_pairs + pair < size
    old = tl.load(left, mask=within, other=0.0).to(tl.float64)
    tl.store(left, (old + radius * tl.cos(angle).to(tl.float64)).to(tl.float32), mask=within)
    old = tl.load(right, mask=inside, other=0.0).to(tl.float64)
    tl.store(right, (old + radius * tl.sin(angle).to(tl.float64)).to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["start", "size", "num_pairs"])
def add_share_kernel(part, state, start, size, num_pairs, std_high, std_low, BLOCK: tl.constexpr):
    """As above for some consecutive elements of the vector alone: each makes the pair that it would have there."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    element = place + start
    is_left = element < num_pairs
    pair = tl.where(is_left, element, element - num_pairs)
    radius, angle = _radius_and_angle(state, pair, std_high, std_low, BLOCK)
    turned = tl.where(is_left, tl.cos(angle), tl.sin(angle)).to(tl.float64)
    within = place < size
    old = tl.load(part + place, mask=within, other=0.0).to(tl.float64)
    tl.store(part + place, (old + radius * turned).to(tl.float32), mask=within)
