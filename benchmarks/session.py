"""What users see: whole sessions of privet beside plain training and other libraries, on public models.

    python -m benchmarks session --json runs/session.json --markdown runs/session.md
    python -m benchmarks session --models bert,lora --contenders non_private,session,opacus_ghost
    python -m benchmarks session-table runs/session.json

Each model has two processes. The first takes one step of the first session, as the first thing it does, and compares
clipped sums with a loop in float64. The second takes the first plain step, sets all contenders up, and times them in
turns. Processes of later models load their libraries while earlier ones measure.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.check import TOLERANCE
from benchmarks.machine import environment
from benchmarks.models import Scale
from benchmarks.names import pick
from benchmarks.public import CASES, Case
from benchmarks.records import Record, Row, with_ratios
from benchmarks.session_table import session_markdown
from benchmarks.session_worker import CONTENDERS
from benchmarks.workers import Worker, WorkerFailed, WorkerLate
from privet.durable import CACHE_VARIABLE, STATE_VARIABLE

_DEFAULT = (
    "non_private,session,session_eager,session_graph,session_random,"
    "opacus_hooks,opacus_ghost,opacus_ew,fastdp,fastdp_origin,opacus_functorch"
)
_PLAIN = "non_private"
_LIBRARIES = ("transformers", "torchvision", "peft", "opacus", "fastDP")
_GRACE = 20.0  # seconds after its limit that a process may take for the step it is in
_CHECK_SHARE = 0.4  # of a model's limit, for the first step and the comparison of sums


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of all models.

    Attributes:
        contenders: Short names, plain training first.
        rounds: Timed samples of each contender.
        seconds: Timed seconds of each contender in all.
        warm_up: Untimed steps after the first.
        check_examples: Examples of the comparison of sums; 0 for none.
        limit: Seconds of one model.
        workers_ahead: Processes that load their libraries while another one measures.
    """

    device: str
    scale: Scale
    threads: int
    contenders: tuple[str, ...]
    rounds: int
    seconds: float
    warm_up: int
    check_examples: int
    limit: float
    workers_ahead: int


