"""``privet finetune``: adapters for a language model in a local folder, from private texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli import console

if TYPE_CHECKING:
    from privet.plan import Plan

_FILE = click.Path(exists=True, dir_okay=False)
_FOLDER = click.Path(exists=True, file_okay=False)


@console.command(
    "privet finetune letters.jsonl --model small --epsilon 3 --size 5000",
    "privet finetune qa.jsonl --model small --epsilon 3 --size 5000 --samples 3",
)
@click.argument("data", type=_FILE)
@click.option("--model", required=True, type=_FOLDER, help="Folder of a causal model of transformers, with tokenizer.")
@click.option("--epsilon", required=True, type=float, help="Target epsilon; a smaller value is a stronger guarantee.")
@click.option("--delta", type=float, help="Target delta; the default follows from --size.")
@click.option("--size", required=True, type=int, help="Approximate number of records; public.")
@click.option("--length", default=128, show_default=True, help="Declared tokens of a record; longer ones are cut.")
@click.option("--epochs", default=5, show_default=True, help="Passes over the records.")
@click.option("--batch-size", type=int, help="Mean number of records of a step; a tenth of --size by default.")
@click.option("--rank", default=8, show_default=True, help="Rank of the adapters.")
@click.option("--learning-rate", default=1e-3, show_default=True, help="Of AdamW.")
@click.option("--public", type=_FILE, help="Public texts: the perplexity before and after is printed.")
@click.option("--samples", "num_samples", default=0, help="How many texts to draw from the tuned model.")
@click.option("--prompt", default="", help="How the drawn texts begin.")
@click.option("-o", "--output", metavar="RUN", type=click.Path(), help="The run's folder; runs/NAME by default.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def finetune(
    data: str,
    model: str,
    epsilon: float,
    delta: float | None,
    size: int,
    length: int,
    epochs: int,
    batch_size: int | None,
    rank: int,
    learning_rate: float,
    public: str | None,
    num_samples: int,
    prompt: str,
    output: str | None,
    quiet: bool,
) -> int:
    """Tune adapters of a language model on DATA, a file of JSON lines.

    Each line is one record, and one unit of privacy: {"text": "..."}, or
    {"prompt": "...", "answer": "..."}, of which only the answer is learned. The
    adapters are saved in PEFT's format in RUN/model. The same command resumes.
    """
    promised = _plan(size=size, epsilon=epsilon, delta=delta, batch_size=batch_size, epochs=epochs)
    from privet.integrations.hugging_face import fine_tuning

    job = fine_tuning.FineTuning(model=Path(model), length=length, rank=rank, learning_rate=learning_rate)
    folder = Path(output or f"runs/{Path(data).name.split('.')[0]}")
    tuned = job.causal()
    known = None if public is None else fine_tuning.pairs_of(job, Path(public))
    before = None if known is None else fine_tuning.perplexity(tuned, known)
    spent = job.train(tuned, fine_tuning.pairs_of(job, Path(data)), promised, folder, quiet=quiet)
    click.echo(f"{'spent'.ljust(10)}{spent}")
    facts = {"adapters": str(folder / fine_tuning.ADAPTER_FOLDER)}
    if known is not None and before is not None:
        facts["public perplexity"] = f"{before:.4g} before, {fine_tuning.perplexity(tuned, known):.4g} after"
    console.show_facts(facts)
    if num_samples:
        for text in fine_tuning.samples(tuned, job.tokenizer(), prompt=prompt, number=num_samples, length=length):
            click.echo(text)
    console.remark(f"Next: privet report {folder}")
    return console.OK


def _plan(*, size: int, epsilon: float, delta: float | None, batch_size: int | None, epochs: int) -> Plan:
    """Return the plan, and print its guarantee before any record is read."""
    from privet.integrations.hugging_face.fine_tuning import plan_for
    from privet.runs.recipes.own_data_defaults import Promise, default_delta

    Promise(epsilon=epsilon, delta=delta, train_size=size)  # refuses sizes that no noise can hide in
    plan = plan_for(
        size=size, epsilon=epsilon, delta=default_delta(size) if delta is None else delta, batch_size=batch_size,
        epochs=epochs,
    )  # fmt: skip
    click.echo(console.fitted(f"{'promised'.ljust(10)}{plan.guarantee()}", sys.stdout, hang=10))
    return plan
