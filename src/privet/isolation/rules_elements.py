"""Rules of operations on elements, of random numbers and of losses: every element stays at its place."""

from __future__ import annotations

from collections.abc import Sequence

from privet.isolation.call import Call, Rule, beside_public, broadcast, private
from privet.isolation.place import Mixes, NoRule, Spec, Verdict, met

_NO_REDUCTION = 0


def elements(call: Call) -> Sequence[Verdict]:
    """Every element of the result depends on the elements at its place."""
    return [broadcast(call.specs, out.shape) for out in call.out_specs]


def each(call: Call) -> Sequence[Verdict]:
    """The same operation on elements for every tensor of a list, each with its partners in the other lists."""
    verdicts: list[Verdict] = []
    for number, out in enumerate(call.out_specs):
        given = [value[number] if isinstance(value, list | tuple) else value for value in call.args]
        verdicts.append(broadcast([spec for spec in given if isinstance(spec, Spec)], out.shape))
    return verdicts


def like(call: Call) -> Sequence[Verdict]:
    """A fresh tensor of the shape of another: its rows are as many as the examples, which counts them."""
    return [broadcast(call.specs[:1], out.shape) for out in call.out_specs]


def fresh(call: Call) -> Sequence[Verdict]:
    """A fresh tensor whose shape is given by numbers."""
    return call.everywhere(None)


def copied_into(call: Call) -> Sequence[Verdict]:
    """A write replaces the old elements; parts that are public may belong to any example."""
    return [broadcast([call.args[0], call.args[1]], call.shape)]


def overwritten(call: Call) -> Sequence[Verdict]:
    """Numbers replace the old elements: there are still as many rows as examples."""
    return [broadcast(call.specs, call.shape)]


def loss(call: Call) -> Sequence[Verdict]:
    """A loss on elements that may be added up."""
    _check_unreduced(call)
    return elements(call)


def _check_unreduced(call: Call) -> None:
    if call.arg("reduction") != _NO_REDUCTION:
        raise Mixes("the loss is averaged or summed over the batch: use reduction='none'")


def _axis_of_classes(call: Call) -> int:
    """Return the axis of the scores that the classes are on; their weights must be public."""
    weight = call.arg("weight")
    if weight is not None and weight.verdict is not None:
        raise NoRule("the weights of classes depend on the examples")
    return 1 if call.arg("self").ndim > 1 else 0


def class_loss(call: Call) -> Sequence[Verdict]:
    """A loss of scores [examples, classes, ...] and classes [examples, ...]."""
    _check_unreduced(call)
    scores, axis = call.arg("self"), _axis_of_classes(call)
    found = []
    for spec, place in private([scores, call.arg("target")]):
        if spec is scores and not place.is_single:
            if place.axis == axis:
                raise Mixes("the examples are taken for classes")
            place = place.at(place.axis - (place.axis > axis))
        found.append(place)
    verdict = met(found)
    return [verdict if number == 0 else None for number in range(len(call.out_specs))]


def class_loss_back(call: Call) -> Sequence[Verdict]:
    """The derivative of a loss of scores [examples, classes, ...] by its scores."""
    if call.arg("reduction") != _NO_REDUCTION:
        raise NoRule("the loss is averaged or summed over the batch")
    scores, axis = call.arg("self"), _axis_of_classes(call)
    found = []
    for spec, place in private([scores, call.arg("target"), call.arg("grad_output")]):
        if spec is scores and not place.is_single and place.axis == axis:
            raise Mixes("the examples are taken for classes")
        found.append(place if spec is scores or place.is_single else place.at(place.axis + (place.axis >= axis)))
    return call.everywhere(met(found))


def connectionist(call: Call) -> Sequence[Verdict]:
    """The CTC loss of scores [time, examples, classes] and targets [examples, length]."""
    found = []
    for spec, place in private(call.specs):
        if spec is call.args[0] and not place.is_single:
            if place.axis != 1 or spec.ndim != 3:
                raise Mixes("the examples must lie on the second axis of the scores")
            place = place.at(0)
        if place.axis != 0:
            raise NoRule("targets must be one row per example")
        found.append(place)
    verdict = met(found)
    return [verdict] * len(call.out_specs)


def bucket(call: Call) -> Sequence[Verdict]:
    """Where numbers lie between borders: public ones, or each row of numbers between a row of its own."""
    values = call.arg("self")
    borders = call.arg("boundaries") if call.has("boundaries") else call.arg("sorted_sequence")
    order = call.arg("sorter") if call.has("sorter") else None
    given = private([spec for spec in (borders, order) if isinstance(spec, Spec)])
    if not given:
        return call.everywhere(values.verdict)
    has_rows = isinstance(values, Spec) and borders.ndim == values.ndim > 1
    for spec, place in given:
        if not place.is_single and (not has_rows or place.axis == spec.ndim - 1):
            raise Mixes("the borders are other examples")
    found = [place for _, place in given]
    return call.everywhere(met(found + [place for _, place in private([values])]))


