"""The exported folder predicts what the run predicts, with numpy and nothing else, and carries its certificate."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from privet.cli.console import run as run_command
from privet.cli.main import privet
from privet.datasets.own.own_table import WORDS_FOR_GAPS
from privet.datasets.tasks import Classes, Count, Number, PlainNumber, Several
from privet.errors import CheckpointError, UnsupportedModel
from privet.models import MODELS
from privet.runs.prediction import predict_new
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.runner import train
from privet.runs.serving import served_predict
from privet.runs.serving.export import export_run
from privet.runs.serving.program import program_of
from scripts import verify_certificate

RECIPE = """
dataset = "people"
model = "mlp_64_64"

[table]
train = "train.csv"
train_size = 200
delimiter = ";"
decimal = ","
label = { name = "income", categories = ["low", "middle", "high"] }
columns = [
  { name = "age", low = 0, high = 100, default = 40 },
  { name = "sex", categories = ["f", "m", ""] },
  { name = "town", categories = ["north", "south"], default = "south" },
]

[privacy]
epsilon = 4.0
delta = 1e-4
adjacency = "add_or_remove"
unit = "record"
sampling = { kind = "poisson", dataset_size = 200, batch_size = 50, steps = 4 }
clipping = { kind = "threshold", norm = 1.0 }
noise = { kind = "gaussian" }

[training]
optimizer = { kind = "sgd", learning_rate = 0.5 }
device = "cpu"
physical_batch_size = 100
"""
NEW = 'income;town;age;sex\nlow;north;12,5;f\n;;;\n;"south";1e9;m\n;north;NaN;f\n;north;n/a;m\n'
# What a bare environment has: the standard library and numpy.
_BARE = """
import runpy, sys
for name in ("torch", "privet", "scipy", "safetensors", "onnxruntime", "pandas"):
    sys.modules[name] = None
