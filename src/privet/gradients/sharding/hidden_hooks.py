"""Runs the hooks of FSDP2 out of sight, so that a forward pass shows the program of the model and nothing else.

FSDP2 gathers the parameters of a module before its forward pass and frees them after it. It does so in hooks on the
module, on its outputs and on its inputs. What they compute has no part in the losses: they copy public parameters. What
they do to the examples (a cast, where the policy asks for one) is done again in sight, as an operation of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

Hook = Callable[..., Any]
# Hooks that FSDP2 looks up on its own object when it registers them: on outputs, and at the end of a backward pass.
_LATER = ("_pre_backward", "_root_post_backward_final_callback")


@contextmanager
def unseen() -> Iterator[None]:
    """Run a block that no capture, tracer or other mode sees."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class HiddenHooks:
    """The hooks of one module, or of several that are gathered together, while nobody sees them.

    Guarantee:
        A program has the same results as with the hooks in sight: parameters are gathered before and freed after each
        forward and backward pass of the modules. Tensors of the program reach the hooks by type and device alone.
    """

    def __init__(self, state: Any, groups: Sequence[Any]) -> None:
        """Put other hooks in their place.

        Args:
            state: FSDP2's object for the modules.
            groups: Its groups of parameters.
        """
        self._state, self._groups = state, groups
        self._former: list[tuple[dict[int, Hook], int, Hook]] = []
        for module in state._modules:
            self._exchange(module._forward_pre_hooks, state._pre_forward, self._before)
            self._exchange(module._forward_hooks, state._post_forward, self._after)
        for name in _LATER:
            setattr(state, name, _hidden(getattr(state, name)))

    def close(self) -> None:
        """Put the hooks back."""
        for hooks, number, hook in self._former:
            if number in hooks:
                hooks[number] = hook
        for name in _LATER:
            delattr(self._state, name)

    def _exchange(self, hooks: dict[int, Hook], wanted: Hook, made: Callable[[Hook], Hook]) -> None:
        for number, hook in list(hooks.items()):
            if _runs(hook, wanted):
                self._former.append((hooks, number, hook))
                hooks[number] = made(hook)

    def _before(self, hook: Hook) -> Hook:
        def gather(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with unseen():
                is_first = self._state._training_state.name == "IDLE"
                given = pytree.tree_map_only(Tensor, _stand_in, (args, kwargs))
                found = hook(module, *given)
            if found is not None:
                args, kwargs = pytree.tree_map(_as_moved, (args, kwargs), given, found)
            if is_first and torch.is_grad_enabled():
                self._listen((args, kwargs))
            return args, kwargs

        return gather

    def _after(self, hook: Hook) -> Hook:
        def free(module: nn.Module, args: Any, output: Any) -> Any:
            with unseen():
                found = hook(module, args, output)
            is_kept = found is None or found is output
            return output if is_kept else pytree.tree_map(_as_moved, output, output, found)

        return free

    def _listen(self, inputs: Any) -> None:
        """Free the gathered parameters once the gradients of all inputs of the module are known."""
        wanted = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if wanted:
            with unseen():
                register_multi_grad_hook(wanted, self._end_backward)

    def _end_backward(self, gradients: Sequence[Tensor | None]) -> None:
        with unseen():
            for group in reversed(self._groups):
                group.post_backward()


def _hidden(hook: Hook) -> Hook:
    def run(*args: Any) -> Any:
        with unseen():
            return hook(*args)

    return run


def _runs(hook: Hook | None, wanted: Hook) -> bool:
    """Whether a hook is the wanted one, or was wrapped around it."""
    while hook is not None:
        if hook == wanted:
            return True
        hook = getattr(hook, "__wrapped__", None)
    return False


def _stand_in(tensor: Tensor) -> Tensor:
    return tensor.detach().new_empty(0)


def _as_moved(value: Any, before: Any, after: Any) -> Any:
    """Do with a tensor of the program, in sight, what was done with its stand-in."""
    is_moved = isinstance(value, Tensor) and (before.dtype, before.device) != (after.dtype, after.device)
    return value.to(device=after.device, dtype=after.dtype) if is_moved else value
