"""transformers' Trainer with private steps: the weights, the ledger and the files are those of privet's own loop."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import TrainerCallback

import privet as pv
from privet.accounting.ledger import Ledger
from privet.errors import CheckpointError, DataError, LedgerError, LoopError
from privet.integrations import PrivateTrainer
from tests.integrations.tiny import (
    arguments,
    decoder,
    encoder,
    losses_one_by_one,
    plan,
    run,
    same_weights,
    texts,
    trained_by_hand,
)


def trainer_of(output: Path, model: Any, *, data: Any = None, private: Any = None, **settings: Any) -> PrivateTrainer:
    return PrivateTrainer(
        model=model,
        args=arguments(output, **settings),
        train_dataset=texts() if data is None else data,
        private=private or run(),
    )


class Stop(TrainerCallback):
    """Stops training as a crash would: with an error, or as a callback may."""

    def __init__(self, at: int, error: type[BaseException] | None) -> None:
        self.at, self.error = at, error

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step == self.at:
            if self.error is not None:
                raise self.error
            control.should_training_stop = True


def test_weights_are_bit_for_bit_those_of_the_own_loop(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, decoder())
    output = trainer.train()
    by_hand = decoder()
    session = trained_by_hand(by_hand, texts(), run())
    assert same_weights(trainer.model, by_hand)
    assert not same_weights(by_hand, decoder())
    assert output.global_step == trainer.state.global_step == 6
    assert trainer.guarantee().epsilon == session.guarantee().epsilon == run().plan.guarantee().epsilon


def test_weights_are_those_of_the_own_loop_under_the_same_autocast(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, decoder(dtype=torch.float32), bf16=True)
    trainer.train()
    by_hand = decoder(dtype=torch.float32)
    autocast = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    trained_by_hand(by_hand, texts(), run(), context=autocast)
    assert same_weights(trainer.model, by_hand)
    plain = decoder(dtype=torch.float32)
    trained_by_hand(plain, texts(), run())
    assert not same_weights(plain, by_hand)


@pytest.mark.parametrize("batch_size", [0.02, 8.0])
def test_the_ledger_equals_the_plan_also_where_batches_are_empty(tmp_path: Path, batch_size: float) -> None:
    private = run(plan=plan(batch_size=batch_size))
    trainer = trainer_of(tmp_path, decoder(), private=private)
    before = decoder()
    trainer.train()
    ledger = Ledger.open(tmp_path / "privet" / "ledger.jsonl", plan_hash=private.plan.hash)
    assert ledger.charged_rounds == private.plan.num_rounds
    ledger.close()
    assert not same_weights(trainer.model, before)  # an empty batch releases noise
    by_hand = decoder()
    trained_by_hand(by_hand, texts(), private)
    assert same_weights(trainer.model, by_hand)


def test_checkpointed_activations_change_no_weight(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, decoder(), activation_checkpointing=True)
    trainer.train()
    assert trainer.model.is_activation_checkpointing
    by_hand = decoder()
    trained_by_hand(by_hand, texts(), run())
    assert same_weights(trainer.model, by_hand)


def test_a_run_goes_on_from_the_trainers_checkpoint_and_lost_steps_stay_paid_for(tmp_path: Path) -> None:
    private = run(seed=None)
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    first = trainer_of(tmp_path, decoder(dtype=torch.float32), private=private, **settings)
    first.add_callback(Stop(3, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    at_two = first.session.plan.hash  # type: ignore[union-attr]
    second = trainer_of(tmp_path, decoder(seed=9, dtype=torch.float32), private=private, **settings)
    seen: list[int] = []

    class Look(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            seen.append(state.global_step)

    second.add_callback(Look)
    output = second.train(resume_from_checkpoint=True)
    assert seen == [3, 4, 5]  # step 2 was charged after the checkpoint, and is lost
    assert output.global_step == 6
    assert second.session.plan.hash == at_two  # type: ignore[union-attr]
    assert second.session.steps_taken == 5  # type: ignore[union-attr]
    assert second.guarantee().epsilon == private.plan.guarantee().epsilon
    assert second.lr_scheduler.last_epoch == 6


def test_a_run_stopped_before_its_first_checkpoint_goes_on_from_that_of_its_session(tmp_path: Path) -> None:
    private = run(seed=None)
    first = trainer_of(tmp_path, decoder(dtype=torch.float32), private=private)  # no checkpoints of the trainer
    first.add_callback(Stop(3, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    stopped = first.model.state_dict()
    second = trainer_of(tmp_path, decoder(seed=9, dtype=torch.float32), private=private)
    found: dict[str, Any] = {}

    class Look(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            found.update({name: value.clone() for name, value in second.model.state_dict().items()})

    second.add_callback(Look)
    assert second.train(resume_from_checkpoint=True).global_step == 6
    assert all(torch.equal(found[name], stopped[name]) for name in stopped)
    assert second.session.steps_taken == 6  # type: ignore[union-attr] # nothing was lost
    assert second.guarantee().epsilon == private.plan.guarantee().epsilon


def test_a_resumed_run_skips_no_batch_and_charges_none_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = run(seed=None, plan=plan(steps=10))  # epochs of five steps
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "ignore_data_skip": False}
    summed: list[int] = []
    sum_one = PrivateTrainer.training_step

    def noted(self: PrivateTrainer, model: Any, step: Any, *given: Any) -> Any:
        summed.append(step.index)
        return sum_one(self, model, step, *given)

    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError("transformers skips batches")

    monkeypatch.setattr(PrivateTrainer, "training_step", noted)
    monkeypatch.setattr("transformers.trainer.skip_first_batches", refuse)
    first = trainer_of(tmp_path, decoder(dtype=torch.float32), private=private, **settings)
    first.add_callback(Stop(4, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = trainer_of(tmp_path, decoder(dtype=torch.float32), private=private, **settings)
    second.train(resume_from_checkpoint=True)
    assert summed == list(range(10))
    ledger = Ledger.open(tmp_path / "privet" / "ledger.jsonl", plan_hash=private.plan.hash)
    assert ledger.charged_rounds == private.plan.num_rounds
    ledger.close()
    epochs = {entry["step"]: entry["epoch"] for entry in second.state.log_history}
    assert (epochs[5], epochs[7], epochs[10]) == (1.0, 1.4, 2.0)  # of the plan, not of what was left to do


def test_a_batch_without_labels_is_refused_with_the_names_it_has(tmp_path: Path) -> None:
    unlabelled = [{name: value for name, value in item.items() if name != "labels"} for item in texts()]
    with pytest.raises(DataError, match="has no labels, only input_ids, attention_mask"):
        trainer_of(tmp_path, encoder(), data=unlabelled).train()


def test_a_resumed_run_has_the_weights_and_the_optimizer_of_its_checkpoint(tmp_path: Path) -> None:
    private, settings = run(seed=None), {"save_strategy": "steps", "save_steps": 2}
    first = trainer_of(tmp_path, decoder(dtype=torch.float32), private=private, **settings)
    first.add_callback(Stop(4, None))
    first.train()
    second = trainer_of(tmp_path, decoder(seed=9, dtype=torch.float32), private=private, **settings)
    found: dict[str, Any] = {}

    class Look(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            found.update({name: value.clone() for name, value in second.model.state_dict().items()})
            found["moment"] = second._stepped.inner.state_dict()["state"][0]["exp_avg"].clone()

    second.add_callback(Look)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    stored = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-2", dtype=torch.float32).state_dict()
    assert all(torch.equal(found[name], stored[name]) for name in stored)
    assert found["moment"].abs().sum() > 0
    assert second.state.global_step == 6


def test_a_second_run_in_the_same_folder_and_a_checkpoint_of_others_are_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "a", decoder(), save_strategy="steps", save_steps=3)
    trainer.train()
    with pytest.raises(LedgerError, match="resume_from_checkpoint=True"):
        trainer_of(tmp_path / "a", decoder()).train()
    with pytest.raises(LedgerError, match="holds no ledger"):
        trainer_of(tmp_path / "b", decoder()).train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    with pytest.raises(LedgerError, match=r"no run to go on with.*Leave resume_from_checkpoint out"):
        trainer_of(tmp_path / "c", decoder()).train(resume_from_checkpoint=True)
    (tmp_path / "d").mkdir()
    (tmp_path / "a" / "checkpoint-3").rename(tmp_path / "d" / "checkpoint-3")
    with pytest.raises(LedgerError, match="holds no ledger"):
        trainer_of(tmp_path / "d", decoder()).train(resume_from_checkpoint=True)
    (tmp_path / "d" / "checkpoint-3").rename(tmp_path / "a" / "checkpoint-3")
    other = run(plan=plan(steps=7))
    with pytest.raises(LedgerError, match="belongs to the plan"):  # told before files of the other model are loaded
        trainer_of(tmp_path / "a", encoder(), private=other).train(resume_from_checkpoint=True)
    (tmp_path / "a" / "checkpoint-3" / "privet_state.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no privet_state\.safetensors"):
        trainer_of(tmp_path / "a", decoder()).train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))


def test_nothing_exact_is_logged_or_stored_unless_it_was_asked_for(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "a", decoder(), save_strategy="steps", save_steps=6)
    output = trainer.train()
    stored = json.loads((tmp_path / "a" / "checkpoint-6" / "trainer_state.json").read_text())
    names = {name for row in (*trainer.state.log_history, *stored["log_history"]) for name in row}
    assert not [name for name in names | set(output.metrics) if "loss" in name or "norm" in name]
    assert output.training_loss != output.training_loss
    assert stored["num_input_tokens_seen"] == stored["total_flos"] == 0
    heard: list[pv.Unprotected] = []
    private = run(log_unprotected=True, telemetry=heard.append)
    trainer = trainer_of(tmp_path / "b", decoder(), private=private, logging_steps=2)
    trainer.train()
    logged = [row["unprotected_loss"] for row in trainer.state.log_history if "unprotected_loss" in row]
    exact = [figures.mean_loss for figures in heard]
    assert logged == pytest.approx([sum(exact[i : i + 2]) / 2 for i in (0, 2, 4)])  # type: ignore[arg-type]


def test_no_random_state_is_stored_and_none_is_taken_up(tmp_path: Path) -> None:
    trainer_of(tmp_path, decoder(), save_strategy="steps", save_steps=6).train()
    assert not list(tmp_path.rglob("rng_state*"))


def test_set_seed_decides_neither_batches_nor_noise(tmp_path: Path) -> None:
    weights = []
    for name in ("a", "b"):
        trainer = trainer_of(tmp_path / name, decoder(dtype=torch.float32), private=run(seed=None), seed=7)
        trainer.train()
        weights.append(trainer.model)
    assert not same_weights(*weights)


def test_evaluation_schedules_and_callbacks_see_the_steps_of_the_plan(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    class Look(TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            seen.append((state.global_step, named["optimizer"].param_groups[0]["lr"]))

    trainer = PrivateTrainer(
        model=decoder(),
        args=arguments(tmp_path, eval_strategy="epoch", per_device_eval_batch_size=4, warmup_steps=2),
        train_dataset=texts(),
        eval_dataset=texts(6, seed=5),
        callbacks=[Look],
        private=run(plan=plan(steps=10)),
    )
    trainer.train()
    assert [number for number, _ in seen] == list(range(10))
    assert seen[0][1] == 0.0
    assert seen[2][1] == pytest.approx(1e-2)
    evaluated = [row["epoch"] for row in trainer.state.log_history if "eval_loss" in row]
    assert evaluated == [1.0, 2.0]
    assert trainer.evaluate()["eval_loss"] > 0


def test_an_encoder_of_whole_texts_trains_like_the_own_loop(tmp_path: Path) -> None:
    data = [{**item, "labels": place % 2} for place, item in enumerate(texts())]
    model = encoder()
    trainer = trainer_of(tmp_path, model, data=data)
    trainer.train()

    def losses(model: Any, batch: Any) -> torch.Tensor:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")

    by_hand = encoder()
    trained_by_hand(by_hand, data, run(), losses=losses)
    assert same_weights(model, by_hand)
    assert not same_weights(model, encoder())


def test_the_loss_of_an_example_does_not_depend_on_the_tokens_of_others(tmp_path: Path) -> None:
    trainer, model = trainer_of(tmp_path, decoder()), decoder()
    batch = transformers.default_data_collator(texts())
    together = trainer.compute_losses(model, batch)
    alone = [trainer.compute_losses(model, {k: v[i : i + 1] for k, v in batch.items()}) for i in range(len(together))]
    torch.testing.assert_close(together, torch.cat(alone))
    torch.testing.assert_close(together, losses_one_by_one(model, batch))


def test_steps_are_handed_out_inside_a_run_only(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, decoder())
    with pytest.raises(LoopError, match=r"inside train\(\)"):
        list(trainer.get_train_dataloader())
    with pytest.raises(LoopError, match="Nothing was trained"):
        trainer.guarantee()
