"""Rules of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from privet.isolation.call import Call, Rule, broadcast, private
from privet.isolation.place import Mixes, Place, Shape, Spec, Verdict, met


def _product(one: Spec, other: Spec, num_out: int) -> Place | None:
    """Return where the examples lie in ``one @ other``: [..., n, k] times [..., k, m], or vectors without n or m."""
    places = private([one, other])
    if not places:
        return None
    if all(place.is_single for _, place in places):
        return met([place for _, place in places])
    found = []
    for spec, place in places:
        if place.is_single:
            raise Mixes("an example meets other examples")
        is_left = spec is one
        summed = spec.ndim - 1 if is_left else max(spec.ndim - 2, 0)
        if place.axis == summed:
            raise Mixes("a product sums over the examples")
        own = spec.ndim - 2 if is_left else spec.ndim - 1
        if place.axis == own:
            has_columns = other.ndim > 1
            axis = num_out - 1 - has_columns if is_left else num_out - 1
            found.append((place.at(axis), False))
        else:  # leading axes are aligned from the right
            num_leading = max(one.ndim, other.ndim, 2) - 2
            found.append((place.at(place.axis + num_leading - (spec.ndim - 2)), True))
    if len(found) == 2 and not all(leads for _, leads in found):
        raise Mixes("products of examples with other examples")
    return met([place for place, _ in found])


def matrix_product(call: Call) -> Sequence[Verdict]:
    """``mm``, ``bmm``, ``mv`` and ``dot``."""
    one, other = call.args[0], call.args[1]
    return [_product(one, other, len(call.shape))]


def added_product(call: Call) -> Sequence[Verdict]:
    """A product plus something that is broadcast."""
    added, one, other = call.args[0], call.args[1], call.args[2]
    product = _product(one, other, len(call.shape))
    return [_plus(added, product, call.shape)]


def _plus(added: Spec, product: Place | None, shape: Shape) -> Place | None:
    return broadcast([added, Spec(shape, verdict=product)], shape)


def summed_products(call: Call) -> Sequence[Verdict]:
    """``addbmm``: the products are added up."""
    added, one, other = call.args[0], call.args[1], call.args[2]
    product = _product(one, other, 3)
    if product is not None and not product.is_single:
        if product.axis == 0:
            raise Mixes("a product sums over the examples")
        product = product.at(product.axis - 1)
    return [_plus(added, product, call.shape)]


def outer(call: Call) -> Sequence[Verdict]:
    """``addr``: every number of one vector times every number of another."""
    added, one, other = call.args[0], call.args[1], call.args[2]
    found = [place.at(0 if spec is one else 1) for spec, place in private([one, other])]
    product = met(found) if found else None
    return [_plus(added, product, call.shape)]


def trilinear(call: Call) -> Sequence[Verdict]:
    """``_trilinear``, which bilinear layers use: three factors with axes inserted, some of them summed."""
    names = (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3"))
    num_axes = call.args[0].ndim + len(call.arg("expand1"))
    found = []
    for name, expand in names:
        spec: Spec = call.arg(name)
        if spec.place is not None:
            new = {int(axis) % num_axes for axis in call.arg(expand)}
            own = [axis for axis in range(num_axes) if axis not in new]
            found.append(spec.place.at(own[spec.place.axis]))
    place = met(found)
    summed = {int(axis) % num_axes for axis in call.arg("sumdim")}
    if place.is_single:
        return call.everywhere(place)
    if place.axis in summed:
        raise Mixes("a product sums over the examples")
    return call.everywhere(place.at(place.axis - sum(axis < place.axis for axis in summed)))


RULES: dict[str, Rule] = {
    "mm": matrix_product,
    "bmm": matrix_product,
    "mv": matrix_product,
    "dot": matrix_product,
    "vdot": matrix_product,
    "matmul": matrix_product,
    "_int_mm": matrix_product,
    "addmm": added_product,
    "addmm_": added_product,
    "_addmm_activation": added_product,
    "baddbmm": added_product,
    "baddbmm_": added_product,
    "addmv": added_product,
    "addmv_": added_product,
    "addbmm": summed_products,
    "addr": outer,
    "_trilinear": trilinear,
}
