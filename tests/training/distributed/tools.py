"""Several processes of one test, which meet over gloo on this machine."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import distributed

Job = Callable[..., Any]
# One server imports torch and this library; the processes of all tests are its forks.
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = ["pytest", "scipy.special", "privet.training.start", "tests.training.tools"]
# FSDP2 imports torch's compiler, which takes seconds.
_CONTEXT.set_forkserver_preload([*_PRELOADED, "torch._dynamo", "torch.distributed.fsdp"])


def _work(job: Job, rank: int, size: int, folder: Path, seconds: float, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(WORLD_SIZE=str(size), RANK=str(rank), LOCAL_RANK=str(rank))
    try:
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
        )
        result = {"result": job(rank, size, *arguments)}
    except BaseException as error:  # noqa: BLE001 -- it is told to the test
        result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    (folder / f"{rank}.json").write_text(json.dumps(result))
    os._exit(0)  # other ranks may be gone: waiting for them in an orderly end takes the whole time-out


def launch(job: Job, size: int, *arguments: Any, seconds: float = 60.0) -> list[dict[str, Any]]:
    """Run ``job(rank, size, *arguments)`` in so many processes; return what each of them returned or raised.

    A process that was killed has an empty dictionary.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = [
            _CONTEXT.Process(target=_work, args=(job, rank, size, folder, seconds, arguments)) for rank in range(size)
        ]
        # the server finds modules where this process does, and not only where they are installed
        with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
            for process in started:
                process.start()
        for process in started:
            process.join(timeout=10 * seconds)
            assert process.exitcode is not None, "a rank hangs"
        files = [folder / f"{rank}.json" for rank in range(size)]
        return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def results(job: Job, size: int, *arguments: Any, seconds: float = 60.0) -> list[Any]:
    """Run a job in several processes, none of which may fail; return their results."""
    found = launch(job, size, *arguments, seconds=seconds)
    for rank, each in enumerate(found):
        assert "result" in each, f"rank {rank}: {each.get('trace', 'it was killed')}"
    return [each["result"] for each in found]
