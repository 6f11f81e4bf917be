from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.workers import Worker, WorkerFailed, WorkerLate

PROGRAM = """
import sys, time
from benchmarks.workers import serve

def handle(command, send):
    print("noise of a library")
    if command["do"] == "fail":
        raise RuntimeError("out of luck")
    if command["do"] == "sleep":
        time.sleep(60)
    for number in range(command["times"]):
        send({"number": number})

serve(handle)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    (tmp_path / "chatty.py").write_text(PROGRAM, encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with Worker("chatty", [], environment=os.environ | {"PYTHONPATH": paths}) as started:
        yield started


def test_answers_come_in_order_and_what_is_printed_is_not_among_them(worker: Worker) -> None:
    assert worker.ask({"do": "count", "times": 2}) == {"number": 0}
    assert worker.answer() == {"number": 1}
    assert worker.ask({"do": "count", "times": 1}) == {"number": 0}


def test_a_process_that_ends_leaves_its_reason_and_takes_no_more_commands(worker: Worker) -> None:
    with pytest.raises(WorkerFailed, match=r"(?s)status 1.*out of luck"):
        worker.ask({"do": "fail"})
    with pytest.raises(WorkerFailed):
        worker.ask({"do": "count", "times": 1})


def test_a_process_that_does_not_answer_in_time_is_given_up(worker: Worker) -> None:
    with pytest.raises(WorkerLate, match="No answer within 0 s"):
        worker.ask({"do": "sleep"}, seconds=0.1)
