"""Write results/isolation/architectures.md: prove every architecture of the table, and list the verdicts.

Usage: HF_HUB_OFFLINE=1 python -m scripts.architectures_table [--only NAME ...] [--workers N] [--output FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

# Before anything imports transformers: nothing is downloaded.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor, nn

from privet.isolation.prove import prove
from tests.isolation.architecture import Architecture
from tests.isolation.architectures import ARCHITECTURES
from tests.isolation.architectures_moving import MOVING

ROOT = Path(__file__).resolve().parents[1]
_NUM = 4
_PACKAGES = ("torch", "transformers", "peft", "diffusers")
_HEAD = """# Architectures that are proven to keep their examples apart

Written by `HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 python -m scripts.architectures_table`; do not edit by hand. Each model
is small and has random weights; it runs in training mode with its dropout on, on a batch of {num} examples with padding
where there is padding, and with one loss per example. *Proven* means: every operation has a rule that says where the
examples lie afterwards, no number of theirs is read into Python unless a named rule allows it, and nothing depends on
how many examples there are. Seconds are those of the whole proof, at two sizes, with the forward passes in it.

{versions}

"""
_BERT = """## BERT-base

Real size, 8 sequences of 128 tokens, training mode, {threads} threads: a plain forward pass takes {plain:.2f} s, one
that is followed {followed:.2f} s, and the whole proof at two sizes {proof:.2f} s ({operations} operations); best of
three. The same program with a width of 48, where following it is all that counts: {small_plain:.3f} s and
{small_followed:.3f} s.
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result for one architecture."""

    name: str
    doubts: tuple[str, ...]
    operations: int
    seconds: float


def outcome_of(row: Architecture) -> Outcome:
    """Prove one architecture."""
    torch.manual_seed(0)
    _, make_batch, loss = row.build()
    batch = make_batch(_NUM)
    begin = time.perf_counter()
    found = prove(loss, batch)
    seconds = time.perf_counter() - begin
    return Outcome(name=row.name, doubts=found.doubts, operations=found.num_operations, seconds=seconds)


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def _bert(**settings: int) -> tuple[Callable[[dict[str, Tensor]], Tensor], dict[str, Tensor]]:
    import transformers

    model = transformers.BertForSequenceClassification(transformers.BertConfig(**settings)).train()
    ids = torch.randint(5, 100, (8, 128))
    mask = (torch.arange(128)[None, :] < torch.arange(128, 64, -8)[:, None]).long()

    def loss(batch: dict[str, Tensor]) -> Tensor:
        scores = model(input_ids=batch["ids"], attention_mask=batch["mask"]).logits
        return nn.functional.cross_entropy(scores, batch["labels"], reduction="none")

    return loss, {"ids": ids, "mask": mask, "labels": torch.randint(0, 2, (8,))}


def bert_base() -> str:
    """Measure the proof of BERT-base."""
    from privet.isolation.prove import follow

    loss, batch = _bert()
    plain, followed = _best(lambda: loss(batch)), _best(lambda: follow(loss, batch))
    found, proof = prove(loss, batch), _best(lambda: prove(loss, batch))
    small, small_batch = _bert(hidden_size=48, intermediate_size=32, vocab_size=100)
    return _BERT.format(
        threads=torch.get_num_threads(), plain=plain, followed=followed, proof=proof, operations=found.num_operations,
        small_plain=_best(lambda: small(small_batch)), small_followed=_best(lambda: follow(small, small_batch)),
    )  # fmt: skip


def _table(rows: Sequence[Outcome]) -> str:
    lines = ["| architecture | verdict | operations | seconds |", "|---|---|---|---|"]
    for row in rows:
        verdict = "proven" if not row.doubts else "; ".join(dict.fromkeys(row.doubts)).replace("|", "/")
        lines.append(f"| {row.name} | {verdict} | {row.operations:,} | {row.seconds:.2f} |")
    return "\n".join(lines) + "\n"


def _versions() -> str:
    found = [f"{name} {version(name)}" for name in _PACKAGES if importlib.util.find_spec(name)]
    return f"Python {platform.python_version()}, {', '.join(found)}."


def _outcomes(rows: Sequence[Architecture], workers: int) -> list[Outcome]:
    if workers == 1:
        return [outcome_of(row) for row in rows]
    with ProcessPoolExecutor(workers, get_context("fork"), torch.set_num_threads, (1,)) as pool:
        return list(pool.map(_outcome_of, [row.name for row in rows]))


def _outcome_of(name: str) -> Outcome:
    # by name, since models are built by functions that cannot be sent to another process
    return outcome_of(next(row for row in (*ARCHITECTURES.values(), *MOVING) if row.name == name))


def main() -> None:
    """Run all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="names of architectures")
    parser.add_argument("--workers", type=int, default=1, help="processes that prove at the same time, a thread each")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "isolation" / "architectures.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of the libraries
    logging.disable(logging.WARNING)

    def wanted(row: Architecture) -> bool:
        return (not given.only or row.name in given.only) and all(map(importlib.util.find_spec, row.needs))

    proven = _outcomes([row for row in ARCHITECTURES.values() if wanted(row)], given.workers)
    others = _outcomes([row for row in MOVING if wanted(row)], given.workers)
    num = sum(not row.doubts for row in proven)
    text = _HEAD.format(num=_NUM, versions=_versions())
    text += f"## {num} of {len(proven)} proven\n\n{_table(proven)}\n"
    text += f"## Those that mix their examples, move them by number or read them\n\n{_table(others)}\n"
    if not given.only and importlib.util.find_spec("transformers"):
        text += bert_base()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(text, encoding="utf-8")
    print(f"{num} of {len(proven)} proven; see {given.output}")


if __name__ == "__main__":
    main()
