"""``privet train`` on a file or a folder of one's own: one command, everything declared."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path

import pytest

from privet.datasets.header_hints import names_persons
from tests.cli.conftest import FEW_STEPS, SCHEMA, Ask


def table(count: int) -> str:
    lines = [f"{n},{20 + n % 60},{('north', 'south')[n % 2]},{('low', 'high')[n % 60 > 30]}\n" for n in range(count)]
    return "row,age,town,income\n" + "".join(lines)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my.csv").write_text(table(200))
    (tmp_path / "test.csv").write_text(table(40))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "recipe.toml").read_text())


def test_a_table_trains_with_one_command_from_its_schema(ask: Ask, own: Path) -> None:
    options = ("--target", "income", "--epsilon", "3", "--schema", "schema.toml", "--test", "test.csv")
    found = ask("train", "my.csv", *options, *FEW_STEPS)
    assert found.code == 0, found.err
    assert "promised" in found.out
    assert "delta 1e-05, the default for 200 declared records" in found.err
    assert "accuracy" not in found.out
    made = recipe(own / "runs" / "my")
    assert made["table"]["train"] == str(own / "my.csv")
    assert [column["name"] for column in made["table"]["columns"]] == ["age", "town"]
    measured = ask("evaluate", "runs/my", "--device", "cpu")
    assert measured.code == 0, measured.err
    assert re.search(r"accuracy .* 40$", measured.out, re.MULTILINE)
    again = ask("train", "my.csv", *options, *FEW_STEPS)
    assert again.code == 0, again.err


def test_a_table_trains_with_a_public_sample_and_without_test_data(ask: Ask, own: Path) -> None:
    (own / "public.csv").write_text(table(60))
    options = ("--target", "income", "--epsilon", "3", "--public-sample", "public.csv", "--size", "200")
    found = ask("train", "my.csv", *options, "--set", "table.columns=[{name='age', low=20, high=79}]", *FEW_STEPS)
    assert found.code == 0, found.err
    assert "not measured" in found.err
    told = ask("evaluate", "runs/my", "--device", "cpu")
    assert told.code == 1
    assert "--data" in told.err
    assert ask("evaluate", "runs/my", "--device", "cpu", "--data", "test.csv").code == 0


def test_without_a_declaration_the_schema_to_write_is_shown_and_nothing_is_run(ask: Ask, own: Path) -> None:
    found = ask("train", "my.csv", "--target", "income", "--epsilon", "3")
    assert found.code == 2
    assert '{ name = "age", low = ?, high = ? }' in found.err
    assert "column names are assumed to be public" in found.err
    assert "north" not in found.err
    assert not (own / "runs").exists()


REFUSED = {
    "no target": ((), "--target"),
    "no epsilon": (("--target", "income", "--schema", "schema.toml"), "--epsilon"),
    "no size": (("--target", "income", "--epsilon", "3", "--public-sample", "test.csv"), "--size"),
    "own sample": (("--target", "income", "--epsilon", "3", "--public-sample", "my.csv"), "the records to protect"),
    "two declarations": (
        ("--target", "income", "--schema", "schema.toml", "--public-sample", "test.csv"),
        "Give one of them",
    ),
    "about images": (("--target", "income", "--classes", "a,b"), "is for images"),
    "quick": (("--target", "income", "--quick"), "--quick"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_missing_is_asked_for_before_anything_is_read(ask: Ask, own: Path, fault: str) -> None:
    options, words = REFUSED[fault]
    found = ask("train", "my.csv", *options)
    assert found.code == 2
    assert words in found.err
    assert not (own / "runs").exists()


def test_epsilon_changes_a_recipe_and_what_is_about_own_data_does_not_go_with_one(ask: Ask, tiny_recipe: Path) -> None:
    told = ask("train", tiny_recipe, "-o", tiny_recipe.parent / "never", "--target", "y")
    assert told.code == 2
    assert "--target is for a table" in told.err
    exceeded = ask("train", tiny_recipe, "-o", tiny_recipe.parent / "never", "--epsilon", "2", "--max-epsilon", "1")
    assert exceeded.code == 3
    assert "spends epsilon 2" in exceeded.err


def test_a_folder_without_sub_folders_is_not_taken_for_images(ask: Ask, tmp_path: Path) -> None:
    found = ask("train", tmp_path, "--epsilon", "3", "--size", "200")
    assert found.code == 2
    assert "has no sub-folders" in found.err
    (tmp_path / "ledger.jsonl").touch()
    found = ask("train", tmp_path, "--epsilon", "3", "--size", "200")
    assert found.code == 2
    assert "is the folder of a run" in found.err


def test_a_folder_of_images_trains_with_one_command(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for name, level in (("cat", 40), ("dog", 200)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(20):
            stream = io.BytesIO()
            image.new("RGB", (20, 14), (level + number, number, 0)).save(stream, "JPEG")
            (tmp_path / "pets" / name / f"{number}.jpg").write_bytes(stream.getvalue())
    (tmp_path / "pets" / "dog" / "broken.jpg").write_bytes(b"no image")
    options = ("--epsilon", "3", "--size", "200", "--image-size", "16x12")
    found = ask("train", "pets", *options, *FEW_STEPS)
    assert found.code == 0, found.err
    assert "assumed to be public: cat, dog" in found.err
    assert recipe(tmp_path / "runs" / "pets")["images"] == {
        "train": str(tmp_path / "pets"),
        "train_size": 200,
        "classes": ["cat", "dog"],
        "height": 16,
        "width": 12,
        "channels": 3,
    }
    (tmp_path / "pets" / "dog" / "broken.jpg").unlink()
    measured = ask("evaluate", "runs/pets", "--data", "pets", "--device", "cpu")
    assert measured.code == 0, measured.err
    assert re.search(r"accuracy .* 40$", measured.out, re.MULTILINE)


def test_a_table_is_not_read_as_a_recipe(ask: Ask, own: Path) -> None:
    found = ask("plan", "my.csv")
    assert found.code == 2
    assert "privet train FILE --target COLUMN" in " ".join(found.err.split())


def test_a_folder_that_is_a_run_is_not_taken_for_images(ask: Ask, finished_run: Path) -> None:
    found = ask("train", finished_run, "--epsilon", "3")
    assert found.code == 2
    assert "recipe.toml" in found.err


MISTAKES = {
    "another delimiter": ("my.csv", ";", "income", "--delimiter ';'"),
    "misspelt target": ("my.csv", ",", "Income", "Did you mean 'income'"),
    "no header": ("my.csv", None, "income", "put a line above it that names the columns"),
    "not utf-8": ("my.csv", "latin-1", "income", "Save the file as UTF-8"),
    "empty": ("empty.csv", ",", "income", "is empty"),
    "not there": ("gone.csv", ",", "income", "Check the path"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_usual_mistakes_with_a_file_are_told_with_the_remedy(ask: Ask, own: Path, mistake: str) -> None:
    name, change, target, words = MISTAKES[mistake]
    lines = (own / "my.csv").read_text().splitlines()
    if change == ";":
        lines = [line.replace(",", ";") for line in lines]
    if change is None:
        lines = lines[1:]
    if change == "latin-1":
        lines[0] = lines[0].replace("town", "st\xe4dt")
    (own / "my.csv").write_text("\n".join(lines), encoding="latin-1")
    (own / "empty.csv").write_text("")
    found = ask("train", name, "--target", target, "--epsilon", "3")
    assert found.code == 1
    assert words in " ".join(found.err.split())
    assert "north" not in found.err


def test_a_byte_order_mark_is_no_mistake(ask: Ask, own: Path) -> None:
    (own / "my.csv").write_text((own / "my.csv").read_text(), encoding="utf-8-sig")
    found = ask("train", "my.csv", "--target", "income", "--epsilon", "3")
    assert '{ name = "age", low = ?, high = ? }' in found.err


def test_a_schema_that_is_not_filled_in_is_told_with_its_line(ask: Ask, own: Path) -> None:
    shown = ask("train", "my.csv", "--target", "income", "--epsilon", "3").err
    (own / "half.toml").write_text(
        shown[shown.index("train_size") : shown.index("]\n\nOnly") + 1].replace("?", "200", 1)
    )
    found = ask("train", "my.csv", "--target", "income", "--epsilon", "3", "--schema", "half.toml")
    assert found.code == 2
    assert "line 7 still holds a ?" in found.err


def test_decimal_commas_are_declared_and_tried_on_test_records(ask: Ask, own: Path) -> None:
    for name in ("my.csv", "test.csv"):
        text = (own / name).read_text().replace(",", ";").split("\n")
        cells = [line.split(";") for line in text if line]
        lines = [cells[0], *([row[0], f"{row[1]},5", *row[2:]] for row in cells[1:])]
        (own / name).write_text("\n".join(";".join(row) for row in lines) + "\n")
    words = ("train", "my.csv", "--target", "income", "--epsilon", "3", "--schema", "schema.toml", "--test", "test.csv")
    refused = ask(*words, "--delimiter", ";")
    assert refused.code == 1
    assert "--decimal ," in refused.err
    read = ask(*words, "--delimiter", ";", "--decimal", ",", "-q", *FEW_STEPS)
    assert read.code == 0, read.err
    both = ask(*words, "--decimal", ",")
    assert both.code == 2
    assert "both the delimiter and the decimal mark" in both.err


def test_records_with_more_cells_than_the_header_are_told_of(ask: Ask, own: Path) -> None:
    header, *rows = (own / "test.csv").read_text().splitlines()
    (own / "test.csv").write_text("\n".join([header, *(f"1,{row}" for row in rows)]))
    words = ("train", "my.csv", "--target", "income", "--epsilon", "3", "--schema", "schema.toml", "--test", "test.csv")
    found = ask(*words)
    assert found.code == 1
    assert "have more cells than the header" in found.err


def test_a_run_goes_on_from_whichever_folder_its_files_are_named(
    ask: Ask, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--target", "income", "--epsilon", "3", *FEW_STEPS)
    first = ask("train", "my.csv", *options, "--schema", "schema.toml", "--test", "test.csv", "-o", "runs/mine")
    assert first.code == 0, first.err
    (own / "elsewhere").mkdir()
    monkeypatch.chdir(own / "elsewhere")
    files = ("--schema", "../schema.toml", "--test", "../test.csv", "-o", "../runs/mine")
    again = ask("train", "../my.csv", *options, *files)
    assert again.code == 0, again.err
    (own / "other.csv").write_text((own / "my.csv").read_text())
    monkeypatch.chdir(own)
    other = ask("train", "other.csv", *options, "--schema", "schema.toml", "--test", "test.csv", "-o", "runs/mine")
    assert "holds a run of another recipe" in " ".join(other.err.split())


def test_one_of_several_processes_trains_nothing(ask: Ask, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    options = ("--target", "income", "--epsilon", "3", "--schema", "schema.toml")
    found = ask("train", "my.csv", *options, *FEW_STEPS)
    assert found.code == 1
    assert "WORLD_SIZE is '2'" in found.err
    assert not list(own.rglob("ledger.jsonl"))


TO_PROTECT = ("--target", "income", "--epsilon", "3", "--schema", "schema.toml", *FEW_STEPS)
PERSON = ("--set", "privacy.unit=person")


def visits(*, per_patient: int) -> str:
    """A table of patients, who come several times."""
    lines = [
        f"p{n // per_patient},{20 + n % 60},{('north', 'south')[n % 2]},{('low', 'high')[n % 60 > 30]}\n"
        for n in range(200)
    ]
    return "patient,age,town,income\n" + "".join(lines)


def test_persons_are_promised_nothing_by_a_table_that_does_not_know_them(ask: Ask, own: Path) -> None:
    (own / "my.csv").write_text(visits(per_patient=9))
    found = ask("train", "my.csv", *TO_PROTECT, *PERSON)
    assert found.code != 0
    assert "nothing says that a record of 'own_my' is one person" in found.err
    assert "person = 'COLUMN' in [table] or [texts]" in found.err
    assert not list(own.rglob("ledger.jsonl"))


def test_persons_with_several_records_are_not_promised_what_one_record_is(ask: Ask, own: Path) -> None:
    (own / "my.csv").write_text(visits(per_patient=9))
    found = ask("train", "my.csv", *TO_PROTECT, *PERSON, "--set", "table.person=patient")
    assert found.code != 0
    assert "In the column 'patient' a person has several records" in found.err
    assert "p1" not in found.err
    assert not (own / "runs").exists()
    allowed = ask("train", "my.csv", *TO_PROTECT, "--set", "table.person=patient")
    assert allowed.code == 0, allowed.err


@pytest.mark.parametrize("declared", ["table.person=patient", "table.one_record_per_person=true"])
def test_persons_of_one_record_each_are_protected_and_the_guarantee_says_what_it_rests_on(
    ask: Ask, own: Path, declared: str
) -> None:
    (own / "my.csv").write_text(visits(per_patient=1))
    found = ask("train", "my.csv", *TO_PROTECT, *PERSON, "--set", declared)
    assert found.code == 0, found.err
    told = ask("account", "runs/my", "--json")
    assert told.code == 0, told.err
    assert "nobody is in two items" in told.out


OF_PATIENTS = ("--person", "patient", "--persons", "100")


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ((), "at most 8 records of a sampled person"),
        (("--records-per-person", "3"), "at most 3 records of a sampled person"),
        (("--sample", "records", "--records-per-person", "2"), "at most 2 records of each person"),
    ],
)
def test_persons_with_several_records_are_protected_by_a_bound_on_them(
    ask: Ask, own: Path, options: tuple[str, ...], bound: str
) -> None:
    (own / "my.csv").write_text(visits(per_patient=2))
    few = ("--set", "privacy.sampling.sampling.steps=2", "--set", "training.physical_batch_size=16")
    schema = ("--target", "income", "--epsilon", "3", "--schema", "schema.toml")
    found = ask("train", "my.csv", *schema, *OF_PATIENTS, *options, *few)
    assert found.code == 0, found.err
    told = ask("account", "runs/my", "--json")
    assert told.code == 0, told.err
    assert '"unit": "person"' in told.out
    assert bound in told.out
    assert "nobody has two names" in told.out
    compared = ask("plan", "runs/my/recipe.toml", "--compare-persons", "--json")
    assert compared.code == 0, compared.err
    ways = json.loads(compared.out)["person_comparison"]
    assert {way["way"] for way in ways} == {"draw persons", "draw records"}


def test_the_number_of_persons_is_declared_and_never_counted(ask: Ask, own: Path) -> None:
    (own / "my.csv").write_text(visits(per_patient=2))
    found = ask("train", "my.csv", *TO_PROTECT, "--person", "patient")
    assert found.code != 0
    assert "--persons 500" in found.err
    few = ask("train", "my.csv", *TO_PROTECT, "--person", "patient", "--persons", "20")
    assert "hides all of them" in few.err
    alone = ask("train", "my.csv", *TO_PROTECT, "--persons", "200")
    assert "goes with --person" in alone.err


def test_the_column_of_persons_is_neither_learned_from_nor_predicted(ask: Ask, own: Path) -> None:
    (own / "my.csv").write_text(visits(per_patient=2))
    for name in ("age", "income"):
        found = ask("train", "my.csv", *TO_PROTECT, "--person", name, "--persons", "100")
        assert found.code == 2
        assert "Remove it from the schema" in " ".join(found.err.split())


def test_no_records_of_a_person_is_refused_and_not_taken_for_the_default(ask: Ask, own: Path) -> None:
    (own / "my.csv").write_text(visits(per_patient=2))
    options = ("--person", "patient", "--persons", "100", "--records-per-person", "0")
    found = ask("train", "my.csv", *TO_PROTECT, *options)
    assert found.code != 0
    assert "max_records" in found.err
    assert not (own / "runs").exists()


@pytest.mark.parametrize("name", ["patient_id", "ID", "customerNumber", "mrn", "Person", "user_key"])
def test_a_table_that_seems_to_name_persons_asks_what_a_record_is_before_it_reads_one(
    ask: Ask, own: Path, name: str
) -> None:
    (own / "my.csv").write_text(visits(per_patient=1).replace("patient,", f"{name},", 1))
    found = ask("train", "my.csv", *TO_PROTECT)
    said = " ".join(found.err.split())
    assert found.code == 2
    assert f"--person {name}" in said
    assert "--one-record-per-person" in said
    assert "p17" not in found.err
    assert not (own / "runs").exists()


def test_one_record_per_person_is_declared_by_a_word_and_protects_persons(ask: Ask, own: Path) -> None:
    (own / "my.csv").write_text(visits(per_patient=1))
    declared = ask("train", "my.csv", *TO_PROTECT, "--one-record-per-person", *FEW_STEPS)
    assert declared.code == 0, declared.err
    assert "one person" in declared.out


@pytest.mark.parametrize("name", ["age_number", "humid", "paid", "code", "inpatient_days", "row"])
def test_other_columns_are_not_taken_for_names_of_persons(name: str) -> None:
    assert not names_persons(name)


def test_a_schema_to_complete_is_written_from_the_header_alone(ask: Ask, own: Path) -> None:
    (own / "my.csv").write_text("patient_id,admitted,ward,level,ill\nsecret,secret,secret,secret,secret\n")
    found = ask("schema", "my.csv", "--target", "ill", "--person", "patient_id", "-o", "made.toml")
    assert found.code == 0, found.err
    assert "--target ill --person patient_id --persons NUMBER" in " ".join(found.err.split())
    text = (own / "made.toml").read_text()
    assert "secret" not in text
    assert "patient_id" not in text
    assert '{ name = "admitted", dates = "%Y-%m-%d", earliest = "?", latest = "?" }' in text
    assert '{ name = "ward", categories = ["?", "?"] }' in text
    assert '{ name = "level", low = ?, high = ? }' in text


def test_a_schema_to_complete_declares_no_column_that_names_records_or_persons(ask: Ask, own: Path) -> None:
    (own / "my.csv").write_text("stay_id,patientNumber,age,ill\n1,2,3,no\n")
    found = ask("schema", "my.csv", "--target", "ill")
    assert found.code == 0, found.err
    assert '# left out, because it seems to name records or persons: "stay_id"' in found.out
    assert found.out.count("{ name =") == 2


def test_a_schema_of_public_records_is_complete_but_for_the_size(ask: Ask, own: Path) -> None:
    found = ask("schema", "my.csv", "--target", "income", "--public-sample", "test.csv")
    assert found.code == 0, found.err
    (own / "made.toml").write_text(found.out.replace("train_size = ?", "train_size = 200"))
    options = ("--target", "income", "--epsilon", "3", "--schema", "made.toml", *FEW_STEPS)
    assert ask("train", "my.csv", *options).code == 0


@pytest.mark.parametrize(
    "option",
    [
        ("--persons", "50"), ("--schema", "schema.toml"), ("--weights", "my.csv"), ("--train", "head"),
        ("--decimal", ","), ("--processes", "2"),
    ],
)  # fmt: skip
def test_texts_refuse_an_option_that_they_would_not_heed(ask: Ask, own: Path, option: tuple[str, ...]) -> None:
    texts = ("--text", "town", "--target", "income", "--classes", "low,high", "--model", ".", "--size", "200")
    found = ask("train", "my.csv", *texts, "--epsilon", "3", *option)
    assert found.code == 2
    assert option[0] in found.err
    assert found.out == ""
