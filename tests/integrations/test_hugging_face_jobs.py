"""Text and language-model jobs without code: the command line, the records, and what is learned from them."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import safetensors.torch
import torch
import transformers

from privet.cli.console import run
from privet.cli.main import privet
from privet.datasets.own.declared_texts import DeclaredTexts
from privet.errors import DataError, UnsupportedModel
from privet.integrations.hugging_face.fine_tuning import FineTuning, perplexity
from privet.integrations.hugging_face.text_records import causal_rows, read_pairs
from privet.runs.recipes.text_settings import EncoderSettings
from privet.runs.text_models import fingerprint, own_encoder
from scripts import verify_certificate
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
    assert (tmp_path / "run" / "ledger.jsonl").is_file()
    assert (tmp_path / "run" / "model" / "guarantee.txt").read_text(encoding="utf-8").strip() in " ".join(said.split())


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run on texts, the texts, and the encoder."""
    folder = tmp_path_factory.mktemp("reviews")
    saved(encoder(dtype=torch.float32), folder / "encoder")
    for name, seed in (("reviews", 1), ("test", 2)):
        rows = [f'"{text}",{"good" if place % 2 else "bad"}' for place, text in enumerate(sentences(200, seed=seed))]
        (folder / f"{name}.csv").write_text("\n".join(["review,label", *rows, ",bad"]) + "\n", encoding="utf-8")
    assert run(privet, trained(folder)) == 0
    return folder


def trained(folder: Path) -> list[str]:
    words = f"train {folder}/reviews.csv --text review --target label --classes bad,good --model {folder}/encoder"
    return f"{words} --epsilon 3 --size 200 --length 8 --test {folder}/test.csv -o {folder}/run -q".split()


