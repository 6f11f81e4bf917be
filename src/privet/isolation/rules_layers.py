"""Rules of layers that torch runs as one operation: normalisations, convolutions, attention, recurrences."""

from __future__ import annotations

from collections.abc import Sequence

from privet.isolation.call import Call, Rule, private
from privet.isolation.lines import user_line
from privet.isolation.place import Cause, Fault, Mixes, NoRule, Place, Spec, Verdict, met


def layer_norm(call: Call) -> Sequence[Verdict]:
    """Normalisation over the last axes; its scales are shared by all examples."""
    spec: Spec = call.args[0]
    place = spec.place
    if place is None:
        raise NoRule("its scales depend on the examples")
    if len(private(call.specs)) > 1 and not place.is_single:
        raise NoRule("its scales depend on the examples")
    if not place.is_single and place.axis >= spec.ndim - len(call.arg("normalized_shape")):
        raise Mixes("it normalises over the examples")
    return call.everywhere(place)


def group_norm(call: Call) -> Sequence[Verdict]:
    """Normalisation of every row by itself."""
    place = call.args[0].place
    if place is None or (len(private(call.specs)) > 1 and not place.is_single):
        raise NoRule("its scales depend on the examples")
    if not place.is_single and place.axis != 0:
        raise Mixes("it normalises over the examples")
    return call.everywhere(place)


def batch_norm(call: Call) -> Sequence[Verdict]:
    """Normalisation of every channel over all rows; without running averages only if the examples are channels."""
    spec: Spec = call.args[0]
    trains = any(call.has(name) and bool(call.arg(name)) for name in ("training", "train")) or not (
        call.has("training") or call.has("train")
    )
    if "no_training" in call.name:
        trains = False
    place = spec.place
    if place is None:
        raise NoRule("its scales depend on the examples")
    if place.is_single:
        return call.everywhere(place)
    scales = [other for other in call.specs[1:] if isinstance(other.verdict, Place)]
    if place.axis == 1:
        channels = place.at(0)
        if any(other.verdict != channels for other in scales):
            raise Mixes("it scales one example by another")
        return [
            place if out.ndim == spec.ndim else (channels if out.shape == (place.length,) else None)
            for out in call.out_specs
        ]
    if trains:
        raise Mixes("it normalises by the mean and deviation of the batch")
    if scales:
        raise NoRule("its scales depend on the examples")
    return [place if out.ndim == spec.ndim else None for out in call.out_specs]


