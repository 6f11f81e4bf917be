"""Arguments of trainers: each is known, and those that would break a guarantee are refused by name."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import trl
from transformers import EarlyStoppingCallback, Trainer

import datasets
import privet as pv
from privet.errors import ArgumentError, DataError, LoopError, UnsupportedModel
from privet.integrations import Evaluation, PrivateTrainer, PrivateTraining
from privet.integrations.hugging_face.arguments import TABLES, governed, performance_of, treatments
from privet.integrations.stepping import LogicalSteps, StepOptimizer
from tests.integrations.tiny import arguments, decoder, plan, run, texts

KINDS = (transformers.TrainingArguments, transformers.Seq2SeqTrainingArguments, trl.SFTConfig, trl.DPOConfig)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_argument_of_the_tested_version_has_a_treatment_and_none_is_of_the_past(kind: type) -> None:
    assert {field.name for field in fields(kind)} - treatments(kind).keys() == set()
    assert TABLES[kind.__name__].keys() - {field.name for field in fields(kind)} == set()


def test_an_argument_that_nobody_has_looked_at_is_refused_unless_it_has_its_default(tmp_path: Path) -> None:
    @dataclass
    class Later(transformers.TrainingArguments):  # type: ignore[misc]
        mixes_records: bool = False

    governed(arguments(tmp_path, Later), run())
    with pytest.raises(ArgumentError, match=r"mixes_records=True cannot .* does not know it"):
        governed(arguments(tmp_path, Later, mixes_records=True), run())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"gradient_accumulation_steps": 2}, "one logical batch per update"),
        ({"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 3}}}, "one logical batch per update"),
        ({"max_grad_norm": 0.5}, "clips the gradient of each example"),
        ({"label_smoothing_factor": 0.1}, "averages over all tokens"),
        ({"fp16": True, "use_cpu": False}, "half precision"),
        ({"train_sampling_strategy": "group_by_length"}, "grouping by length"),
        ({"auto_find_batch_size": True}, "starts training over"),
        ({"torch_compile": True}, "wraps the model"),
        ({"use_liger_kernel": True}, "averages over the batch"),
        ({"neftune_noise_alpha": 5.0}, "longest text"),
        ({"include_num_input_tokens_seen": "all"}, "number of tokens"),
        ({"debug": "underflow_overflow"}, "activations"),
        ({"optim": "lomo"}, "before noise"),
        ({"max_steps": 7}, "the plan has 6 steps"),
        ({"num_train_epochs": 9}, "1.2 epochs"),
        ({"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"}, "by evaluations"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}, "decides by evaluations"),
        ({"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": True}}, "graph"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_would_break_the_accounting_is_refused_by_name(tmp_path: Path, settings: Any, reason: str) -> None:
    def train() -> None:
        data, others = texts(), texts(4)
        args = arguments(tmp_path, **settings)
        trainer = PrivateTrainer(model=decoder(), args=args, train_dataset=data, eval_dataset=others, private=run())
        trainer.train()  # what Accelerate's own settings bring is found here

    with pytest.raises((ArgumentError, ValueError), match=reason):
        train()
    assert not (tmp_path / "privet").exists()


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        (trl.SFTConfig, {"packing": True}, "share one sequence"),
        (trl.SFTConfig, {"padding_free": True}, "share one sequence"),
        (trl.SFTConfig, {"loss_type": "dft"}, "only 'nll'"),
        (trl.DPOConfig, {"loss_type": ["ipo"]}, r"only \['sigmoid'\]"),
        (trl.DPOConfig, {"sync_ref_model": True}, "outside private steps"),
    ],
)
def test_what_leaves_no_loss_per_record_is_refused_by_name(
    tmp_path: Path, kind: Any, settings: Any, reason: str
) -> None:
    with pytest.raises(ArgumentError, match=reason):
        governed(arguments(tmp_path, kind, **settings), run())


@pytest.mark.parametrize(("size", "batch_size", "epochs"), [(40, 32, 1), (40, 32, 2), (100, 32, 2), (200, 32, 1)])
def test_as_many_epochs_as_the_plan_was_made_for_agree_with_it(
    tmp_path: Path, size: int, batch_size: int, epochs: int
) -> None:
    made = pv.Plan.dpsgd(dataset_size=size, batch_size=batch_size, epochs=epochs, noise_multiplier=1.0, delta=1e-5)
    governed(arguments(tmp_path, num_train_epochs=epochs), run(plan=made))
    with pytest.raises(ArgumentError, match="num_train_epochs"):
        governed(arguments(tmp_path, num_train_epochs=4 * epochs), run(plan=made))


def test_arguments_are_checked_again_when_training_begins(tmp_path: Path) -> None:
    trainer = PrivateTrainer(model=decoder(), args=arguments(tmp_path), train_dataset=texts(), private=run())
    trainer.args.gradient_accumulation_steps = 4
    with pytest.raises(ArgumentError, match="gradient_accumulation_steps=4"):
        trainer.train()


def test_the_arguments_of_the_user_stay_as_they_are_and_the_run_has_those_of_the_plan(tmp_path: Path) -> None:
    given = arguments(tmp_path, dataloader_num_workers=0)
    before = given.to_dict()
    args = governed(given, run())
    assert given.to_dict() == before
    assert (args.max_steps, args.max_grad_norm, args.ignore_data_skip) == (6, 0.0, True)
    assert not args.average_tokens_across_devices
    assert performance_of(args, run()).physical_batch_size == 4
    assert governed(args, run()).to_dict() == args.to_dict()


def test_a_precision_that_came_by_the_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = PrivateTrainer(model=decoder(), args=arguments(tmp_path), train_dataset=texts(), private=run())
    monkeypatch.setattr(trainer.accelerator.state, "_mixed_precision", "fp16")  # as `accelerate launch` may set it
    with pytest.raises(ArgumentError, match="mixed_precision='fp16'"):
        trainer.train()


def test_a_stream_is_refused_with_the_way_out(tmp_path: Path) -> None:
    stream = datasets.Dataset.from_list(texts()).to_iterable_dataset().map(dict)
    trainer = PrivateTrainer(model=decoder(), args=arguments(tmp_path), train_dataset=stream, private=run())
    with pytest.raises(DataError, match=r"RecordStream\.stored"):
        trainer.train()


def test_what_has_no_effect_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="privet"):
        governed(arguments(tmp_path, dataloader_drop_last=True), run())
    assert "dataloader_drop_last=True has no effect" in caplog.text


@pytest.mark.parametrize("evaluation", [Evaluation.PUBLIC, pytest.param(Evaluation.CHARGED, marks=pytest.mark.slow)])
def test_declared_evaluations_may_decide_and_stand_in_the_guarantee(tmp_path: Path, evaluation: Evaluation) -> None:
    steps = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = PrivateTrainer(
        model=decoder(),
        args=arguments(tmp_path, **steps, load_best_model_at_end=True, metric_for_best_model="loss"),
        train_dataset=texts(),
        eval_dataset=texts(4, seed=8),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=9)],
        private=run(evaluation=evaluation),
    )
    trainer.train()
    best = transformers.LlamaForCausalLM.from_pretrained(trainer.state.best_model_checkpoint, dtype=torch.float64)
    assert torch.equal(trainer.model.lm_head.weight, best.lm_head.weight)
    assert evaluation.assumptions[0] in trainer.guarantee().assumptions


def test_stopping_early_by_evaluations_that_nobody_declared_is_refused(tmp_path: Path) -> None:
    args, callbacks = arguments(tmp_path), [EarlyStoppingCallback]
    trainer = PrivateTrainer(model=decoder(), args=args, train_dataset=texts(), callbacks=callbacks, private=run())
    with pytest.raises(ArgumentError, match="EarlyStoppingCallback decides by evaluations"):
        trainer.train()


def test_the_training_data_are_no_evaluation_data(tmp_path: Path) -> None:
    data = texts()
    trainer = PrivateTrainer(
        model=decoder(), args=arguments(tmp_path), train_dataset=data, eval_dataset=data, private=run()
    )
    for ask in (trainer.evaluate, lambda: trainer.predict(data)):
        with pytest.raises(ArgumentError, match="exact loss is not private"):
            ask()


def test_a_loader_of_another_make_and_a_search_are_refused(tmp_path: Path) -> None:
    trainer = PrivateTrainer(model=decoder(), args=arguments(tmp_path), train_dataset=texts(), private=run())
    loader = trainer.accelerator.prepare(torch.utils.data.DataLoader(texts(), batch_size=4, collate_fn=list))
    with pytest.raises(LoopError, match="instead of a private step"):
        trainer.training_step(trainer.model, next(iter(loader)))
    with pytest.raises(LoopError, match="privet account search"):
        trainer.hyperparameter_search(n_trials=2)


def test_the_loader_is_not_prepared_and_repeats_no_record_to_even_the_end(tmp_path: Path) -> None:
    drawn: list[int] = []

    def collate(items: list[dict[str, Any]]) -> Any:
        drawn.extend(item["input_ids"][0] for item in items)
        return transformers.default_data_collator(items)

    data = [{**item, "input_ids": [3 + place % 36, *item["input_ids"][1:]]} for place, item in enumerate(texts(36))]
    private = run(plan=plan(steps=1, size=36, batch_size=36 * (1 - 1e-9)))
    trainer = PrivateTrainer(
        model=decoder(), args=arguments(tmp_path), data_collator=collate, train_dataset=data, private=private
    )
    trainer.train()
    assert isinstance(trainer.callback_handler.train_dataloader, LogicalSteps)
    assert sorted(drawn) == sorted(item["input_ids"][0] for item in data)


def test_an_optimizer_steps_once_for_each_private_step() -> None:
    optimizer = StepOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0))
    with pytest.raises(LoopError, match="without a private step"):
        optimizer.step()
    calls: list[int] = []
    optimizer.expect(lambda: calls.append(1))
    with pytest.raises(LoopError, match="still waits"):
        optimizer.expect(lambda: calls.append(2))
    with pytest.raises(LoopError, match="closure"):
        optimizer.step(lambda: 0.0)
    optimizer.step()
    assert calls == [1]


def test_a_loss_of_a_users_own_is_never_passed_over() -> None:
    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            return model(**inputs).loss

    class Stepping(Trainer):  # type: ignore[misc]
        def training_step(self, *given: Any, **named: Any) -> Any:
            return torch.zeros(())

    for kind, word in ((Own, "compute_losses"), (Stepping, "a private step takes its place")):
        private_kind = type("Private", (PrivateTraining, kind), {})
        with pytest.raises(UnsupportedModel, match=word):
            private_kind(model=decoder(), train_dataset=texts(), private=run())


def test_a_loss_that_replaced_the_trainers_own_is_never_passed_over(tmp_path: Path) -> None:
    trainer = PrivateTrainer(model=decoder(), args=arguments(tmp_path), train_dataset=texts(), private=run())
    trainer.compute_loss = lambda *given, **named: torch.zeros(())
    with pytest.raises(UnsupportedModel, match="compute_losses"):
        trainer.train()


def test_a_loader_or_a_sampler_of_a_users_own_is_never_passed_over() -> None:
    def make(self: Any, *given: Any) -> Any:
        return torch.utils.data.DataLoader(texts(), batch_size=4)

    for name in ("get_train_dataloader", "_get_train_sampler", "get_batch_samples"):
        own = type("Own", (Trainer,), {name: make})
        for kind in (type("Private", (PrivateTraining, own), {}), type("Derived", (PrivateTrainer,), {name: make})):
            with pytest.raises(UnsupportedModel, match="the plan draws the batches"):
                kind(model=decoder(), train_dataset=texts(), private=run())


def test_a_model_with_reentrant_checkpoints_is_refused_by_name(tmp_path: Path) -> None:
    model = decoder()
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
    trainer = PrivateTrainer(model=model, args=arguments(tmp_path), train_dataset=texts(), private=run())
    with pytest.raises(UnsupportedModel, match="re-entrant"):
        trainer.train()


def test_a_loss_function_must_return_one_loss_per_example(tmp_path: Path) -> None:
    def mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        assert num_items_in_batch is None
        return outputs.logits.mean()

    def each(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        return outputs.logits.square().mean((1, 2))

    for function, is_right in ((each, True), (mean, False)):
        trainer = PrivateTrainer(
            model=decoder(),
            args=arguments(tmp_path / function.__name__),
            train_dataset=texts(),
            compute_loss_func=function,
            private=run(plan=plan(steps=1)),
        )
        if is_right:
            trainer.train()
            continue
        with pytest.raises(UnsupportedModel, match=r"one loss per example, here \d+; it returned \(\)"):
            trainer.train()


def test_a_model_whose_loss_is_not_known_is_refused(tmp_path: Path) -> None:
    model = decoder()
    model.loss_type = "ForObjectDetection"
    trainer = PrivateTrainer(model=model, args=arguments(tmp_path), train_dataset=texts(), private=run())
    with pytest.raises(UnsupportedModel, match="compute_losses"):
        trainer.compute_losses(model, {"input_ids": torch.ones(1, 3, dtype=torch.long)})
