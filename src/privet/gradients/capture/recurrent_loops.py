"""The recurrences of LSTM, GRU and plain RNN layers, each as one differentiable operation over all time steps.

An ordinary autograd graph of a recurrence has a node per step and sums the hidden weight's gradient as it goes, so
per-example gradients are lost. Here the gradient of the *gates* of all steps comes out in one tensor, from which both
weight matrices' gradients follow as those of two linear maps.

Shapes: ``gates [time, batch, gates * width]`` (the part of the inputs), states ``[batch, width]``. ``sizes[t]`` is
the number of sequences that are still running at step ``t``; they are the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from privet.gradients.norms import processor_products
from privet.gradients.norms.processor_products import repeated_product

_SIGMOID_BACKWARD = torch.ops.aten.sigmoid_backward.grad_input
_TANH_BACKWARD = torch.ops.aten.tanh_backward.grad_input


def _rows(tensor: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Split off the time axis; keep the running sequences of each step."""
    steps = tensor.unbind(0)
    if sizes[-1] == tensor.shape[1]:
        return steps
    return [step[:size] for step, size in zip(steps, sizes, strict=True)]


def _carry(states: Tensor, step: int, size: int) -> None:
    # a sequence that has ended keeps its last state, so the final state of all is the last row
    if size < states.shape[1]:
        states[step + 1, size:] = states[step, size:]


def _is_wanted(node: Any) -> bool:
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # torch cannot tell for a parameter that is itself asked for: then it is wanted
        return True


def _weight_gradients(
    ctx: Any, place: int, gate_grads: Tensor, before: Tensor, *, with_bias: bool
) -> list[Tensor | None]:
    """Return the summed gradients of a weight and of its bias, if it has one, where autograd was asked for them."""
    found: list[Tensor | None] = [None, None] if with_bias else [None]
    flat = gate_grads.flatten(0, 1)
    for offset in range(len(found)):
        node = ctx.next_functions[place + offset][0] if ctx.needs_input_grad[place + offset] else None
        if node is not None and _is_wanted(node):
            found[offset] = flat.sum(0) if offset else flat.mT @ before.flatten(0, 1)
    return found


def _tanh_into(like: Tensor) -> Callable[[Tensor, Tensor], Any]:
    """Return the function that writes tanh of a tensor like this one into another."""
    # numpy takes a tenth of the time of torch's on some processors, and never much more
    if processor_products.is_plain_on_processor(like):
        return lambda values, out: np.tanh(values.numpy(), out=out.numpy())
    return lambda values, out: torch.tanh(values, out=out)