def test_a_run_on_texts_is_one_that_every_verb_takes(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reviews / "run"
    for verb in ("report", "certify", "account", "card"):
        assert run(privet, [verb, str(folder)]) == 0, capsys.readouterr().err
    page, capsys_out = (folder / "report.html").read_text(encoding="utf-8"), capsys.readouterr().out
    for words in ("In everyday words", "Plan and ledger", "pretrained encoder and its tokenizer", "To be filled in"):
        assert words.lower() in page.lower()
    assert str(reviews) not in page + (folder / "README.md").read_text(encoding="utf-8")
    assert "add-or-remove one record" in capsys_out
    assert run(privet, ["evaluate", str(folder), "--robustness"]) != 0
    assert "a word cannot be changed a little" in capsys.readouterr().err


def test_a_new_head_is_not_reported_as_a_fault_and_absent_weights_of_the_encoder_are(
    reviews: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(privet, ["predict", str(reviews / "run"), str(reviews / "test.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    )
    assert "MISSING" not in "".join(capfd.readouterr())
    whole = encoder(dtype=torch.float32)
    folder = saved(transformers.BertForMaskedLM(whole.config), tmp_path / "masked")  # has no pooler
    with pytest.warns(UserWarning, match=r"no weights for bert\.pooler\.dense\.bias, bert\.pooler\.dense\.weight: "):
        classifier(folder, 8)


def test_no_figure_of_private_texts_is_shown_or_kept_unless_it_is_charged(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(reviews / "run", copy)
    assert run(privet, ["report", str(copy)]) == 0
    assert not (copy / "metrics.json").exists()
    assert not (copy / "unprotected.jsonl").exists()
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "No figures on test data" in page
    assert "Measured privately" not in page
    assert run(privet, ["evaluate", str(copy), "--evaluate-epsilon", "1"]) == 0, capsys.readouterr().err
    assert run(privet, ["report", str(copy)]) == 0
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "Measured privately" in page
    assert "charged, with evaluations" in page
    assert "No figures on test data" in page


def test_what_was_trained_and_how_a_run_goes_on(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(privet, trained(reviews)) == 0
    said = capsys.readouterr()
    assert "finished before" in said.err
    assert f"Next: privet report {reviews}/run" in said.err
    assert "accuracy" not in said.out
    weights = safetensors.torch.load_file(reviews / "run" / "model.safetensors")
    moved = [value for name, value in weights.items() if "lora_B" in name]
    assert moved
    assert all(bool(value.abs().sum() > 0) for value in moved)
    words = f"train {reviews}/reviews.csv --text review --target label --epsilon 3 -o {tmp_path}/other"
    assert run(privet, words.split()) == 2
    assert "--size" in capsys.readouterr().err


def test_an_exported_encoder_says_the_same_without_privet_and_peft(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served, test = tmp_path / "served", reviews / "test.csv"
    assert run(privet, ["predict", str(reviews / "run"), str(test), "-o", str(tmp_path / "wanted.csv")]) == 0
    assert run(privet, ["export", str(reviews / "run"), "-o", str(served)]) == 0, capsys.readouterr().err
    assert verify_certificate.main([str(served)]) == 0
    code = "import runpy, sys; sys.modules['privet'] = sys.modules['peft'] = None; sys.argv = sys.argv[1:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(served / "predict.py"), str(test)],
        capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    found, wanted = done.stdout.splitlines(), (tmp_path / "wanted.csv").read_text(encoding="utf-8").splitlines()
    assert found[0] == wanted[0]
    assert len(found) == len(wanted) == 202
    for one, other in zip(found[1:], wanted[1:], strict=True):
        assert one.split(",")[:2] == other.split(",")[:2]
        numbers = [[float(cell) for cell in line.split(",")[2:]] for line in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)
    told = [path.read_text(encoding="utf-8") for path in served.rglob("*") if path.suffix in (".json", ".md", ".html")]
    assert not any(str(reviews) in text or "reviews.csv" in text for text in told)
    assert (served / "requirements.txt").read_text(encoding="utf-8").split() == ["torch", "transformers"]


def test_another_encoder_in_the_folder_is_not_taken_for_the_one_of_the_run(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(reviews, tmp_path / "all")
    saved(encoder(dtype=torch.float32, seed=5), tmp_path / "all" / "encoder")
    recipe = tmp_path / "all" / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace(str(reviews), str(tmp_path / "all")), encoding="utf-8")
    assert run(privet, ["predict", str(tmp_path / "all" / "run"), str(reviews / "test.csv")]) == 2
    assert "A run belongs to one encoder" in capsys.readouterr().err


def test_a_tuned_model_has_its_ledger_where_the_verbs_look_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(decoder(dtype=torch.float32), tmp_path / "model")
    data = lines(tmp_path / "letters.jsonl", [{"text": text} for text in sentences(200, seed=1)])
    words = f"finetune {data} --model {folder} --epsilon 3 --size 200 --length 8 --epochs 1 --batch-size 50 --rank 2"
    command = [*words.split(), "-o", str(tmp_path / "run"), "-q"]
    assert run(privet, command) == 0
    assert f"Next: privet report {tmp_path}/run" in capsys.readouterr().err
    for verb in ("report", "certify", "account", "card"):
        assert run(privet, [verb, str(tmp_path / "run")]) == 0
    capsys.readouterr()
    charged = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    assert run(privet, command) == 0
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes().count(b"\n") >= charged.count(b"\n")
    former = tmp_path / "former"
    (former / "privet").mkdir(parents=True)
    shutil.copy(tmp_path / "run" / "ledger.jsonl", former / "privet" / "ledger.jsonl")
    assert run(privet, [*words.split(), "-o", str(former), "-q"]) != 0
    assert "earlier version" in capsys.readouterr().err
    assert not (former / "ledger.jsonl").exists()


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
    for make in (
        lambda length: FineTuning(model=folder, length=length).causal(),
        lambda length: classifier(folder, length),
    ):
        assert make(16) is not None
        with pytest.raises(UnsupportedModel, match="cannot take texts of 17 tokens"):
            make(17)


def classifier(folder: Path, length: int) -> object:
    declared = DeclaredTexts(text="note", target="ward", classes=("a", "b"), length=length)
    settings = EncoderSettings(folder=str(folder), sha256=fingerprint(folder))
    return own_encoder(settings, declared.info("notes", train_size=100, test_size=0))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="is not the folder of a model"):
        FineTuning(model=tmp_path).causal()
