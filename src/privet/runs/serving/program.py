"""The operations of a network as plain values, for a program that serves it with numpy alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privet.errors import UnsupportedModel
from privet.runs.serving import served_predict

_TRIED = 7  # records of the comparison; no size of a layer that is likely
_CLOSE = 1e-4


def program_of(model: nn.Module, example: Tensor) -> dict[str, Any]:
    """Return the operations of a network on a batch of any size.

    Args:
        model: The network, on the processor.
        example: Made-up inputs. No record is needed.

    Raises:
        UnsupportedModel: the network does not export, uses an operation that the served program does not have, or the
            served program gives other outputs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own exporter
        exported = exported_program(model, example).run_decompositions()
    signature = exported.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    steps = []
    for node in exported.graph.nodes:
        if node.op != "call_function":
            continue
        name = _operation(node.target)
        if name in _CHECKS:
            continue
        if name not in served_predict.OPERATIONS:
            raise UnsupportedModel(
                f"The network uses the operation {name}, which the program without torch does not have."
            )
        named = {key: _plain(argument) for key, argument in node.kwargs.items() if key not in _ABOUT_MEMORY}
        steps.append(
            {"name": node.name, "operation": name, "arguments": [_plain(each) for each in node.args], "named": named}
        )
    (given,) = signature.user_inputs
    (output,) = signature.user_outputs
    found = {"input": given, "output": output, "weights": stored, "steps": steps}
    _compare(model, found, example)
    return found


def exported_program(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """Return the program of a network for batches of any size, in evaluation mode.

    Raises:
        UnsupportedModel: torch cannot follow the network.
    """
    was_training = model.training
    model.eval()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own exporter
            batch = {0: torch.export.Dim("batch")}
            found = torch.export.export(model, (example,), dynamic_shapes=(batch,))
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        raise UnsupportedModel(f"The network cannot be exported: {str(error).splitlines()[0]}") from None
    finally:
        model.train(was_training)
    for node in found.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names files of this machine, with lines of their code
    return found


_ABOUT_MEMORY = ("dtype", "layout", "device", "pin_memory", "memory_format")
_CHECKS = ("_assert_scalar.default", "ge.Scalar", "le.Scalar", "ge", "le", "sym_constrain_range_for_size.default")


def _operation(target: Any) -> str:
    return str(getattr(target, "_opname", None) or getattr(target, "__name__", target)) + (
        f".{target._overloadname}" if hasattr(target, "_overloadname") else ""
    )


def _plain(argument: Any) -> Any:
    if isinstance(argument, torch.fx.Node):
        return {"node": argument.name}
    if isinstance(argument, list | tuple):
        return [_plain(each) for each in argument]
    if isinstance(argument, float) and math.isinf(argument):
        return {"infinity": math.copysign(1, argument)}
    if argument is None or isinstance(argument, bool | int | float):
        return argument
    raise UnsupportedModel(f"The network passes a {type(argument).__name__} to an operation, which cannot be written.")


def _compare(model: nn.Module, program: Mapping[str, Any], example: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand((_TRIED, *example.shape[1:]), generator=generator)
    with torch.no_grad():
        wanted = model(inputs).double().numpy()
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    found = served_predict.run(program, weights, inputs.numpy())
    if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=_CLOSE, atol=_CLOSE):
        raise UnsupportedModel("The program without torch gives other outputs than the network. Please report this.")