class InputMap(Function):
    """The part of the inputs ``[time, batch, width]`` in the gates of all steps: one linear map."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply all steps at once."""
        ctx.save_for_backward(inputs, weight)
        return processor_products.linear(inputs.flatten(0, 1), weight.detach(), bias).view(*inputs.shape[:2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gate_grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the inputs, and of weight and bias where autograd was asked for them."""
        inputs, weight = ctx.saved_tensors
        flat, back = gate_grads.flatten(0, 1), None
        if ctx.needs_input_grad[0]:
            back = processor_products.product(flat, weight.detach()).view_as(inputs)
        return back, *_weight_gradients(ctx, 1, gate_grads, inputs, with_bias=True)


class LstmLoop(Function):
    """Hidden states ``[time + 1, batch, width]`` (the first is the initial one) and the last cell state."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, sizes: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Run all steps, keeping the activated gates."""
        steps, batch, width = len(sizes), gates.shape[1], hidden.shape[1]
        states, cells = gates.new_empty(steps + 1, batch, width), gates.new_empty(steps + 1, batch, width)
        # Only this recurrence holds the inputs' contribution, and no gradient needs it: the gates overwrite its memory.
        # Through .data, because autograd would take it for another tensor than the recorded one otherwise.
        active, across = gates.data, repeated_product(weight.detach(), batch)
        states[0], cells[0] = hidden, cell
        new = slice(2 * width, 3 * width)
        parts = [_rows(part, sizes) for part in active.view(steps, batch, 4, width).unbind(2)]
        rows = zip(_rows(active, sizes), *parts, _rows(states[1:], sizes), _rows(cells[1:], sizes), strict=True)
        old, old_cell, squashed, write_tanh = states[0], cells[0], gates.new_empty(batch, width), _tanh_into(active)
        for step, (given, gate, let, fresh, out, state, cell) in enumerate(rows):
            size = sizes[step]
            if size < old.shape[0]:
                old, old_cell, squashed = old[:size], old_cell[:size], squashed[:size]
            total = across(old, given)
            torch.sigmoid(total, out=given)
            write_tanh(total[:, new], fresh)
            torch.mul(let, old_cell, out=cell)
            cell.addcmul_(gate, fresh)
            write_tanh(cell, squashed)
            torch.mul(out, squashed, out=state)
            _carry(states, step, size)
            _carry(cells, step, size)
            old, old_cell = state, cell
        ctx.sizes = sizes
        ctx.save_for_backward(active, states, cells, weight)
        ctx.set_materialize_grads(False)
        return states, cells[steps].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, state_grads: Tensor | None, cell_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """Run the steps backwards; everything that does not depend on later steps is computed at once before."""
        active, states, cells, weight = ctx.saved_tensors
        sizes, width = ctx.sizes, states.shape[2]
        steps, batch = len(sizes), states.shape[1]
        grads = torch.empty_like(active)
        gate, let, fresh, out = active.view(steps, batch, 4, width).unbind(2)
        slopes = grads.view(steps, batch, 4, width)
        squashed = torch.empty_like(cells[1:])
        _tanh_into(cells)(cells[1:], squashed)
        _SIGMOID_BACKWARD(fresh, gate, grad_input=slopes[:, :, 0])
        _SIGMOID_BACKWARD(cells[:-1], let, grad_input=slopes[:, :, 1])
        _TANH_BACKWARD(gate, fresh, grad_input=slopes[:, :, 2])
        _SIGMOID_BACKWARD(squashed, out, grad_input=slopes[:, :, 3])
        through = _TANH_BACKWARD(out, squashed, grad_input=squashed)
        if state_grads is None:
            state_grads = torch.zeros_like(states)
        state = state_grads[steps].clone()
        cell = torch.zeros_like(state) if cell_grad is None else cell_grad.clone()
        flat, first, last, through_t, let_t = (
            _rows(view, sizes) for view in (grads, slopes[:, :, :3], slopes[:, :, 3], through, let)
        )
        arriving, back = state_grads.unbind(0), repeated_product(weight.detach().mT, batch)
        for step in range(steps - 1, -1, -1):
            size = sizes[step]
            now, cell_now = (state, cell) if size == batch else (state[:size], cell[:size])
            cell_now.addcmul_(now, through_t[step])
            first[step].mul_(cell_now.unsqueeze(1))
            last[step].mul_(now)
            cell_now.mul_(let_t[step])
            if size == batch:
                state = back(flat[step], arriving[step])
            else:
                grads[step, size:] = 0
                now.copy_(back(flat[step]))
                state += arriving[step]
        return grads, state, cell, *_weight_gradients(ctx, 3, grads, states[:-1], with_bias=False), None


class GruLoop(Function):
    """Hidden states ``[time + 1, batch, width]``; the first is the initial one."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]
    ) -> Tensor:
        """Run all steps, keeping the activated gates and the new content's hidden part."""
        steps, batch, width = len(sizes), gates.shape[1], hidden.shape[1]
        states, recalled = gates.new_empty(steps + 1, batch, width), gates.new_empty(steps, batch, width)
        active = torch.empty_like(gates)
        states[0] = hidden
        across = repeated_product(weight.detach(), batch, gates.new_zeros(3 * width) if bias is None else bias.detach())
        views = [_rows(view, sizes) for view in (gates, active, recalled, states[1:])]
        state, write_tanh = states[0], _tanh_into(active)
        for step, (given, total, recalled_t, new_state) in enumerate(zip(*views, strict=True)):
            size = sizes[step]
            before = state[:size]
            inner = across(before)
            both, fresh = total[:, : 2 * width], total[:, 2 * width :]
            torch.add(given[:, : 2 * width], inner[:, : 2 * width], out=both)
            both.sigmoid_()
            recalled_t.copy_(inner[:, 2 * width :])
            torch.addcmul(given[:, 2 * width :], both[:, :width], recalled_t, out=fresh)
            write_tanh(fresh, fresh)
            torch.lerp(fresh, before, both[:, width:], out=new_state)
            _carry(states, step, size)
            state = new_state
        ctx.sizes = sizes
        ctx.save_for_backward(active, states, recalled, weight)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, state_grads: Tensor) -> tuple[Tensor | None, ...]:
        """Run the steps backwards."""
        active, states, recalled, weight = ctx.saved_tensors
        sizes, width, steps = ctx.sizes, states.shape[2], len(ctx.sizes)
        reset, update, fresh = active.view(steps, -1, 3, width).unbind(2)
        grads = torch.zeros_like(active)
        inner = torch.zeros_like(active)  # gradients of the part of the hidden state
        by_reset, by_update, by_fresh = grads.view(steps, -1, 3, width).unbind(2)
        _SIGMOID_BACKWARD(recalled, reset, grad_input=by_reset)
        _SIGMOID_BACKWARD(states[:-1] - fresh, update, grad_input=by_update)
        _TANH_BACKWARD(1 - update, fresh, grad_input=by_fresh)
        state, back = state_grads[steps].clone(), repeated_product(weight.detach().mT, states.shape[1])
        for step in range(steps - 1, -1, -1):
            size = sizes[step]
            now, part = state[:size], inner[step, :size]
            grads[step, size:] = 0
            by_fresh[step, :size].mul_(now)
            by_update[step, :size].mul_(now)
            by_reset[step, :size].mul_(by_fresh[step, :size])
            part.copy_(grads[step, :size])
            part[:, 2 * width :].mul_(reset[step, :size])
            now.copy_(back(part, now.mul_(update[step, :size])))
            state += state_grads[step]
        return grads, state, *_weight_gradients(ctx, 2, inner, states[:-1], with_bias=True), None


class RnnLoop(Function):
    """Hidden states ``[time + 1, batch, width]`` of a tanh or, with ``rectified``, of a ReLU recurrence."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, hidden: Tensor, weight: Tensor, rectified: bool, sizes: Sequence[int]
    ) -> Tensor:
        """Run all steps."""
        states = gates.new_empty(len(sizes) + 1, *hidden.shape)
        states[0] = hidden
        across, state = repeated_product(weight.detach(), hidden.shape[0]), states[0]
        write_tanh = _tanh_into(states)
        for step, (given, new_state) in enumerate(zip(_rows(gates, sizes), _rows(states[1:], sizes), strict=True)):
            total = across(state[: sizes[step]], given)
            torch.clamp_min(total, 0, out=new_state) if rectified else write_tanh(total, new_state)
            _carry(states, step, sizes[step])
            state = new_state
        ctx.sizes, ctx.rectified = sizes, rectified
        ctx.save_for_backward(states, weight)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, state_grads: Tensor) -> tuple[Tensor | None, ...]:
        """Run the steps backwards."""
        states, weight = ctx.saved_tensors
        sizes, steps, after = ctx.sizes, len(ctx.sizes), states[1:]
        grads = (after > 0).to(after.dtype) if ctx.rectified else 1 - after.square()
        state, back = state_grads[steps].clone(), repeated_product(weight.detach().mT, states.shape[1])
        for step in range(steps - 1, -1, -1):
            size = sizes[step]
            now = state[:size]
            grads[step, :size].mul_(now)
            grads[step, size:] = 0
            now.copy_(back(grads[step, :size]))
            state += state_grads[step]
        return grads, state, *_weight_gradients(ctx, 2, grads, states[:-1], with_bias=False), None, None