def rows_drawn(call: Call) -> Sequence[Verdict]:
    """Draws from every row of a matrix of weights."""
    spec = call.args[0]
    place = spec.place
    if place is None or (not place.is_single and place.axis == spec.ndim - 1):
        raise Mixes("one draw is made from the weights of all examples")
    return call.everywhere(place)


_ELEMENTS = [
    "_to_copy",
    "clone",
    "detach",
    "detach_",
    "alias",
    "lift",
    "lift_fresh",
    "lift_fresh_copy",
    "contiguous",
    "_conj",
    "resolve_conj",
    "resolve_neg",
    "_neg_view",
    "_conj_physical",
    "conj_physical",
    "native_dropout",
    "where",
    "masked_fill",
    "masked_fill_",
    "rrelu_with_noise",
    "polar",
    "rrelu_with_noise_functional",
    "complex",
    "dropout",
    "feature_dropout",
    "_efficientzerotensor",
    "fill",
    "fill_",
    "bernoulli",
    "bernoulli_",
    "normal",
    "poisson",
    "nan_to_num",
    "clamp",
    "clamp_",
    "clamp_min",
    "clamp_max",
    "hardtanh",
    "hardtanh_",
    "softplus",
    "elu",
    "elu_",
    "celu",
    "silu",
    "silu_",
    "mish",
    "mish_",
    "gelu",
    "hardswish",
    "hardsigmoid",
    "leaky_relu",
    "leaky_relu_",
    "threshold",
    "log_sigmoid_forward",
    "_prelu_kernel",
    "isclose",
    "_fused_dropout",
    "_masked_scale",
    "xlogy",
    "special_xlog1py",
    "relu6",
    "logit",
    "heaviside",
    "square",
    "square_",
    "__rshift__",
    "__lshift__",
    "__and__",
    "__or__",
    "__xor__",
    "__iand__",
    "__ior__",
    "__ixor__",
    "normal_functional",
    "binomial",
    "_standard_gamma",
    "copysign",
    "float_power",
    "igamma",
    "igammac",
    "mvlgamma",
    "polygamma",
    "rsub",
    "isnan",
    "isinf",
    "isposinf",
    "isneginf",
    "isreal",
    "signbit",
    "frexp",
    "ldexp",
    "gcd",
    "lcm",
    "hypot",
    "nextafter",
    "round_",
    "fake_quantize_per_tensor_affine",
    "bitwise_not",
    "logical_not",
    "lgamma",
    "digamma",
    "erfinv",
    "sinc",
    "angle",
]
# Derivatives of functions of single numbers, where a program takes gradients itself.
_DERIVATIVES = [
    "tanh_backward",
    "sigmoid_backward",
    "threshold_backward",
    "gelu_backward",
    "silu_backward",
    "elu_backward",
    "leaky_relu_backward",
    "hardtanh_backward",
    "hardswish_backward",
    "hardsigmoid_backward",
    "softplus_backward",
    "mish_backward",
    "log_sigmoid_backward",
]
_LIKE = ["empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"]
_FRESH = [
    "new_zeros",
    "new_empty",
    "new_ones",
    "new_full",
    "new_empty_strided",
    "empty",
    "zeros",
    "ones",
    "full",
    "arange",
    "rand",
    "randn",
    "randint",
    "randperm",
    "eye",
    "linspace",
    "scalar_tensor",
    "empty_strided",
    "_cudnn_init_dropout_state",
]
_OVERWRITTEN = [
    "zero_",
    "fill_",
    "uniform_",
    "normal_",
    "exponential_",
    "random_",
    "cauchy_",
    "geometric_",
    "log_normal_",
    "bernoulli_",
]
_LOSSES = [
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
    "l1_loss",
    "kl_div",
    "poisson_nll_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
]

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTS, elements),
    **dict.fromkeys(_DERIVATIVES, elements),
    **dict.fromkeys(_LIKE, like),
    **dict.fromkeys(_FRESH, fresh),
    **dict.fromkeys(_OVERWRITTEN, overwritten),
    **dict.fromkeys(_LOSSES, loss),
    "copy_": copied_into,
    "copy": copied_into,
    "nll_loss_forward": class_loss,
    "nll_loss2d_forward": class_loss,
    "nll_loss_backward": class_loss_back,
    "nll_loss2d_backward": class_loss_back,
    "multi_margin_loss": class_loss,
    "_ctc_loss": connectionist,
    "_cudnn_ctc_loss": connectionist,
    "bucketize": bucket,
    "searchsorted": bucket,
    "multinomial": rows_drawn,
    "prelu": beside_public("weight", "self", "its slopes depend on the examples"),
}
