"""LoRA on a decoder through the Trainer of transformers: speed and memory, beside the own loop and plain training.

    python -m benchmarks.trainer --rounds 3 --json-file runs/trainer.json

Each way has a process of its own, which loads the model, trains, and trains on for a while whenever it is told to; the
processes take turns. Memory is the most that the allocator held: from the start, first steps included, and after them.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

import privet as pv
from benchmarks.contenders import Contender, Settings
from benchmarks.machine import environment
from benchmarks.models import Batch
from benchmarks.pairs import now
from benchmarks.public import Logits
from benchmarks.rivals import RIVALS, AccumulationNotSupported
from benchmarks.workers import Send, Worker, WorkerFailed, serve

_NUM_STEPS = 100_000  # of the plan: more than any measurement takes
_LARGE = {
    "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "pad_token_id": 0,
}  # fmt: skip
_TINY = _LARGE | {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
_RIVALS: dict[str, Contender] = {rival.name: rival for rival in RIVALS}
_PLAIN = "trainer_without_privacy"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained.

    Attributes:
        weights: Type of the frozen weights; matrix products are in bfloat16 in any case.
        targets: Layers with adapters, or all linear ones.
        rank: Of the adapters.
        length: Tokens of a text.
        physical: Texts that go through the model at once.
        logical: Texts of an update.
        warm_up: Steps before anything is timed.
        is_tiny: Two narrow layers, to try the program.
    """

    weights: str
    targets: str
    rank: int = 16
    length: int = 256
    physical: int = 16
    logical: int = 64
    warm_up: int = 4
    is_tiny: bool = False

    def model(self, device: torch.device) -> Any:
        """Return the decoder with adapters."""
        import peft
        import transformers

        torch.manual_seed(0)
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[self.weights]
        config = transformers.LlamaConfig(**(_TINY if self.is_tiny else _LARGE))
        with device:
            base = transformers.LlamaForCausalLM(config).to(dtype)
        targets = "all-linear" if self.targets == "all" else self.targets.split("+")
        return peft.get_peft_model(
            base,
            peft.LoraConfig(task_type="CAUSAL_LM", r=self.rank, lora_alpha=2 * self.rank, target_modules=targets),
        )

    def texts(self) -> Tensor:
        """Return the tokens of the texts of one update."""
        config = _TINY if self.is_tiny else _LARGE
        return torch.randint(1, int(config["vocab_size"]), (self.logical, self.length))

    def plan(self) -> pv.Plan:
        """Return a plan in which every text is in every batch."""
        return pv.Plan(
            sampling=pv.Poisson(rate=1.0, steps=_NUM_STEPS, expected_batch_size=float(self.logical)),
            clipping=pv.Threshold(norm=1.0), noise=pv.Gaussian(noise_multiplier=1.0), delta=1e-5,
            adjacency=pv.Adjacency.ADD_REMOVE, unit=pv.Unit.RECORD,
        )  # fmt: skip

    def arguments(self, device: torch.device, *, is_private: bool) -> Any:
        """Return the arguments of a trainer."""
        import transformers

        return transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=self.physical, learning_rate=1e-4, bf16=True,
            gradient_accumulation_steps=1 if is_private else self.logical // self.physical, max_steps=_NUM_STEPS,
            report_to="none", logging_strategy="no", save_strategy="no", disable_tqdm=True,
            use_cpu=device.type == "cpu",
        )  # fmt: skip


Pause = Callable[[], None]


def _train(job: Job, device: torch.device, pause: Pause, *, is_private: bool) -> None:
    """Train with a Trainer; ``pause`` is called after each step."""
    import transformers

    class Pausing(transformers.TrainerCallback):  # type: ignore[misc] # transformers has no types here
        def on_step_end(self, *given: Any, **named: Any) -> None:
            pause()

    rows = [{"input_ids": row, "labels": row} for row in job.texts()]
    given = {"model": job.model(device), "args": job.arguments(device, is_private=is_private), "callbacks": [Pausing]}
    if is_private:
        private = pv.integrations.PrivateRun(plan=job.plan())
        trainer = pv.integrations.PrivateTrainer(**given, train_dataset=rows, private=private)
    else:
        trainer = transformers.Trainer(**given, train_dataset=rows)
    trainer.train()


