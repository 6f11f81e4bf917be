"""Digests by which ranks compare weights, masks, batches and noise. They never leave the ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.gradients.sharding.local import local_part

# So many numbers of a noisy sum are compared at every step: noise of other keys differs in all of them.
_SAMPLE = 1024


def digest_of(parts: Iterable[tuple[str, Tensor]], *, key: bytes = b"") -> str:
    """Return a digest of named tensors, with their types, shapes and bits; without bits for sharded ones."""
    digest = hashlib.blake2b(key=key, digest_size=16)
    for name, tensor in parts:
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        if local_part(tensor) is not tensor:
            continue
        flat = tensor.detach().reshape(-1).cpu().contiguous()
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def model_digest(model: nn.Module) -> str:
    """Return the digest of all parameters and buffers."""
    held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return digest_of((name, value) for name, value in held)


def optimizer_digest(optimizer: Optimizer) -> str:
    """Return the digest of an optimizer's settings and state."""
    saved = optimizer.state_dict()
    digest = hashlib.blake2b(repr(_plain(saved["param_groups"])).encode(), digest_size=16)
    digest.update(type(optimizer).__qualname__.encode())
    for index, values in sorted(saved["state"].items()):
        tensors = [(f"{index}.{name}", value) for name, value in sorted(values.items()) if isinstance(value, Tensor)]
        others = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        digest.update(digest_of(tensors).encode() + repr(_plain(others)).encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Return settings in a form whose words are the same in every process."""
    if isinstance(value, Mapping):
        return sorted((str(name), _plain(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    return value if isinstance(value, str | int | float | bool | None) else type(value).__qualname__


def sampled_digest(flat: Tensor, *, key: bytes) -> str:
    """Return the digest of some numbers of a vector, spread evenly over it."""
    stride = max(1, flat.numel() // _SAMPLE)
    return digest_of([("sample", flat[::stride])], key=key)
