"""Count the functions and files of the package that one warm private step uses.

    python -m scripts.trace_step            the figures
    python -m scripts.trace_step --list     every function, by file

The model is a convolution and a linear layer on the processor; the sixth step is traced, after all strategies are
chosen and all programs are known. A comprehension, a generator expression or a lambda counts as part of the function
that contains it (as in Python from 3.12 on, for comprehensions); a second figure counts every code object.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import privet as pv

PACKAGE = Path(pv.__file__).parent
STEP = 6
_PARTS = re.compile(r"\.<locals>\.<(listcomp|setcomp|dictcomp|genexpr|lambda)>")


def traced(step_number: int = STEP) -> dict[str, dict[str, int]]:
    """Return the calls of each function of the package during one step, by file."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    data = TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(0, 4, (64,)))
    plan = pv.Plan(
        sampling=pv.Poisson(rate=1.0, steps=step_number + 1, expected_batch_size=32.0),
        clipping=pv.Threshold(norm=1.0),
        noise=pv.Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            calls[str(Path(code.co_filename).relative_to(PACKAGE))][code.co_qualname] += 1

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(inputs), labels, reduction="none")

    with pv.privatize(model, optimizer, data, plan) as session:
        for number, step in enumerate(session.steps(), 1):
            step.accumulate(losses)
            step.update()
            # The trace begins here, so that it includes the charge and the sampling of the step.
            if number == step_number - 1:
                sys.setprofile(note)
            if number == step_number:
                sys.setprofile(None)
    return {file: dict(functions) for file, functions in calls.items()}


def by_function(calls: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the calls of each function, with those of comprehensions, generator expressions and lambdas within it."""
    merged: dict[str, dict[str, int]] = {}
    for file, codes in calls.items():
        functions: dict[str, int] = defaultdict(int)
        for name, count in codes.items():
            functions[_PARTS.sub("", name)] += count
        merged[file] = dict(functions)
    return merged


@click.command()
@click.option("--list", "lists", is_flag=True, help="Name every function.")
def main(lists: bool) -> None:
    """Print the number of functions and files of one warm step."""
    calls = traced()
    merged = by_function(calls)
    if lists:
        for file, functions in sorted(merged.items()):
            click.echo(f"{file} ({len(functions)})")
            for name, count in sorted(functions.items()):
                click.echo(f"    {count:4} {name}")
    num_calls = sum(sum(functions.values()) for functions in calls.values())
    click.echo(
        f"{sum(map(len, merged.values()))} functions in {len(merged)} files, {num_calls} calls "
        f"({sum(map(len, calls.values()))} code objects)"
    )


if __name__ == "__main__":
    main()