def _train_in_own_loop(job: Job, device: torch.device, pause: Pause) -> None:
    model, rows = job.model(device).train(), job.texts()
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-4)

    def losses(texts: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(input_ids=texts).logits.float()
        following = nn.functional.pad(texts[:, 1:], (0, 1), value=-100)
        each = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none")
        return each.view_as(texts).sum(1) / (texts.shape[1] - 1)

    performance = pv.Performance(physical_batch_size=job.physical)
    data = torch.utils.data.TensorDataset(rows)
    with (
        tempfile.TemporaryDirectory() as folder,
        pv.privatize(model, optimizer, data, job.plan(), performance=performance, folder=folder) as session,
    ):
        for step in session.steps():
            step.accumulate(losses)
            step.update()
            pause()


def _train_with_rival(job: Job, device: torch.device, pause: Pause, rival: Contender) -> None:
    """Train without autocast, which rivals' rules refuse; one that cannot accumulate gets all texts at once."""
    texts = job.texts().to(device)
    parts: list[Batch] = [(part[:, :-1], part[:, 1:]) for part in texts.split(job.physical)]
    model = Logits(job.model(device)).train()
    running = rival.setup(model, Settings(logical_batch=job.logical))
    try:
        running.step(parts)
    except AccumulationNotSupported:
        parts = [(texts[:, :-1], texts[:, 1:])]
    for _ in range(_NUM_STEPS):
        running.step(parts)
        pause()


class Slices:
    """Trains in one way, in a thread of its own that waits between slices of time."""

    def __init__(self, way: str, job: Job, device: torch.device) -> None:
        self._device, self._is_warm, self._job = device, False, job
        self._go, self._done = queue.Queue[None](), queue.Queue[BaseException | None]()
        runs: dict[str, Callable[[], None]] = {
            "trainer": lambda: _train(job, device, self._pause, is_private=True),
            _PLAIN: lambda: _train(job, device, self._pause, is_private=False),
            "own_loop": lambda: _train_in_own_loop(job, device, self._pause),
        }
        run = runs.get(way) or (lambda: _train_with_rival(job, device, self._pause, _RIVALS[way]))
        self._thread = threading.Thread(target=self._guarded, args=(run,), daemon=True)

    def _guarded(self, run: Callable[[], None]) -> None:
        self._go.get()
        try:
            run()
        except BaseException as error:  # noqa: BLE001 -- it is told to who waits
            self._done.put(error)

    def _pause(self) -> None:
        self._done.put(None)
        self._go.get()

    def _step(self) -> float:
        start = now(self._device)
        self._go.put(None)
        error = self._done.get()
        if error is not None:
            raise error
        return now(self._device) - start

    def handle(self, command: dict[str, Any], send: Send) -> None:
        """Answer with the seconds of warm steps and the memory held at most, in GiB."""
        answer: dict[str, Any] = {}
        if not self._is_warm:
            self._thread.start()
            answer["first_steps"] = [self._step() for _ in range(self._job.warm_up)]
            self._is_warm, answer["from_start"] = True, _peak(self._device)
        times: list[float] = []
        while sum(times) < command["seconds"]:
            times.append(self._step())
        answer |= {"seconds": statistics.median(times) if times else None, "steps": len(times)}
        send(answer | {"after": _peak(self._device)})


def _peak(device: torch.device) -> dict[str, float]:
    """Return the most that was held since the last call, and count anew."""
    if device.type != "cuda":
        return {}
    found = {
        "allocated": torch.cuda.max_memory_allocated(device) / 2**30,
        "reserved": torch.cuda.max_memory_reserved(device) / 2**30,
    }
    torch.cuda.reset_peak_memory_stats(device)
    return found


def _measured(ways: list[str], arguments: list[str], *, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Let the ways take turns; yield all that is known after every round."""
    told: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        workers = {
            way: stack.enter_context(
                Worker("benchmarks.trainer", ["--alone", way, *arguments], environment=dict(os.environ))
            )
            for way in ways
        }
        for number in range(rounds + 1):
            order = ways if number % 2 else ways[::-1]
            for way in [way for way in order if way not in failed]:
                try:
                    told[way].append(workers[way].ask({"seconds": seconds if number else 0.0}))
                except WorkerFailed as error:
                    failed[way] = str(error)[-1500:]
            yield {"failed": failed, "ways": {way: _row(told[way]) for way in ways if told[way]}}


def _row(answers: list[dict[str, Any]]) -> dict[str, Any]:
    timed = [answer["seconds"] for answer in answers[1:]]
    return {
        "seconds": timed, "first_steps": answers[0]["first_steps"], "from_start_gib": answers[0]["from_start"],
        "after_gib": answers[-1]["after"],
    }  # fmt: skip


def _ratios(ways: dict[str, Any]) -> dict[str, Any]:
    """Return speeds over plain training round by round, and memory over it."""
    plain = ways.get(_PLAIN)
    if plain is None or not plain["seconds"]:
        return {}
    found: dict[str, Any] = {}
    for way, row in ways.items():
        pairs = list(zip(plain["seconds"], row["seconds"], strict=False))
        found[way] = {
            "speed_over_plain": statistics.median([theirs / mine for theirs, mine in pairs]) if pairs else None
        }
        for span in ("from_start_gib", "after_gib"):
            shares = {kind: row[span][kind] / plain[span][kind] for kind in row[span] if plain[span].get(kind)}
            found[way][span.replace("gib", "over_plain")] = shares
    if {"trainer", "own_loop"} <= ways.keys():
        pairs = zip(ways["own_loop"]["seconds"], ways["trainer"]["seconds"], strict=False)
        found["trainer_over_own_loop_speed"] = [own / trainer for own, trainer in pairs]
    return found


@click.command()
@click.option("--ways", default=f"trainer,own_loop,{_PLAIN}", show_default=True, help="Also names of rivals.")
@click.option("--weights", type=click.Choice(["bf16", "fp32"]), default="bf16", show_default=True)
@click.option("--targets", default="q_proj+v_proj", show_default=True, help="Layers with adapters, or all.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option("--rounds", default=3, show_default=True, help="Timed turns of each way.")
@click.option("--seconds", default=4.0, show_default=True, help="Timed seconds of a turn.")
@click.option("--tiny", is_flag=True, help="A small model, to try the program.")
@click.option("--json-file", type=click.Path(path_type=Path), help="Write here, after every round.")
@click.option("--alone", hidden=True, help="Answer commands in this process.")
def main(
    ways: str, weights: str, targets: str, device: str, rounds: int, seconds: float, tiny: bool,
    json_file: Path | None, alone: str | None,
) -> None:  # fmt: skip
    """Print the speed of the Trainer with privacy over the own loop, and its memory over that without privacy."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    small = {"length": 16, "physical": 2, "logical": 4, "rank": 2} if tiny else {}
    job = Job(weights=weights, targets=targets, is_tiny=tiny, **small)
    if alone is not None:
        warnings.simplefilter("ignore")
        serve(Slices(alone, job, torch.device(device)).handle)
        return
    arguments = ["--weights", weights, "--targets", targets, "--device", device, *(["--tiny"] if tiny else [])]
    facts = {
        "settings": asdict(job),
        "environment": environment(torch.device(device), num_threads=torch.get_num_threads()),
    }
    for found in _measured(ways.split(","), arguments, rounds=rounds, seconds=seconds):
        record = facts | found | {"ratios": _ratios(found["ways"])}
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(record["ratios"], indent=1))


if __name__ == "__main__":
    main()
