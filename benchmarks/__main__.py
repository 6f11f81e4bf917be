"""The command line of the benchmark: ``python -m benchmarks --help``."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

# The profiler, which measures memory here, logs every start and stop unless this is set before torch is loaded.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import click
import torch

from benchmarks.check import TOLERANCE
from benchmarks.clocks import clock_for
from benchmarks.contenders import OURS, Contender, Settings
from benchmarks.growth import axes, draw, grow
from benchmarks.machine import Precision, ceilings, environment, use_arena
from benchmarks.measure import Plan, check_only, measure
from benchmarks.models import WORKLOADS, Scale
from benchmarks.names import pick
from benchmarks.records import Record, Row, markdown
from benchmarks.rivals import RIVALS
from benchmarks.session import session, session_table

DEFAULT_ENGINE = "privet_bookkeeping"
CONTENDERS: dict[str, Contender] = {contender.name: contender for contender in (*OURS, *RIVALS)}

_models = click.option("--models", default=",".join(WORKLOADS), show_default=True, help="Short names, comma-separated.")
_contenders = click.option("--contenders", default=",".join(CONTENDERS), show_default=True, help="Short names.")
_device = click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
_scale = click.option(
    "--scale", type=click.Choice([scale.value for scale in Scale]), help="Default: the scale of the device."
)
_precision = click.option(
    "--precision", type=click.Choice([each.value for each in Precision]), help="Default: tf32 on cuda, else fp32."
)
_json = click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record here.")
_markdown = click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the table here.")


@click.group()
def main() -> None:
    """Measure the cost of a private step against plain training and other libraries."""


@main.command()
@_models
@_contenders
@_device
@_scale
@_precision
@click.option("--rounds", default=9, show_default=True, help="Timed rounds of every contender.")
@click.option("--budget", default=float("inf"), help="Seconds for all models together.")
@click.option("--threads", default=1, show_default=True, help="Processor threads; more than one uses elapsed time.")
@click.option("--batch", type=int, help="Examples per step instead of the model's own number.")
@click.option("--check-examples", default=16, show_default=True, help="Examples compared with the loop; 0 for none.")
@click.option("--accumulate", default=1, show_default=True, help="Also time steps of this many batches with one noise.")
@click.option("--gate", is_flag=True, help="End with an error if the default engine is below a model's floor.")
@_json
@_markdown
def run(
    models: str,
    contenders: str,
    device: str,
    scale: str | None,
    precision: str | None,
    rounds: int,
    budget: float,
    threads: int,
    batch: int | None,
    check_examples: int,
    accumulate: int,
    gate: bool,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Check and time contenders on models, interleaved, and print the table."""
    where = _prepare(device, threads)
    chosen = Precision(precision) if precision else _default_precision(where)
    entrants, workloads = pick("contender", CONTENDERS, contenders), pick("model", WORKLOADS, models)
    record = _describe(where, chosen, threads=threads, rounds=rounds, accumulate=accumulate)
    deadline = time.monotonic() + budget
    for place, workload in enumerate(workloads):
        size = workload.sizes[_scale_for(where, scale)]
        share = (deadline - time.monotonic()) / (len(workloads) - place)
        rows = measure(
            workload,
            size,
            entrants,
            device=where,
            settings=Settings(logical_batch=batch or size.batch_size, autocast=chosen.autocast),
            precision=chosen,
            clock=clock_for(where, num_threads=threads),
            plan=Plan(rounds=rounds, check_examples=check_examples, budget_seconds=share, accumulate=accumulate),
        )
        record = _with_rows(record, rows, json_file, markdown_file)
    if gate:
        _check_floors(record.rows)


@main.command()
@_models
@_contenders
@_device
@_scale
@click.option("--examples", default=16, show_default=True, help="Examples compared with the loop.")
@_json
def check(models: str, contenders: str, device: str, scale: str | None, examples: int, json_file: Path | None) -> None:
    """Compare clipped sums with a float64 loop; exit with an error if a sum of privet is wrong."""
    where = _prepare(device, 1)
    record = _describe(where, Precision.FP32, threads=1, rounds=0)
    for workload in pick("model", WORKLOADS, models):
        size = workload.sizes[_scale_for(where, scale)]
        chosen = pick("contender", CONTENDERS, contenders)
        rows = check_only(workload, size, chosen, device=where, num_examples=examples)
        for row in rows:
            click.echo(f"{row.model:10} {row.contender:20} {_verdict(row)}")
        record = replace(record, rows=(*record.rows, *rows))
    _save(record, json_file, None)
    wrong = [row for row in record.rows if row.role == "privet" and not row.failure and not row.is_right(TOLERANCE)]
    if wrong:
        raise click.ClickException(f"{len(wrong)} of privet's clipped sums are wrong.")


