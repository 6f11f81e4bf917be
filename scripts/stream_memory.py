"""How much memory a run on a stream needs: ten times as many records, a kill in the middle, and the resumed run.

Every run is a process of its own, which stores the stream, trains, is killed by SIGKILL after half of its first epoch,
and is started again. What counts is the most memory that either process ever held (its resident set):

    python -m scripts.stream_memory            # about ten minutes on one core; writes results/streams/
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "results" / "streams"
SIZES, BATCHES = (100_000, 1_000_000), 100

PROGRAM = textwrap.dedent(
    """
    import os, resource, signal, sys
    import numpy as np, torch
    import privet as pv
    from privet.datasets import RecordStream

    size, batches, folder, dies = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])

    def records():
        rng = np.random.default_rng(0)
        for _ in range(size):
            x = torch.from_numpy(rng.standard_normal(16, dtype=np.float32))
            yield x, int(x[0] > 0)

    stream = RecordStream.stored(records(), folder=folder + "/stream")
    plan = pv.Plan(
        sampling=pv.sampling.BallsInBins(batches=batches, epochs=2, expected_batch_size=size / batches),
        clipping=pv.Threshold(norm=1.0), noise=pv.Gaussian(noise_multiplier=1.0), delta=1e-7,
        adjacency=pv.Adjacency.ADD_REMOVE, unit=pv.Unit.RECORD,
    )
    model = torch.nn.Linear(16, 2)
    session = pv.privatize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), stream, plan, folder=folder + "/run",
        performance=pv.Performance(physical_batch_size=256),
    )
    with session:
        for step in session.steps():
            step.accumulate(lambda x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
            if dies and step.index == batches // 2:
                print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print(session.ledger.charged_rounds)
    """
)


def memory_of_a_run(size: int, batches: int, folder: Path) -> tuple[int, int]:
    """Return the largest memory of a run that is killed and resumed, in KiB, and its charged rounds."""
    folder.mkdir()
    run = [sys.executable, "-c", PROGRAM, str(size), str(batches), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    killed = subprocess.run([*run, "1"], capture_output=True, text=True, env=environment, check=False)
    assert killed.returncode == -9, killed.stderr[-2000:]
    resumed = subprocess.run([*run, "0"], capture_output=True, text=True, env=environment, check=False)
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    most, rounds = resumed.stdout.split()
    return max(int(killed.stdout.split()[-1]), int(most)), int(rounds)


def main() -> None:
    """Measure both sizes and write the results."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            most, rounds = memory_of_a_run(size, BATCHES, Path(folder) / str(size))
            rows.append({"records": size, "most_memory_mib": round(most / 1024, 1), "charged_epochs": rounds})
            sys.stdout.write(f"{rows[-1]}\n")
    more = round(rows[-1]["most_memory_mib"] - rows[0]["most_memory_mib"], 1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    record = {"python": platform.python_version(), "system": platform.system(), "batches": BATCHES, "rows": rows}
    (FOLDER / "stream_memory.json").write_text(json.dumps({**record, "more_mib": more}, indent=1) + "\n")
    lines = "\n".join(f"| {row['records']:,} | {row['most_memory_mib']} | {row['charged_epochs']} |" for row in rows)
    text = f"""# Memory of a run on a stream

A stream of records with 16 numbers each, two epochs of random allocation to {BATCHES} batches, physical batches of 256.
The run is killed by SIGKILL after half of its first epoch and started again; the memory is the most that either process
held, with one thread and one arena of the allocator. An epoch that was broken off is charged, and the run goes on with
the next one. `python -m scripts.stream_memory` repeats it.

| records | most memory, MiB | charged epochs |
|---|---|---|
{lines}

Ten times as many records took {more} MiB more.
"""
    (FOLDER / "README.md").write_text(text)


if __name__ == "__main__":
    main()