sys.argv = ["predict.py", sys.argv[2]]
runpy.run_path({program!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    rows = [
        "age;sex;town;income",
        *(f"{n % 90},5;{'fm'[n % 2]};north;{'low' if n % 3 else 'high'}" for n in range(200)),
    ]
    (folder / "train.csv").write_text("\n".join(rows) + "\n")
    (folder / "recipe.toml").write_text(RECIPE)
    assert train(load_recipe(folder / "recipe.toml"), folder / "run").is_finished
    return folder / "run"


def bare(folder: Path, records: Path) -> tuple[list[str], list[list[str]]]:
    """Run the exported program where nothing but numpy can be imported."""
    code = _BARE.format(program=str(folder / "predict.py"))
    done = subprocess.run(
        [sys.executable, "-c", code, "-", str(records)], capture_output=True, text=True, check=True, timeout=60
    )
    header, *rows = csv.reader(io.StringIO(done.stdout))
    return header, rows


def test_predictions_in_a_bare_environment_are_those_of_the_run(run: Path, tmp_path: Path) -> None:
    records, served = tmp_path / "new.csv", tmp_path / "served"
    records.write_text(NEW)
    assert run_command(privet, ["predict", str(run), str(records), "-o", str(tmp_path / "wanted.csv")]) == 0
    assert run_command(privet, ["export", str(run), "-o", str(served)]) == 0
    header, rows = bare(served, records)
    wanted_header, *wanted = csv.reader((tmp_path / "wanted.csv").read_text().splitlines())
    assert header == wanted_header
    assert [row[:2] for row in rows] == [row[:2] for row in wanted]
    np.testing.assert_allclose(
        np.array([row[2:] for row in rows], float), np.array([row[2:] for row in wanted], float), atol=2e-6
    )
    assert (served / "requirements.txt").read_text() == "numpy\n"


def test_the_exported_folder_holds_a_card_and_a_certificate_that_can_be_checked_there(
    run: Path, tmp_path: Path
) -> None:
    served = tmp_path / "served"
    assert run_command(privet, ["export", str(run), "-o", str(served), "--json"]) == 0
    assert verify_certificate.main([str(served)]) == 0
    assert "differential privacy" in (served / "README.md").read_text()
    told = (served / "model.json").read_text() + (served / "README.md").read_text()
    assert "train.csv" not in told
    assert str(run.parent) not in told


def test_a_temperature_of_a_private_evaluation_is_served(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "served")
    served = json.loads((tmp_path / "served" / "model.json").read_text())
    outputs = np.array([[0.0, 2.0, 1.0]])
    plain = served_predict.decisions(outputs, served)
    heated = served_predict.decisions(outputs, {**served, "temperature": 2.0})
    assert plain["class"] == heated["class"] == ["middle"]
    logits = [
        np.log(float(each["probability of middle"][0]) / float(each["probability of low"][0]))
        for each in (plain, heated)
    ]
    assert logits == pytest.approx([2.0, 1.0], abs=1e-4)


def test_a_cell_that_was_not_declared_is_refused_by_its_record_and_not_shown(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "served")
    (tmp_path / "new.csv").write_text("age;sex;town\n1;f;north\n1;f;Atlantis\n")
    with pytest.raises(subprocess.CalledProcessError) as found:
        bare(tmp_path / "served", tmp_path / "new.csv")
    assert "record 2" in found.value.stderr
    assert "Atlantis" not in found.value.stderr


def test_an_unfinished_run_and_a_folder_in_use_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="there already"):
        export_run(run, tmp_path / "used")


def test_a_reader_that_has_read_enough_ends_the_program_without_a_word(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "served")
    (tmp_path / "new.csv").write_text("age;sex;town\n" + "1;f;north\n" * 20_000)
    command = [sys.executable, str(tmp_path / "served" / "predict.py"), str(tmp_path / "new.csv")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline().startswith(b"record,class")
        program.stdout.close()
        assert program.stderr.read() == b""


IMAGES = """
dataset = "pets"
model = {model!r}
[images]
train = "pets"
train_size = 200
classes = ["cat", "dog"]
height = 12
width = 16
channels = {channels}
[privacy]
epsilon = 4.0
delta = 1e-4
adjacency = "add_or_remove"
unit = "record"
sampling = {{ kind = "poisson", dataset_size = 200, batch_size = 50, steps = 2 }}
clipping = {{ kind = "threshold", norm = 1.0 }}
noise = {{ kind = "gaussian" }}
[training]
optimizer = {{ kind = "sgd", learning_rate = 0.5 }}
device = "cpu"
physical_batch_size = 100
"""


@pytest.mark.parametrize(
    ("model", "channels", "needs"),
    [("logistic_regression", 3, ["numpy", "pillow"]), ("oriented_edges", 1, ["numpy", "pillow", "torch"])],
)
def test_a_folder_of_images_is_decided_as_the_run_decides_it(
    tmp_path: Path, model: str, channels: int, needs: list[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    deep = np.arange(300, dtype=np.uint16).reshape(15, 20) * 200
    for name in ("pets/cat/1.png", "pets/dog/2.png", "new/3.png", "new/inside/4.png", "new/.hidden.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.random.default_rng(3).integers(0, 256, (20, 17, 3), dtype=np.uint8)).save(tmp_path / name)
    image.fromarray(deep).save(tmp_path / "new" / "deep.png")
    (tmp_path / "recipe.toml").write_text(IMAGES.format(model=model, channels=channels))
    assert train(load_recipe(tmp_path / "recipe.toml"), tmp_path / "run").is_finished
    served = tmp_path / "served"
    assert list(export_run(tmp_path / "run", served).needs) == needs
    assert (served / "requirements.txt").read_text().split() == needs
    found = subprocess.run(
        [sys.executable, str(served / "predict.py"), str(tmp_path / "new")], capture_output=True, text=True, check=True
    )
    rows = list(csv.reader(io.StringIO(found.stdout)))
    wanted = predict_new(tmp_path / "run", tmp_path / "new", device="cpu")
    assert [row[0] for row in rows[1:]] == list(wanted.names)
    assert [row[1] for row in rows[1:]] == list(wanted.classes)
    np.testing.assert_allclose(np.array([row[2:] for row in rows[1:]], float), wanted.probabilities, atol=2e-6)
    (tmp_path / "new" / "5.png").write_bytes(b"no image")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        subprocess.run(
            [sys.executable, str(served / "predict.py"), str(tmp_path / "new")],
            capture_output=True,
            text=True,
            check=True,
        )
    assert "5.png" in refused.value.stderr
    assert "Traceback" not in refused.value.stderr


TABLES = ("logistic_regression", "mlp_64_64", "mlp_1000", "table_linear", "table_classes", "table_curved")


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_networks_for_tables_are_carried_out_by_numpy_as_by_torch(name: str, num_outputs: int) -> None:
    torch.manual_seed(1)
    model = MODELS[name].build((6,), num_outputs).eval()
    program = program_of(model, torch.rand(3, 6))
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    for count in (1, 5):
        inputs = torch.rand(count, 6)
        with torch.no_grad():
            wanted = model(inputs).double().numpy()
        np.testing.assert_allclose(served_predict.run(program, weights, inputs.numpy()), wanted, rtol=1e-5, atol=1e-5)


def test_a_network_that_numpy_cannot_carry_out_is_refused_by_the_name_of_its_operation() -> None:
    with pytest.raises(UnsupportedModel, match="convolution"):
        program_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), torch.rand(3, 1, 5, 5))


TASKS = {
    "two classes with a threshold": Classes(class_names=("no", "yes"), threshold=0.3),
    "number": Number(name="cost", low=-5.0, high=20.0),
    "count": Count(name="visits", high=30.0),
    "plain number": PlainNumber(),
    "several": Several(parts=(Number(name="cost", low=0.0, high=9.0), Classes(name="kind", class_names=("a", "b")))),
}


@pytest.mark.parametrize("name", TASKS)
def test_outputs_are_read_as_the_task_reads_them(name: str) -> None:
    task = TASKS[name]
    outputs = torch.randn((40, task.num_outputs), generator=torch.Generator().manual_seed(3)).double() * 3
    found = served_predict.decisions(outputs.numpy(), {"targets": task.served(), "temperature": 1.0})
    wanted = task.decisions(outputs)
    assert list(found) == list(wanted)
    for column, values in wanted.items():
        told = [value if isinstance(value, str) else f"{value:.6f}" for value in values]
        if isinstance(values[0], str):
            assert found[column] == told
        else:
            np.testing.assert_allclose(np.array(found[column], float), np.array(told, float), atol=2e-6)


def test_words_for_gaps_are_those_of_the_library() -> None:
    assert served_predict.WORDS_FOR_GAPS == WORDS_FOR_GAPS


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"age;sex;town\n" + b"9" * 2_000_000 + b";f;north\n", "cannot be read as a table of cells"),
        (b"age;sex;town\n1;\xff;north\n", "is not UTF-8 text"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    run: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    export_run(run, tmp_path / "served")
    if content is not None:
        (tmp_path / "new.csv").write_bytes(content)
    with pytest.raises(subprocess.CalledProcessError) as found:
        bare(tmp_path / "served", tmp_path / "new.csv")
    assert words in found.value.stderr
    assert "Traceback" not in found.value.stderr


def test_a_cell_of_any_length_that_the_library_reads_is_read(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "served")
    (tmp_path / "new.csv").write_text(f"age;sex;town\n{'9' * 300_000};f;north\n")
    _, rows = bare(tmp_path / "served", tmp_path / "new.csv")
    assert len(rows) == 1


def test_onnx_is_one_file_and_written_without_a_word(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    export_run(run, tmp_path / "served")
    assert sorted(path.name for path in (tmp_path / "served").glob("model.onnx*")) == ["model.onnx"]
    said = capfd.readouterr()
    assert said.out + said.err == ""