def convolution(call: Call) -> Sequence[Verdict]:
    """Filters along the last axes; with groups also examples that are folded into the channels."""
    spec, weight = call.arg("input"), call.arg("weight")
    bias = call.arg("bias")
    others = private([other for other in (weight, bias) if other is not None])
    place = spec.place
    if place is None:
        return _weights_of_examples(call, weight, bias)
    if place.is_single:
        return call.everywhere(met([place, *(found for _, found in others)]))
    if place.axis == 0:
        if others:
            raise Mixes("the filter of one example meets other examples")
        return call.everywhere(place)
    if place.axis != 1:
        raise Mixes("its filter runs along the examples")
    groups = int(call.arg("groups"))
    inputs, outputs = spec.shape[1] // groups, call.shape[1] // groups
    if place.after % inputs:
        raise Mixes("its filter sums over channels of several examples")
    result = Place(1, place.before, place.after // inputs * outputs, place.first, place.num)
    is_transposed = call.has("transposed") and bool(call.arg("transposed"))
    per_channel = place.after // inputs * (inputs if is_transposed else outputs)
    for _, found in others:
        expected = Place(0, place.before, per_channel, place.first, place.num)
        if found != expected:
            raise Mixes("the filter of one example meets other examples")
    return call.everywhere(result)


def _weights_of_examples(call: Call, weight: Spec, bias: Spec | None) -> Sequence[Verdict]:
    """A public input under filters that are the examples': each makes channels of its own."""
    place = weight.place
    is_transposed = call.has("transposed") and bool(call.arg("transposed"))
    if (
        place is None
        or is_transposed
        or int(call.arg("groups")) != 1
        or (bias is not None and bias.verdict is not None)
    ):
        raise NoRule("its filters depend on the examples")
    if place.is_single:
        return call.everywhere(place)
    if place.axis != 0:
        raise Mixes("its filter sums over the examples")
    return call.everywhere(place.at(1))


def attention(call: Call) -> Sequence[Verdict]:
    """Attention of queries, keys and values [..., time, width], with a mask that is broadcast."""
    heads = [call.arg(name) for name in ("query", "key", "value")]
    found = []
    for spec, place in private(heads):
        if not place.is_single and place.axis >= spec.ndim - 2:
            raise Mixes("queries of one example meet keys of another")
        found.append(place)
    ndim = heads[0].ndim
    others = [spec for spec in call.specs if not any(spec is head for head in heads)]
    for spec, place in private(others):
        if not place.is_single and place.axis >= spec.ndim - 2:
            raise Mixes("its mask lets examples meet")
        found.append(place.at(place.axis + ndim - spec.ndim))
    verdict = met(found)
    # other tensors that torch keeps for the backward pass (sums of exponentials) are by row, generator states are not
    return [verdict if out.ndim >= 3 else None for out in call.out_specs]


def gates(call: Call) -> Sequence[Verdict]:
    """One step of a recurrent cell: every row by itself; all rows share an argument of one axis."""
    if any(spec.ndim < 2 and not place.is_single for spec, place in private(call.specs)):
        raise NoRule("its biases depend on the examples")
    place = met([place for _, place in private(call.specs)])
    if not place.is_single and place.axis != 0:
        raise Mixes("gates of one example meet those of another")
    return call.everywhere(place)


def recurrence(call: Call) -> Sequence[Verdict]:
    """A recurrent layer over a sequence: [time, examples, width], or [examples, time, width] if so declared."""
    spec: Spec = call.args[0]
    place = spec.place
    if place is None or spec.ndim != 3:
        raise NoRule("its input is public or packed")
    if place.is_single:
        return call.everywhere(place)
    # oneDNN's layer gets its time first whatever the flag says
    is_cudnn = "cudnn" in call.name
    if place.axis != (0 if is_cudnn and bool(call.arg("batch_first")) else 1):
        raise Mixes("it runs through the examples as if they were time")
    for other, found in private(call.specs[1:]):
        if other.ndim == 3 and found != place.at(1):
            raise Mixes("the state of one example meets another")
        if other.ndim != 3 and found != place.at(0):
            raise Mixes("the state of one example meets another")
    # after the states come notes for the backward pass, in an order of their own
    notes = Cause(Fault.NO_RULE, call.name, "its notes for the backward pass lie in no known order", user_line())
    verdicts: list[Verdict] = [place]
    for out in call.out_specs[1:]:
        where = 1 if out.ndim == 3 else 0
        is_state = out.ndim in (2, 3) and out.shape[where] == place.length
        verdicts.append(place.at(where) if is_state else notes)
    return verdicts


_ATTENTION = [
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math",
]

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ATTENTION, attention),
    "native_layer_norm": layer_norm,
    "_fused_rms_norm": layer_norm,
    "native_group_norm": group_norm,
    **dict.fromkeys(
        (
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_no_training",
            "_batch_norm_with_update",
            "_batch_norm_no_update",
            "cudnn_batch_norm",
            "_batch_norm_impl_index",
            "_native_batch_norm_legit_functional",
            "batch_norm_update_stats",
            "miopen_batch_norm",
        ),
        batch_norm,
    ),
    "convolution": convolution,
    "_convolution": convolution,
    "convolution_overrideable": convolution,
    "_thnn_fused_lstm_cell": gates,
    "_thnn_fused_gru_cell": gates,
    "mkldnn_rnn_layer": recurrence,
    "_cudnn_rnn": recurrence,
}
