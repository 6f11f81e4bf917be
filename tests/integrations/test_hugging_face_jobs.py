"""Text and language-model jobs without code: the command line, the records, and what is learned from them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import peft
import pytest
import torch
import transformers

from privet.cli.console import run
from privet.cli.main import privet
from privet.errors import DataError, UnsupportedModel
from privet.integrations.hugging_face.fine_tuning import FineTuning, perplexity
from privet.integrations.hugging_face.text_records import causal_rows, read_labelled, read_pairs
from tests.integrations.tiny import decoder, encoder
from tests.integrations.words import saved, sentences, tokenizer


def lines(path: Path, records: list[object]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n", encoding="utf-8")
    return path


def test_a_language_model_is_tuned_saved_and_sampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(decoder(dtype=torch.float32), tmp_path / "model")
    data = lines(tmp_path / "letters.jsonl", [{"text": text} for text in sentences(200, seed=1)])
    public = lines(tmp_path / "public.jsonl", [{"text": text} for text in sentences(10, seed=2)])
    words = f"finetune {data} --model {folder} --epsilon 3 --size 200 --length 8 --epochs 1 --batch-size 50 --rank 2"
    options = ["--public", str(public), "--samples", "2", "--prompt", "the cat", "-o", str(tmp_path / "run"), "-q"]
    assert run(privet, [*words.split(), *options]) == 0
    said = capsys.readouterr().out
    assert said.index("promised") < said.index("spent")
    assert "public perplexity" in said
    assert "runtime" not in said
    assert len([line for line in said.splitlines() if line.startswith("the cat")]) == 2
    tuned = peft.PeftModel.from_pretrained(decoder(dtype=torch.float32), tmp_path / "run" / "model")
    moved = [value for name, value in tuned.named_parameters() if "lora_B" in name]
    assert moved
    assert all(bool(value.abs().sum() > 0) for value in moved)
    assert (tmp_path / "run" / "privet" / "ledger.jsonl").is_file()
    assert (tmp_path / "run" / "model" / "guarantee.txt").read_text(encoding="utf-8").strip() in " ".join(said.split())


def test_reviews_are_classified_with_an_encoder_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(encoder(dtype=torch.float32), tmp_path / "encoder")
    for name, seed in (("reviews", 1), ("test", 2)):
        rows = [f'"{text}",{"good" if place % 2 else "bad"}' for place, text in enumerate(sentences(200, seed=seed))]
        (tmp_path / f"{name}.csv").write_text("\n".join(["review,label", *rows]) + "\n", encoding="utf-8")
    words = f"train {tmp_path}/reviews.csv --text review --target label --classes bad,good --model {folder}"
    options = f"--epsilon 3 --size 200 --length 8 --test {tmp_path}/test.csv -o {tmp_path}/run -q"
    assert run(privet, [*words.split(), *options.split()]) == 0
    said = capsys.readouterr().out
    assert "test accuracy" in said
    assert "not covered by the guarantee" in said
    assert (tmp_path / "run" / "model" / "adapter_model.safetensors").is_file()
    assert run(privet, [*words.split(), "--epsilon", "3"]) == 2
    assert "--size" in capsys.readouterr().err


def test_prompts_are_read_and_only_answers_are_learned() -> None:
    words = tokenizer()
    rows = causal_rows(words, read_pairs_of([{"prompt": "the cat", "answer": "sat"}, {"text": "a dog ran"}]), length=6)
    labels = rows.columns["labels"]
    assert labels[0].tolist() == [-100, -100, words.convert_tokens_to_ids("sat"), words.eos_token_id, -100, -100]
    assert (labels[1] != -100).sum() == 4


def read_pairs_of(records: list[object]) -> list[object]:
    from privet.integrations.hugging_face.text_records import _pair

    return [_pair(json.dumps(record)) for record in records]


def test_records_that_cannot_be_read_count_as_empty_ones_and_nothing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "the cat"}\nnot json\n{"other": 1}\n[1]\n\n', encoding="utf-8")
    pairs = read_pairs(path)
    assert [pair.text for pair in pairs] == ["the cat", "", "", "", ""]
    rows = causal_rows(tokenizer(), pairs, length=4)
    assert bool((rows.columns["labels"][1:] == -100).all())
    table = tmp_path / "data.csv"
    table.write_text("t,y\nthe cat,good\nbroken\na dog,unheard\n", encoding="utf-8")
    assert read_labelled(table, text="t", target="y", classes=("bad", "good")) == (
        ["the cat", "", "a dog"],
        [1, -100, -100],
    )
    with pytest.raises(DataError, match="has no column 'z'"):
        read_labelled(table, text="z", target="y", classes=("bad", "good"))


def test_every_row_has_the_declared_length() -> None:
    for texts in (["the"], ["the cat sat on a mat it was red and very very big"]):
        rows = causal_rows(tokenizer(), read_pairs_of([{"text": text} for text in texts]), length=7)
        assert rows.columns["input_ids"].shape == (1, 7)


def test_perplexity_is_that_of_all_tokens_together(tmp_path: Path) -> None:
    model = decoder(dtype=torch.float32)
    rows = causal_rows(tokenizer(), read_pairs_of([{"text": text} for text in sentences(5, seed=3)]), length=8)
    batch = transformers.default_data_collator([rows[place] for place in range(len(rows))])
    with torch.no_grad():
        loss = model.eval()(**batch).loss  # a mean over all tokens, as transformers computes it
    assert perplexity(model, rows) == pytest.approx(math.exp(float(loss)), rel=1e-5)


@pytest.mark.parametrize("name", ["reviews.csv", "notes.txt", "letters.jsonl.gz"])
def test_files_named_as_another_format_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("review,label\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"\*\.jsonl"):
        read_pairs(tmp_path / name)


def test_a_model_that_cannot_do_the_job_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    encoding = saved(transformers.BertForMaskedLM(encoder(dtype=torch.float32).config), tmp_path / "encoder")
    with pytest.raises(UnsupportedModel, match="tokens see the ones after them"):
        FineTuning(model=encoding, length=8).causal()
    for make in (lambda job: job.causal(), lambda job: job.classifier(["bad", "good"])):
        learned = transformers.GPT2Config(
            vocab_size=40,
            n_embd=16,
            n_layer=1,
            n_head=2,
            n_positions=16,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
        folder = saved(transformers.GPT2LMHeadModel(learned), tmp_path / "decoder")
        assert make(FineTuning(model=folder, length=16)) is not None
        with pytest.raises(UnsupportedModel, match="cannot take texts of 17 tokens"):
            make(FineTuning(model=folder, length=17))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="is not the folder of a model"):
        FineTuning(model=tmp_path).causal()
