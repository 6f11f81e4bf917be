"""What works without file locks, as on Windows, and without double precision, as on Apple's devices."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import privet as pv
from privet.gradients.engines import holding

WITHOUT_LOCKS = "import sys; sys.modules['fcntl'] = None\n"
COMMAND = (
    WITHOUT_LOCKS + "from privet.cli.console import run; from privet.cli.main import privet; sys.exit(run(privet, {}))"
)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


def test_without_file_locks_plans_are_made_and_accounted() -> None:
    plan = "privet.Plan.dpsgd(dataset_size=1000, batch_size=100, epochs=1, epsilon=3.0, delta=1e-5)"
    result = python(f"{WITHOUT_LOCKS}import privet; print({plan}.guarantee())")
    assert "add-or-remove one record" in result.stdout, result.stderr
    assert "-DP" in python(COMMAND.format(["plan", "demo"])).stdout
    numbers = ["--rate", "0.01", "--steps", "100", "--noise-multiplier", "1", "--delta", "1e-5"]
    assert "-DP" in python(COMMAND.format(["account", *numbers])).stdout


def test_without_file_locks_training_is_refused_with_the_remedy() -> None:
    result = python(COMMAND.format(["train", "demo", "-o", "runs/demo"]))
    assert result.returncode == 1
    assert "Windows Subsystem for Linux" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


class NoDoubles(TorchDispatchMode):
    """Refuses doubles as a device that has none would; files that work on the processor by design may use them."""

    ON_THE_PROCESSOR = ("training/preflight/made_up.py", "training/randomness.py")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float64:
                files = [frame.filename for frame in traceback.extract_stack() if "/privet/" in frame.filename]
                assert files[-1].endswith(self.ON_THE_PROCESSOR), f"{func} makes doubles in {files[-1]}"
        return found


def test_a_private_step_needs_no_doubles_where_the_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(100, 1, 8, 8)
    data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0, 0, 0] > 0).long())
    layers = torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.ReLU(), torch.nn.Flatten()
    model = torch.nn.Sequential(*layers, torch.nn.Linear(144, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = pv.Plan.dpsgd(dataset_size=100, batch_size=30, steps=3, noise_multiplier=1.0, delta=1e-3)

    def train() -> None:
        with NoDoubles(), pv.privatize(model, optimizer, data, plan) as private:
            for step in private.steps():
                step.accumulate(lambda x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
                step.update()

    with pytest.raises(AssertionError, match="makes doubles"):
        train()
    assert holding.widest(torch.device("mps")) is torch.float32
    monkeypatch.setattr(holding, "widest", lambda device: torch.float32)
    train()
