"""A rank's part of a sharded tensor, found without importing anything that only sharded models need."""

from __future__ import annotations

from torch import Tensor, nn

# Modules of torch.distributed in which ranks of a sharded model wait for each other.
_SENDING = ("distributed_c10d", "fsdp._fully_shard._fsdp_collectives", "fsdp._fully_shard._fsdp_param_group")


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 (``fully_shard``) manages any part of a model."""
    return any(hasattr(type(module), "_get_fsdp_state") for module in model.modules())


def settle(model: nn.Module) -> None:
    """Free whatever FSDP2 has gathered of a model, so that it holds its shards alone.

    After a forward pass without gradients FSDP2 keeps the outermost part gathered. Whoever changes the shards must free
    it first: the next forward pass would compute with the weights as they were.
    """
    for module in model.modules():
        if hasattr(type(module), "_get_fsdp_state"):
            module.reshard()  # type: ignore[operator]


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds: all of it, unless it is sharded."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def rows_held(tensor: Tensor) -> slice:
    """Return the rows of a whole tensor that this rank holds; all of them, unless it is sharded."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return slice(None)
    most = -(-tensor.shape[0] // mesh.size())
    start = mesh.get_local_rank() * most
    return slice(start, start + len(local_part(tensor)))


def placed_like(tensor: Tensor | None, whole: Tensor) -> Tensor:
    """Return a whole tensor; where another of the same shape is sharded, this rank's part of it, placed alike."""
    if tensor is None or tensor.shape != whole.shape or local_part(tensor) is tensor:
        return whole
    part = whole[rows_held(tensor)].to(device=local_part(tensor).device, copy=True)
    return from_part(tensor, part)


def from_part(tensor: Tensor, part: Tensor) -> Tensor:
    """Return a tensor that is sharded like another, from the part of it that this rank holds."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return part
    return DTensor.from_local(
        part, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def is_of_messages(error: BaseException) -> bool:
    """Whether torch raised an error while it sent messages to other ranks, and not in the model or the loop."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    module = "" if place is None else str(place.tb_frame.f_globals.get("__name__", ""))
    return isinstance(error, RuntimeError) and module.removeprefix("torch.distributed.") in _SENDING
