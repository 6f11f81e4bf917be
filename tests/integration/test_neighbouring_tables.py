"""The whole job on a table, on neighbouring files: equal folders, messages, exit codes and sizes, but for noise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Ask, ask  # noqa: F401 - a fixture

SCHEMA = """
train_size = 120
columns = [
  { name = "age", low = 0, high = 100, default = 40, gaps = true },
  { name = "severity", ordered = ["mild", "severe"] },
  { name = "admitted", dates = "%Y-%m-%d", earliest = "2020-01-01", latest = "2020-12-31" },
  { name = "town", categories = ["north", "south"] },
  { name = "ill", categories = ["no", "yes"] },
  { name = "days", low = 0, high = 60 },
  { name = "visits", low = 0, high = 20, counts = true },
]
"""
RECORDS = [
    f"p{n},{20 + n % 60},{('mild', 'severe')[n % 2]},2020-0{1 + n % 9}-11,{('north', 'south')[n % 2]},"
    f"{('no', 'yes')[n % 3 > 1]},{n % 60},{n % 7}"
    for n in range(120)
]
NEIGHBOURS = {
    "one fewer": None,
    "gaps": "p7,,,,,,,",
    "nothing that fits": "p7,old,awful,31.31.31,west,perhaps,many,-3",
    "far away": "p7,1e300,severe,1900-01-01,north,yes,1e300,-1e300",
    "too short": "p7",
}


def files_of(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def job(ask: Ask, folder: Path, records: list[str], target: str) -> tuple[int, str, str, dict[str, int]]:  # noqa: F811
    folder.mkdir()
    (folder / "my.csv").write_text(
        "\n".join(["patient_id,age,severity,admitted,town,ill,days,visits", *records]) + "\n"
    )
    (folder / "schema.toml").write_text(SCHEMA)
    found = ask(
        "train", folder / "my.csv", "--target", target, "--schema", folder / "schema.toml", "--epsilon", "3",
        "--person", "patient_id", "--persons", "120", "-o", folder / "run",
        "--set", "privacy.sampling.sampling.steps=2", "--set", "training.device=cpu",
    )  # fmt: skip
    said = re.sub(r"[0-9.]+ ?s\b", "SECONDS", (found.out + "|" + found.err).replace(str(folder), "FOLDER"))
    return found.code, said, str(sorted(files_of(folder / "run"))), files_of(folder / "run")


@pytest.mark.parametrize(
    ("change", "target"),
    [*((change, "ill") for change in NEIGHBOURS), ("nothing that fits", "days"), ("one fewer", "visits")],
)
def test_neighbouring_tables_give_equal_folders_messages_and_exit_codes(
    ask: Ask,  # noqa: F811
    tmp_path: Path,
    change: str,
    target: str,
) -> None:
    other = NEIGHBOURS[change]
    changed = [*RECORDS[:7], *([] if other is None else [other]), *RECORDS[8:]]
    first, second = job(ask, tmp_path / "one", RECORDS, target), job(ask, tmp_path / "two", changed, target)
    assert first[0] == 0, first[1]
    assert first[:3] == second[:3]
    for name in ("model.safetensors", "plan.json"):
        assert first[3][name] == second[3][name]


def test_neighbouring_tables_go_the_whole_way_to_an_exported_model_alike(ask: Ask, tmp_path: Path) -> None:  # noqa: F811
    changed = [*RECORDS[:7], NEIGHBOURS["nothing that fits"] or "", *RECORDS[8:]]
    found = []
    for name, trained, held in (("one", RECORDS, RECORDS), ("two", changed, RECORDS), ("three", RECORDS, changed)):
        folder = tmp_path / name
        folder.mkdir()
        for file, records in (("my.csv", trained), ("held.csv", held)):
            header = "patient_id,age,severity,admitted,town,ill,days,visits"
            (folder / file).write_text("\n".join([header, *records]) + "\n")
        (folder / "schema.toml").write_text(SCHEMA)
        asked = [
            ask(
                "train", folder / "my.csv", "--target", "ill", "--schema", folder / "schema.toml", "--epsilon", "3",
                "--person", "patient_id", "--persons", "120", "-o", folder / "run", "--test", folder / "held.csv",
                "--evaluate-epsilon", "0.5", "--set", "privacy.sampling.sampling.steps=2",
                "--set", "training.device=cpu",
            ),
            ask("certify", folder / "run"),
            ask("account", folder / "run"),
            ask("export", folder / "run", "-o", folder / "served"),
        ]  # fmt: skip
        hashes = re.compile(r"\b[0-9a-f]{64}\b")
        said = [hashes.sub("HASH", one.out.replace(str(folder), "FOLDER")) for one in asked[1:]]
        sizes = {key: files_of(folder)[key] for key in ("run/model.safetensors", "run/plan.json", "served/predict.py")}
        found.append(([one.code for one in asked], said, sorted(files_of(folder)), sizes))
    assert found[0][0] == [0, 0, 0, 0], found[0][1]
    assert found[0] == found[1] == found[2]