@main.command()
@_device
@_scale
@_precision
@click.option("--contenders", default=f"non_private,{DEFAULT_ENGINE}", show_default=True, help="Short names.")
@click.option("--axes", "axis_names", default="", help="Only these axes, comma-separated, for instance 'width'.")
@click.option("--rounds", default=5, show_default=True, help="Timed rounds at every point.")
@click.option("--budget", default=float("inf"), help="Seconds for all axes together.")
@click.option("--figure", type=click.Path(path_type=Path), help="Draw into this SVG or PNG file.")
@_json
@_markdown
def growth(
    device: str,
    scale: str | None,
    precision: str | None,
    contenders: str,
    axis_names: str,
    rounds: int,
    budget: float,
    figure: Path | None,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure throughput and memory as batch, sequence length and width grow."""
    where = _prepare(device, 1)
    chosen = Precision(precision) if precision else _default_precision(where)
    known = {axis.name: axis for axis in axes(_scale_for(where, scale))}
    record = _describe(where, chosen, threads=1, rounds=rounds)
    picked = pick("axis", known, axis_names or ",".join(known))
    deadline = time.monotonic() + budget
    for axis in picked:
        growing = grow(
            axis,
            pick("contender", CONTENDERS, contenders),
            device=where,
            precision=chosen,
            clock=clock_for(where, num_threads=1),
            plan=Plan(rounds=rounds, check_examples=0),
        )
        for rows in growing:
            record = _with_rows(record, rows, json_file, markdown_file)
            if time.monotonic() > deadline:
                click.echo(f"The time budget is used up: '{axis.name}' stops here.")
                break
    if figure is not None:
        draw(record, figure)
        click.echo(f"Figure: {figure}")


@main.command()
@click.argument("json_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def table(json_file: Path) -> None:
    """Print the table of a record."""
    click.echo(markdown(Record.from_json(json_file.read_text(encoding="utf-8"))))


def _verdict(row: Row) -> str:
    if row.failure:
        return f"failed: {row.failure}"
    if row.relative_error is None:
        return "nothing to compare"
    word = "right" if row.is_right(TOLERANCE) else "WRONG"
    return f"{word}, relative error {row.relative_error:.1e}, {row.missing_parameters} parameters missing"


def _prepare(device: str, threads: int) -> torch.device:
    # Rivals cause torch warnings in every step; printing them would count as their time.
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    return torch.device(device)


def _default_precision(device: torch.device) -> Precision:
    return Precision.TF32 if device.type == "cuda" else Precision.FP32


def _scale_for(device: torch.device, scale: str | None) -> Scale:
    if scale is not None:
        return Scale(scale)
    return Scale.ACCELERATOR if device.type == "cuda" else Scale.PROCESSOR


def _describe(device: torch.device, precision: Precision, *, threads: int, rounds: int, accumulate: int = 1) -> Record:
    about = environment(device, num_threads=threads) | {"keeps freed memory": use_arena()}
    with precision.applied():
        about["ceilings"] = {name: round(value, 3) for name, value in ceilings(device).items()}
    settings = {
        "precision": precision.value,
        "rounds": rounds,
        "batches per accumulated step": accumulate,
        "noise multiplier": 1.0,
        "optimizer": "plain SGD",
        "data": "normal images, Zipf token ids",
        "clock": type(clock_for(device, num_threads=threads)).__name__,
    }
    for key, value in (*about.items(), *settings.items()):
        click.echo(f"{key}: {json.dumps(value) if isinstance(value, dict) else value}")
    return Record(environment=about, settings=settings, rows=())


def _with_rows(record: Record, rows: tuple[Row, ...], json_file: Path | None, markdown_file: Path | None) -> Record:
    """Print the rows and save the extended record, so that a failure in the next model loses no rows."""
    grown = replace(record, rows=(*record.rows, *rows))
    _save(grown, json_file, markdown_file)
    click.echo(markdown(replace(record, environment={}, settings={}, rows=rows)))
    return grown


def _check_floors(rows: Sequence[Row]) -> None:
    judged = [row for row in rows if row.contender == DEFAULT_ENGINE]
    below = [row for row in judged if row.ratio is None or row.ratio < WORKLOADS[row.model].floor]
    if below or not judged:
        found = ", ".join(
            f"{row.model} {row.failure or row.ratio} (floor {WORKLOADS[row.model].floor})" for row in below
        )
        raise click.ClickException(f"Below the floor: {found or f'{DEFAULT_ENGINE} was not measured'}.")


def _save(record: Record, json_file: Path | None, markdown_file: Path | None) -> None:
    if json_file is not None:
        record.write(json_file)
    if markdown_file is not None:
        markdown_file.parent.mkdir(parents=True, exist_ok=True)
        markdown_file.write_text(markdown(record), encoding="utf-8")


main.add_command(session)
main.add_command(session_table)


if __name__ == "__main__":
    main()
