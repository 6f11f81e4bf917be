from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from privet.accounting.ledger import Ledger

# The weights fill more than one page of the watch, so that its last look would make new tensors.
PROGRAM = """
import sys
import torch
import privet as pv

model = torch.nn.Sequential(torch.nn.Linear(20, 14_000), torch.nn.ReLU(), torch.nn.Linear(14_000, 2))
data = torch.utils.data.TensorDataset(torch.randn(50, 20), torch.randint(0, 2, (50,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plan = pv.Plan.dpsgd(dataset_size=50, batch_size=5, epochs=3, epsilon=3.0, delta=1e-3)


def steps():
    with pv.privatize(model, optimizer, data, plan, folder=sys.argv[1]) as session:
        for step in session.steps():
            step.accumulate(lambda x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
            yield


forgotten = steps()
next(forgotten)
next(forgotten)
print("done")
"""


def test_a_program_that_forgets_a_session_in_a_generator_ends_quietly_and_its_steps_stay_charged(
    tmp_path: Path,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")], capture_output=True, text=True, check=False, timeout=300
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").charged_rounds >= 2
