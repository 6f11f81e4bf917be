"""Models that ``torch.distributed.fsdp.fully_shard`` has sharded: which part of each parameter this rank holds.

This module reads internal state of FSDP2, which torch does not document. It is read in this module and in
:mod:`privet.gradients.sharding.hidden_hooks` alone, and the tests run with the oldest and the newest torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from privet.errors import UnsupportedModel
from privet.gradients.norms.product_precision import HALF
from privet.gradients.sharding.hidden_hooks import HiddenHooks, unseen
from privet.gradients.sharding.local import settle


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardedParameter:
    """One parameter whose rows are shared out between ranks.

    Attributes:
        name: Its name in the model.
        held: This rank's rows, which the model and its optimizer hold.
        whole: The whole parameter, which the model computes with while it is gathered.
        group: FSDP2's object for the parameters that are gathered together with it.
    """

    name: str
    held: nn.Parameter
    whole: nn.Parameter
    group: Any


class ShardedModel:
    """A model with sharded parameters, whose programs are seen as those of the whole model.

    Attributes:
        model: The model.
        mesh: The ranks that share the parameters.
        parameters: The sharded parameters, by the identity of the held rows.
    """

    def __init__(self, model: nn.Module) -> None:
        """Check how the model is sharded, and gather each part once, so that its whole parameters exist.

        Raises:
            UnsupportedModel: it is sharded in a way that sums and noise do not know.
        """
        self.model, self._states = model, _states_of(model)
        self._hooks: list[HiddenHooks] = []
        self.mesh = _the_mesh(model, self._states)
        for state in self._states:
            _check_policy(state)
        self.parameters = self._gathered()

    def _gathered(self) -> dict[int, ShardedParameter]:
        with unseen():
            self.settle()
            names = {id(value): name for name, value in self.model.named_parameters()}
            found: dict[int, ShardedParameter] = {}
            for state in self._states:
                state._lazy_init()  # the outermost comes first, and makes the others its parts
                for group in groups_of(state):
                    group.unshard()
                    group.wait_for_unshard()
                    for part in group.fsdp_params:
                        held = part.sharded_param
                        name, whole = names[id(held)], part._unsharded_param
                        _check_parameter(name, held, whole)
                        found[id(held)] = ShardedParameter(name=name, held=held, whole=whole, group=group)
                    group.reshard()
        return found

    def open(self) -> None:
        """Hide the hooks that gather and free parameters."""
        self._hooks = [HiddenHooks(state, groups_of(state)) for state in self._states]

    def close(self) -> None:
        """Leave the model as it was found."""
        for hooks in self._hooks:
            hooks.close()
        self._hooks = []
        self.settle()

    def settle(self) -> None:
        """Free whatever is gathered: between two steps a model holds its shards alone."""
        with unseen():
            settle(self.model)

    @property
    def device(self) -> torch.device:
        """Where the parameters are gathered."""
        return next(iter(self.parameters.values())).whole.device

    def group_of(self, parameter: nn.Parameter) -> object:
        """Return a key that differs between parameters gathered at different times; None if it is not sharded."""
        found = self.parameters.get(id(parameter))
        return None if found is None else found.group

    @contextmanager
    def gathered(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Hold the numbers of whole parameters, and of views of them, for the length of the block.

        All ranks must ask together, for the same ones.
        """
        memories = {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout is torch.strided}
        groups = {
            id(part.group): part.group
            for part in self.parameters.values()
            if part.whole.untyped_storage()._cdata in memories and not part.whole.untyped_storage().nbytes()
        }
        with unseen():
            for group in groups.values():
                group.unshard()
                group.wait_for_unshard()
        try:
            yield
        finally:
            with unseen():
                for group in groups.values():
                    group._to_sharded()

    def whole(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the whole parameter that the model computes with in place of the one that it holds."""
        found = self.parameters.get(id(parameter))
        return parameter if found is None else found.whole


def groups_of(state: Any) -> Sequence[Any]:
    """Return the groups of parameters that are gathered together; older versions of torch have one for each state."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    return list(groups)


def _states_of(model: nn.Module) -> list[Any]:
    found: dict[int, Any] = {}
    for module in model.modules():
        if hasattr(type(module), "_get_fsdp_state"):
            state: Any = module._get_fsdp_state()  # type: ignore[operator]
            found[id(state)] = state
    return list(found.values())


def _the_mesh(model: nn.Module, states: Sequence[Any]) -> DeviceMesh:
    """Return the mesh that all parameters are sharded over.

    Raises:
        UnsupportedModel: there are several, or one has more than one dimension.
    """
    meshes = {value.device_mesh for value in model.parameters() if isinstance(value, DTensor)}
    dims = {mesh.ndim for mesh in meshes}
    if len(meshes) != 1 or dims != {1}:
        raise UnsupportedModel(
            f"The model's parameters lie on {len(meshes)} device meshes of {sorted(dims)} dimensions; a private sum is "
            "reduced over the one dimension of one mesh. Shard with fully_shard(module, mesh=init_device_mesh(device, "
            "(world_size,))): replicated groups of shards, and tensor, pipeline and context parallel meshes, whose "
            "ranks would have to add up the norms of an example first, are refused."
        )
    return meshes.pop()


def _check_policy(state: Any) -> None:
    """Refuse policies under which sums would be rounded after clipping, or would lie elsewhere than the weights."""
    reduced = state._mp_policy.reduce_dtype
    if reduced in HALF:
        raise UnsupportedModel(
            f"The model's MixedPrecisionPolicy has reduce_dtype={reduced}. Sums are rounded after clipping then, by "
            "amounts that grow with the sum, so the bound on one example would not hold. Use "
            "MixedPrecisionPolicy(param_dtype=..., reduce_dtype=torch.float32); privet reduces in float32."
        )
    for group in groups_of(state):
        if any(part.offload_to_cpu for part in group.fsdp_params):
            raise UnsupportedModel(
                "The model's parameters are offloaded to the processor (CPUOffloadPolicy), while sums and noise are "
                "formed on the device. Shard it without an offload_policy."
            )


def _check_parameter(name: str, held: nn.Parameter, whole: nn.Parameter) -> None:
    assert isinstance(held, DTensor)
    if tuple(held.placements) != (Shard(0),):
        raise UnsupportedModel(
            f"Parameter '{name}' is placed as {tuple(held.placements)}. Sums and noise are shared out by rows: shard "
            "without a shard_placement_fn."
        )
    if type(whole) is not nn.Parameter or type(whole.data) is not Tensor or whole.shape != held.shape:
        raise UnsupportedModel(
            f"Parameter '{name}' is a {type(whole.data).__name__} while it is gathered (quantised, or tensor "
            "parallel). Only plain tensors can be gathered: shard a model of plain parameters."
        )