@click.command()
@click.option("--models", default=",".join(CASES), show_default=True, help="Short names, comma-separated.")
@click.option("--contenders", default=_DEFAULT, show_default=True, help="Short names; plain training is always there.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option("--scale", type=click.Choice([scale.value for scale in Scale]), help="Default: the scale of the device.")
@click.option("--rounds", default=7, show_default=True, help="Timed rounds of every contender.")
@click.option("--seconds", default=1.0, show_default=True, help="Timed seconds of every contender.")
@click.option("--warm-up", default=8, show_default=True, help="Untimed steps after the first.")
@click.option("--threads", default=1, show_default=True, help="Processor threads.")
@click.option("--check-examples", default=6, show_default=True, help="Examples compared with the loop; 0 for none.")
@click.option("--limit-s", default=60.0, show_default=True, help="Seconds of one model; then its process is ended.")
@click.option("--total-s", default=float("inf"), help="Seconds of all models; models that do not fit are left out.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record here, after each model.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the tables here.")
def session(
    models: str,
    contenders: str,
    device: str,
    scale: str | None,
    rounds: int,
    seconds: float,
    warm_up: int,
    threads: int,
    check_examples: int,
    limit_s: float,
    total_s: float,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Time whole sessions beside plain training and other libraries, on public models."""
    end = time.monotonic() + total_s
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    is_gpu = device.startswith("cuda")
    cases = pick("model", CASES, models)
    options = Options(
        device=device,
        scale=Scale(scale) if scale else Scale.ACCELERATOR if is_gpu else Scale.PROCESSOR,
        threads=threads,
        contenders=tuple(dict.fromkeys([_PLAIN, *(each.name for each in pick("contender", CONTENDERS, contenders))])),
        rounds=rounds,
        seconds=seconds,
        warm_up=warm_up,
        check_examples=check_examples,
        limit=limit_s,
        # On a processor they would share the cores with what is measured.
        workers_ahead=min(4, (os.cpu_count() or 1) // 4) if is_gpu else 0,
    )
    record = Record(
        environment=environment(torch.device(device), num_threads=threads),
        settings=_settings(options, cases),
        rows=(),
    )
    with tempfile.TemporaryDirectory() as folder, _workers(cases, options, Path(folder)) as workers:
        for case in cases:
            if time.monotonic() + options.limit / 2 > end:
                click.echo(f"{case.name}: left out, the time of all models is used up")
                continue
            start = time.monotonic()
            rows = measure_case(case, options, workers)
            record = replace(record, rows=(*record.rows, *rows))
            _save(record, json_file, markdown_file)
            click.echo(f"{case.name}: {time.monotonic() - start:.0f} s")
            click.echo(session_markdown(replace(record, environment={}, settings={}, rows=rows)))


@click.command("session-table")
@click.argument("json_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def session_table(json_file: Path) -> None:
    """Print the tables of a record of sessions."""
    click.echo(session_markdown(Record.from_json(json_file.read_text(encoding="utf-8"))))


def _settings(options: Options, cases: Sequence[Case]) -> dict[str, Any]:
    missing = [library for library in _LIBRARIES if importlib.util.find_spec(library) is None]
    return {
        "rounds": options.rounds,
        "timed seconds": options.seconds,
        "optimizer": "plain SGD",
        "noise multiplier": 1.0,
        "data": "normal images, Zipf token ids, in device memory",
        "clock": "elapsed time between two moments at which the device is idle",
        "not importable on this machine": ", ".join(missing) or "nothing",
        "models": {case.name: case.workload.description for case in cases},
    }


class Workers:
    """The processes of all models, in the order in which they are needed; some of them are started early."""

    def __init__(self, cases: Sequence[Case], options: Options, folder: Path, stack: ExitStack) -> None:
        jobs = [(case, job) for case in cases for job in ("check", "time")]
        self._waiting, self._options, self._folder, self._stack = deque(jobs), options, folder, stack
        self._ready: dict[tuple[str, str], Worker] = {}

    def take(self, case: Case, job: str) -> Worker:
        """Return the process of a job, and start those that follow."""
        key = case.name, job
        while key not in self._ready:  # those of models that were left out are passed over
            self._start()
        while self._waiting and len(self._ready) <= self._options.workers_ahead:
            self._start()
        return self._ready.pop(key)

    def _start(self) -> None:
        case, job = self._waiting.popleft()
        options = self._options
        arguments = ["--model", case.name, "--device", options.device, "--scale", options.scale.value]
        arguments += ["--threads", str(options.threads)]
        # One folder of kernels and choices for each model, empty at first; all else outside any user's folders, too.
        kept = str(self._folder / case.name)
        chosen = {"TRITON_CACHE_DIR": kept, CACHE_VARIABLE: kept, "TMPDIR": str(self._folder)}
        chosen[STATE_VARIABLE] = str(self._folder / "state")
        worker = Worker("benchmarks.session_worker", arguments, environment=os.environ | chosen)
        self._ready[case.name, job] = self._stack.enter_context(worker)


@contextmanager
def _workers(cases: Sequence[Case], options: Options, folder: Path) -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers(cases, options, folder, stack)


def measure_case(case: Case, options: Options, workers: Workers) -> tuple[Row, ...]:
    """Return the rows of one model; a process that fails or is too slow leaves what it had found."""
    names, cold, checked = list(options.contenders), None, tuple[Row, ...]()
    sessions = [name for name in names if name.startswith("session")]
    with workers.take(case, "check") as worker:
        start = _ready(worker)
        if sessions:
            cold = _first_step(worker, sessions[0], options)
        if options.check_examples:
            command = {"do": "check", "contenders": names, "examples": options.check_examples}
            left = options.limit * _CHECK_SHARE - (time.monotonic() - start)
            checked, _ = _rows(worker, command, left)
        left = options.limit - (time.monotonic() - start)
    command = {
        "do": "time", "contenders": names, "rounds": options.rounds, "seconds": options.seconds,
        "warm_up": options.warm_up, "budget": left,
    }  # fmt: skip
    with workers.take(case, "time") as worker:
        _ready(worker)
        timed, failure = _rows(worker, command, left + _GRACE)
    timed = timed or tuple(_empty(case, name, options) for name in names)
    found = {row.contender: row for row in checked}
    rows = [_joined(row, found.get(row.contender), failure) for row in timed]
    rows = [replace(row, cold_seconds=cold) if sessions and row.contender == sessions[0] else row for row in rows]
    rows = [replace(row, cold_seconds=row.first_step_seconds) if row.contender == _PLAIN else row for row in rows]
    return with_ratios([replace(row, model=case.name) for row in rows], tolerance=TOLERANCE)


def _ready(worker: Worker) -> float:
    """Return the time at which a process is ready, or has failed: loading libraries counts for no limit."""
    with suppress(WorkerFailed):  # it fails again, with the reason, at the first command
        worker.wait()
    return time.monotonic()


def _first_step(worker: Worker, contender: str, options: Options) -> float | None:
    command = {"do": "first step", "contender": contender}
    try:
        found: float | None = worker.ask(command, options.limit * _CHECK_SHARE)["seconds"]
    except WorkerFailed:  # the same session fails again where it is timed, and gives the reason there
        return None
    return found


def _rows(worker: Worker, command: dict[str, Any], seconds: float) -> tuple[tuple[Row, ...], str]:
    """Return the newest rows that a process sent, and why they are not the last."""
    rows: tuple[Row, ...] = ()
    end = time.monotonic() + max(seconds, 0.0)
    try:
        worker.tell(command)
        while True:
            answer = worker.answer(max(0.0, end - time.monotonic()))
            rows = tuple(Row(**{**row, "seconds": tuple(row["seconds"])}) for row in answer["rows"])
            if answer["is_last"]:
                return rows, ""
    except WorkerLate:
        return rows, "TimeoutError: the process was ended at the limit of a model's time"
    except WorkerFailed as error:
        return rows, str(error)


def _joined(timed: Row, checked: Row | None, failure: str) -> Row:
    """Put the comparison of sums into a timed row; a contender without times has failed with its process."""
    if not timed.seconds and not timed.failure:
        timed = replace(timed, failure=" ".join(failure.split())[-300:] or "no time was measured")
    if checked is None:
        return timed
    remarks = timed.remarks
    if checked.failure and checked.failure != timed.failure:
        remarks = f"{remarks} Its sum was not compared: {checked.failure}".strip()
    return replace(
        timed,
        relative_error=checked.relative_error,
        missing_parameters=checked.missing_parameters,
        plain_error=checked.plain_error,
        remarks=remarks,
    )


def _empty(case: Case, name: str, options: Options) -> Row:
    contender = CONTENDERS[name]
    return Row(
        model=case.name,
        contender=name,
        role=contender.role.value,
        option=contender.option.value,
        batch_size=case.workload.sizes[options.scale].batch_size,
        noise_dtype=contender.noise_dtype,
    )


def _save(record: Record, json_file: Path | None, markdown_file: Path | None) -> None:
    if json_file is not None:
        record.write(json_file)
    if markdown_file is not None:
        markdown_file.parent.mkdir(parents=True, exist_ok=True)
        markdown_file.write_text(session_markdown(record), encoding="utf-8")
